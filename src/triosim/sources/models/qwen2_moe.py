"""Qwen1.5-MoE and Qwen2-MoE: experts, and a shared one weighed by a gate (Yang et al., arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Count
from triosim.sources.models._parts import SelfAttention
from triosim.sources.models._qwen import QwenLike, SharedExpert


@registered
@dataclass(frozen=True)
class Qwen2Moe(SharedExpert, QwenLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    qkv_bias: bool = True
    max_window_layers: Count = 28

    layout: ClassVar = Layout("Qwen2Moe")
    model_types: ClassVar = ("qwen2_moe",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def usual_window(self, layer: int) -> bool:
        return layer % 2 == 0 and layer < self.max_window_layers

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.qkv_bias)
