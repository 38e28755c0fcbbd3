"""Qwen1.5-MoE and Qwen2-MoE: experts, and a shared one weighed by a gate (Yang et al., arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout, LlamaLike
from triosim.sources.models._experts import ExpertRouter, Experts, is_sparse
from triosim.sources.models._family import Blocks, Count
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
    mlp_only_layers: Blocks = ()
    norm_topk_prob: bool = False
    qkv_bias: bool = True
    sliding_window: int = 0
    use_sliding_window: bool = False
    max_window_layers: Count = 28

    layout: ClassVar = Layout("Qwen2Moe")
    model_types: ClassVar = ("qwen2_moe",)
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu"}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Qwen2MoeTopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        seen = self.use_sliding_window and self.of_kind(
            layer, SLIDING, layer % 2 == 0 and layer < self.max_window_layers
        )
        return replace(super().attention(layer), bias=self.qkv_bias, window=self.sliding_window if seen else 0)

    def feed_forward(self, layer: int) -> Any:
        if not is_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers):
            return super().feed_forward(layer)
        return Experts(
            self._router, self.moe_intermediate_size, "Qwen2MoeSparseMoeBlock", "Qwen2MoeExperts",
            shared=FeedForward(self.hidden_size, self.shared_expert_intermediate_size, "Qwen2MoeMLP"),
            shared_gate=True,
        )  # fmt: skip
