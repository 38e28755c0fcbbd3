"""ERNIE 4.5, the dense ones: Llama whose neighbours in a head are turned in float32 (Baidu 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class ERNIE45(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    use_bias: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("Ernie4_5")
    model_types: ClassVar = ("ernie4_5",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "Ernie4_5RotaryEmbedding", full_precision=True),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.use_bias, last_bias=self.use_bias)

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), bias=self.use_bias)
