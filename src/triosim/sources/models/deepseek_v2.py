"""DeepSeek-V2: experts scored by a softmax, chosen from the best groups (Liu et al., arXiv:2405.04434)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import DeepSeekExperts, LatentLlama
from triosim.sources.models._experts import ExpertRouter


@registered
@dataclass(frozen=True)
class DeepSeekV2(LatentLlama, DeepSeekExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    topk_method: str = "greedy"

    layout: ClassVar = Layout("DeepseekV2")
    model_types: ClassVar = ("deepseek_v2",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "norm_topk_prob": False}

    @property
    def _router(self) -> ExpertRouter:
        grouped = self.topk_method != "greedy"
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "DeepseekV2TopkRouter", normalised=False,
            full_precision=True, scaled=True, groups=self.n_group if grouped else 1,
            best_groups=self.topk_group if grouped else 1,
        )  # fmt: skip
