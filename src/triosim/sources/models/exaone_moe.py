"""K-EXAONE: EXAONE 4's attention and windows, experts as in DeepSeek-V3 (LG AI Research, model card, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout
from triosim.sources.models._deepseek import DeepSeekExperts
from triosim.sources.models._experts import ExpertRouter
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models.exaone4 import EXAONE4


@registered
@dataclass(frozen=True)
class EXAONEMoE(DeepSeekExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 64
    moe_intermediate_size: int = 1024
    norm_topk_prob: bool = True
    sliding_window: int = 0
    sliding_window_pattern: int = 4

    layout: ClassVar = Layout("ExaoneMoe")
    model_types: ClassVar = ("exaone_moe",)
    other_names: ClassVar = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return EXAONE4.reworded(table)

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "ExaoneMoeTopkRouter", score="sigmoid",
            normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group, best_groups=self.topk_group,
            correction=True, scaled=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        seen = self.of_kind(layer, SLIDING, (layer + 1) % self.sliding_window_pattern != 0)
        window = self.sliding_window if seen else 0
        return replace(
            super().attention(layer), norm=Norm(self.head_size, "ExaoneMoeRMSNorm"), norm_last=True, window=window,
            rotated=window > 0 or not self.sliding_window,
        )  # fmt: skip
