"""Nemotron-4: LayerNorm, half of each head rotated, squared ReLU (NVIDIA, arXiv:2402.16819 and 2406.11704)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased, PartlyRotated
from triosim.sources.models._parts import FeedForward, Norm


@registered
@dataclass(frozen=True)
class Nemotron(Biased, PartlyRotated):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Nemotron")
    model_types: ClassVar = ("nemotron",)
    fixed: ClassVar = {"hidden_act": "relu2"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "NemotronLayerNorm1P")

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), activation="relu2", names=("up_proj", "down_proj"))
