"""dots.llm1: experts as in DeepSeek-V3, a norm of each head's query and key (rednote-hilab, arXiv:2506.05767)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models._family import Count
from triosim.sources.models._llama_like import BiasedAttention, Windowed
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class Dots1(BiasedAttention, Windowed, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 128
    n_shared_experts: int = 2
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1408
    first_k_dense_replace: Count = 0
    norm_topk_prob: bool = False
    max_window_layers: Count = 62

    layout: ClassVar = Layout("Dots1")
    model_types: ClassVar = ("dots1",)
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu"}

    def usual_window(self, layer: int) -> bool:
        return layer >= self.max_window_layers

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "Dots1RMSNorm"))
