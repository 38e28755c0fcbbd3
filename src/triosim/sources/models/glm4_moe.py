"""GLM-4.5 and 4.6: experts as in DeepSeek-V3, grouped-query attention (GLM-4.5 Team, arXiv:2508.06471)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import DeepSeekExperts
from triosim.sources.models._experts import ExpertRouter
from triosim.sources.models._family import Share
from triosim.sources.models._parts import Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class GLM4MoE(DeepSeekExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    n_routed_experts: int = 128
    moe_intermediate_size: int = 1408
    norm_topk_prob: bool = True
    partial_rotary_factor: Share = 0.5
    attention_bias: bool = False
    use_qk_norm: bool = False

    layout: ClassVar = Layout("Glm4Moe")
    model_types: ClassVar = ("glm4_moe", "glm4v_moe_text")
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, "Glm4MoeTopkRouter", score="sigmoid",
            normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group, best_groups=self.topk_group,
            correction=True, scaled=True,
        )  # fmt: skip

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.partial_rotary_factor), "Glm4MoeRotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        norm = Norm(self.head_size, "Glm4MoeRMSNorm") if self.use_qk_norm else None
        return replace(super().attention(layer), bias=self.attention_bias, norm=norm, norm_last=True)
