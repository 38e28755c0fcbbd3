"""Phi-3 and Phi-4: Llama with queries, keys and values, and gate and up, in one product each (arXiv:2404.14219)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Share
from triosim.sources.models._llama_like import PartlyRotated, Windowed
from triosim.sources.models._parts import FeedForward, SelfAttention


@registered
@dataclass(frozen=True)
class Phi3(PartlyRotated, Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    resid_pdrop: float = 0.0
    partial_rotary_factor: Share = 1.0

    layout: ClassVar = Layout("Phi3")
    model_types: ClassVar = ("phi3",)
    fixed: ClassVar = {"hidden_act": "silu", "embd_pdrop": 0.0}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), names=("qkv_proj",), last_first=True, sliced=True)

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "Phi3MLP", names=("gate_up_proj", "down_proj"), packed=True
        )
