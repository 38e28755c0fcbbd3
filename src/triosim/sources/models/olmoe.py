"""OLMoE: experts in every block, norms of all queries and keys (Muennighoff et al., arXiv:2409.02060)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class OLMoE(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    layout: ClassVar = Layout("Olmoe")
    model_types: ClassVar = ("olmoe",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "clip_qkv": None}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, f"{self.layout.kind}TopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), norm=Norm(self.num_attention_heads * self.head_size, f"{self.layout.kind}RMSNorm")
        )

    def feed_forward(self, layer: int) -> Experts:
        return Experts(
            self._router, self.intermediate_size, f"{self.layout.kind}SparseMoeBlock", f"{self.layout.kind}Experts"
        )
