"""GLM-4.7 Flash: GLM-4.5's experts with the latent attention of DeepSeek-V3 (Z.ai, model card, 2026)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama, SigmoidExperts, with_dense_first


@registered
@dataclass(frozen=True)
class GLM4MoELite(LatentLlama, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 64
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1536
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256

    layout: ClassVar = Layout("Glm4MoeLite")
    model_types: ClassVar = ("glm4_moe_lite",)
    left_out: ClassVar = {"q_lora_rank": 768}
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return with_dense_first(table)
