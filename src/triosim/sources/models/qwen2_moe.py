"""Qwen1.5-MoE and Qwen2-MoE: experts, and a shared one weighed by a gate (Yang et al., arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._parts import FeedForward, SelfAttention


@registered
@dataclass(frozen=True)
class Qwen2Moe(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = False

    layout: ClassVar = Layout("Qwen2Moe")
    model_types: ClassVar = ("qwen2_moe",)
    fixed: ClassVar = {"hidden_act": "silu", "use_sliding_window": False, "mlp_only_layers": ([], None)}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Qwen2MoeTopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=True)

    def feed_forward(self, layer: int) -> Any:
        if (layer + 1) % self.decoder_sparse_step:
            return super().feed_forward(layer)
        return Experts(
            self._router, self.moe_intermediate_size, "Qwen2MoeSparseMoeBlock", "Qwen2MoeExperts",
            shared=FeedForward(self.hidden_size, self.shared_expert_intermediate_size, "Qwen2MoeMLP"),
            shared_gate=True,
        )  # fmt: skip
