"""LFM2 with experts: LFM2's blocks, small experts in all but the first of them (Liquid AI, LFM2-8B-A1B, 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models.lfm2 import Lfm2


@registered
@dataclass(frozen=True)
class Lfm2Moe(Lfm2):
    """Configuration, named as in Hugging Face's ``config.json``; ``use_expert_bias``: the choice is corrected."""

    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1792
    num_dense_layers: Count = 2
    norm_topk_prob: bool = True
    use_expert_bias: bool = True

    layout: ClassVar = Layout(
        "Lfm2Moe", feed_forward="feed_forward", last_norm="embedding_norm", norms=("operator_norm", "ffn_norm")
    )
    model_types: ClassVar = ("lfm2_moe",)

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return super().reworded({"block_auto_adjust_ff_dim": False, **table})

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Lfm2MoeTopKRouter", score="sigmoid",
            normalised=self.norm_topk_prob, rounded=True, narrow=True, bounded="add", scaled=True,
            correction=self.use_expert_bias,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        if layer < self.num_dense_layers:
            return super().feed_forward(layer)
        return Experts(
            self._router, self.moe_intermediate_size, "Lfm2MoeSparseMoeBlock", "Lfm2MoeExperts", router_first=False
        )
