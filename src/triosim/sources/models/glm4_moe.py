"""GLM-4.5 and 4.6: experts as in DeepSeek-V3, grouped-query attention (GLM-4.5 Team, arXiv:2508.06471)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models._llama_like import PartlyRotated
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class GLM4MoE(PartlyRotated, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    n_routed_experts: int = 128
    moe_intermediate_size: int = 1408
    attention_bias: bool = False
    use_qk_norm: bool = False

    layout: ClassVar = Layout("Glm4Moe")
    model_types: ClassVar = ("glm4_moe", "glm4v_moe_text")
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        norm = Norm(self.head_size, "Glm4MoeRMSNorm") if self.use_qk_norm else None
        return replace(super().attention(layer), bias=self.attention_bias, norm=norm, norm_last=True)
