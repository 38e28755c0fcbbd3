"""Arcee's foundation models (AFM): Llama with a squared ReLU and no gate (Arcee AI, AFM-4.5B, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._parts import FeedForward


@registered
@dataclass(frozen=True)
class Arcee(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Arcee")
    model_types: ClassVar = ("arcee",)
    fixed: ClassVar = {"hidden_act": "relu2"}

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), activation="relu2", names=("up_proj", "down_proj"))
