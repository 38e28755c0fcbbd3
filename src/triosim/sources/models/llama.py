"""Llama and its relatives: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Module names are those of Hugging Face's ``LlamaForCausalLM``.  Sources: Touvron et al., arXiv:2302.13971 and
2307.09288; Grattafiori et al., arXiv:2407.21783.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._parts import FeedForward, SelfAttention


@registered
@dataclass(frozen=True)
class Llama(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    attention_bias: bool = False
    mlp_bias: bool = False

    layout: ClassVar = Layout("Llama")
    model_types: ClassVar = ("llama",)
    other_names: ClassVar = {"max_sequence_length": "max_position_embeddings"}
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        bias = self.attention_bias
        return replace(super().attention(layer), bias=bias, last_bias=bias)

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), bias=self.mlp_bias)
