"""Qwen3 with experts (Yang et al., arXiv:2505.09388); also the text model of Qwen3-VL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._experts import ExpertRouter, Experts, is_sparse
from triosim.sources.models._family import Blocks
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class Qwen3Moe(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    decoder_sparse_step: int = 1
    mlp_only_layers: Blocks = ()
    norm_topk_prob: bool = False
    attention_bias: bool = False
    sliding_window: int = 0
    use_sliding_window: bool = False

    layout: ClassVar = Layout("Qwen3Moe")
    model_types: ClassVar = ("qwen3_moe", "qwen3_vl_moe_text")
    other_names: ClassVar = {"num_local_experts": "num_experts"}
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {**table, "norm_topk_prob": True} if table.get("model_type") == "qwen3_vl_moe_text" else table

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Qwen3MoeTopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        bias, window = self.attention_bias, self.sliding_window if self.use_sliding_window else 0
        norm = Norm(self.head_size, "Qwen3MoeRMSNorm")
        return replace(super().attention(layer), bias=bias, last_bias=bias, norm=norm, window=window)

    def feed_forward(self, layer: int) -> Any:
        if not is_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers):
            return super().feed_forward(layer)
        return Experts(
            self._router, self.moe_intermediate_size, "Qwen3MoeSparseMoeBlock", "Qwen3MoeExperts", router_first=False
        )
