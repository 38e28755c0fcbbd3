"""Phi-3 and Phi-4: Llama with queries, keys and values, and gate and up, in one product each (arXiv:2404.14219)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._family import Share
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class Phi3(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 0
    resid_pdrop: float = 0.0
    partial_rotary_factor: Share = 1.0

    layout: ClassVar = Layout("Phi3")
    model_types: ClassVar = ("phi3",)
    fixed: ClassVar = {"hidden_act": "silu", "embd_pdrop": 0.0}

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.partial_rotary_factor), "Phi3RotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), names=("qkv_proj",), last_first=True, sliced=True, window=self.sliding_window
        )

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "Phi3MLP", names=("gate_up_proj", "down_proj"), packed=True
        )
