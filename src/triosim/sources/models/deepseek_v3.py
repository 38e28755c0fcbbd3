"""DeepSeek-V3, R1 and Kimi K2: experts scored by a sigmoid, chosen from the best groups (arXiv:2412.19437)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import DeepSeek
from triosim.sources.models._experts import ExpertRouter


@registered
@dataclass(frozen=True)
class DeepSeekV3(DeepSeek):
    """Configuration, named as in Hugging Face's ``config.json``."""

    norm_topk_prob: bool = True

    layout: ClassVar = Layout("DeepseekV3")
    model_types: ClassVar = ("deepseek_v3", "kimi_k2")
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "DeepseekV3TopkRouter", score="sigmoid",
            normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group, best_groups=self.topk_group,
            correction=True, scaled=True,
        )  # fmt: skip
