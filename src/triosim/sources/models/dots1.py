"""dots.llm1: experts as in DeepSeek-V3, a norm of each head's query and key (rednote-hilab, arXiv:2506.05767)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout
from triosim.sources.models._deepseek import DeepSeekExperts
from triosim.sources.models._experts import ExpertRouter
from triosim.sources.models._family import Count
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class Dots1(DeepSeekExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 128
    n_shared_experts: int = 2
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1408
    first_k_dense_replace: Count = 0
    norm_topk_prob: bool = False
    attention_bias: bool = False
    sliding_window: int = 0
    max_window_layers: Count = 62

    layout: ClassVar = Layout("Dots1")
    model_types: ClassVar = ("dots1",)
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "Dots1TopkRouter", score="sigmoid",
            normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group, best_groups=self.topk_group,
            correction=True, scaled=True,
        )  # fmt: skip

    def attention(self, layer: int) -> SelfAttention:
        seen = self.of_kind(layer, SLIDING, layer >= self.max_window_layers)
        return replace(
            super().attention(layer), bias=self.attention_bias, last_bias=self.attention_bias,
            norm=Norm(self.head_size, "Dots1RMSNorm"), window=self.sliding_window if seen else 0,
        )  # fmt: skip
