"""Qwen3 with experts (Yang et al., arXiv:2505.09388); also the text model of Qwen3-VL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._qwen import QwenExperts, QwenLike


@registered
@dataclass(frozen=True)
class Qwen3Moe(BiasedAttention, QwenExperts, QwenLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Qwen3Moe")
    model_types: ClassVar = ("qwen3_moe", "qwen3_vl_moe_text")
    other_names: ClassVar = {"num_local_experts": "num_experts"}
    fixed: ClassVar = {"hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {**table, "norm_topk_prob": True} if table.get("model_type") == "qwen3_vl_moe_text" else table

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "Qwen3MoeRMSNorm"))
