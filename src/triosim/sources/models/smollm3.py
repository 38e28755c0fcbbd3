"""SmolLM3: Llama whose every fourth block knows no positions (Hugging Face, 2025; Yang et al., arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout, LlamaLike, listed_for_each
from triosim.sources.models._family import Blocks
from triosim.sources.models._parts import FeedForward, SelfAttention


@registered
@dataclass(frozen=True)
class SmolLM3(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    no_rope_layer_interval: int = 4
    no_rope_layers: Blocks = ()
    """For each block whether it knows positions; empty: all but every :attr:`no_rope_layer_interval`-th."""
    sliding_window: int = 0
    use_sliding_window: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("SmolLM3")
    model_types: ClassVar = ("smollm3",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def problem(self) -> str:
        return super().problem() or listed_for_each(self, "no_rope_layers")

    def attention(self, layer: int) -> SelfAttention:
        rotated = (layer + 1) % self.no_rope_layer_interval != 0
        if self.no_rope_layers:
            rotated = self.no_rope_layers[layer] != 0
        bias, seen = self.attention_bias, self.use_sliding_window and self.of_kind(layer, SLIDING, not rotated)
        return replace(
            super().attention(layer), bias=bias, last_bias=bias, rotated=rotated,
            window=self.sliding_window if seen else 0,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), bias=self.mlp_bias)
