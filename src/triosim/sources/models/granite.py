"""Granite 3: Llama whose embeddings, parts and scores are multiplied by numbers (IBM, Granite 3.0, October 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Granite(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    attention_bias: bool = False
    mlp_bias: bool = False

    layout: ClassVar = Layout("Granite", scaled=True)
    model_types: ClassVar = ("granite",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.attention_bias, last_bias=self.attention_bias)

    def feed_forward(self, layer: int) -> FeedForward:
        return replace(super().feed_forward(layer), bias=self.mlp_bias)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x), "aten::div")
