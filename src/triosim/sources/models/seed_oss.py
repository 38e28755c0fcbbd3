"""Seed-OSS: Llama with biases of queries, keys and values, and dropout (ByteDance Seed, model card, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._parts import FeedForward, SelfAttention


@registered
@dataclass(frozen=True)
class SeedOSS(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    attention_bias: bool = True
    attention_out_bias: bool = False
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1

    layout: ClassVar = Layout("SeedOss")
    model_types: ClassVar = ("seed_oss",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), last_bias=self.attention_out_bias,
            dropout=self.attention_dropout, last_dropout=self.residual_dropout,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), dropout=self.residual_dropout)
