"""Solar Open: GLM-4.5's experts in every block, Llama's attention (Upstage, model card, December 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models._family import Count


@registered
@dataclass(frozen=True)
class SolarOpen(SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``; no block is dense."""

    head_dim: int = 128
    n_routed_experts: int = 128
    moe_intermediate_size: int = 1280
    first_k_dense_replace: Count = 0

    layout: ClassVar = Layout("SolarOpen")
    model_types: ClassVar = ("solar_open",)
    left_out: ClassVar = {"intermediate_size": 10240}  # of dense blocks, of which there is none
    fixed: ClassVar = {"hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Of the published files this key says what no block of the model has."""
        return {key: value for key, value in table.items() if key != "first_k_dense_replace"}
