"""Jais 2: LayerNorm, a squared ReLU without a gate, biases in all products (Inception, Jais-2 model card, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._parts import FeedForward, Norm


@registered
@dataclass(frozen=True)
class Jais2(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Jais2")
    model_types: ClassVar = ("jais2",)
    left_out: ClassVar = {"attention_bias": True, "mlp_bias": True}
    fixed: ClassVar = {"hidden_act": "relu2"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), activation="relu2", names=("up_proj", "down_proj"))
