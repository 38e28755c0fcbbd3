"""Nemotron-4: LayerNorm, half of each head rotated, squared ReLU (NVIDIA, arXiv:2402.16819 and 2406.11704)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._family import Share
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class Nemotron(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    partial_rotary_factor: Share = 0.5
    attention_bias: bool = False
    mlp_bias: bool = False

    layout: ClassVar = Layout("Nemotron")
    model_types: ClassVar = ("nemotron",)
    fixed: ClassVar = {"hidden_act": "relu2"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "NemotronLayerNorm1P")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.partial_rotary_factor), "NemotronRotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.attention_bias, last_bias=self.attention_bias)

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "NemotronMLP", "relu2", ("up_proj", "down_proj"),
            bias=self.mlp_bias,
        )  # fmt: skip
