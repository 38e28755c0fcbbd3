"""OLMoE: experts in every block, norms of all queries and keys (Muennighoff et al., arXiv:2409.02060)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import Experts
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._qwen import SoftmaxExperts


@registered
@dataclass(frozen=True)
class OLMoE(SoftmaxExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 64

    layout: ClassVar = Layout("Olmoe")
    model_types: ClassVar = ("olmoe",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "clip_qkv": None}

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), norm=Norm(self.num_attention_heads * self.head_size, f"{self.layout.kind}RMSNorm")
        )

    def feed_forward(self, layer: int) -> Experts:
        return Experts(
            self._router, self.intermediate_size, f"{self.layout.kind}SparseMoeBlock", f"{self.layout.kind}Experts"
        )
