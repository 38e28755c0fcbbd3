"""K-EXAONE: EXAONE 4's attention and windows, experts as in DeepSeek-V3 (LG AI Research, model card, 2025)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts
from triosim.sources.models.exaone4 import EXAONE4


@registered
@dataclass(frozen=True)
class EXAONEMoE(EXAONE4, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    n_routed_experts: int = 64
    moe_intermediate_size: int = 1024

    layout: ClassVar = Layout("ExaoneMoe")
    model_types: ClassVar = ("exaone_moe",)
    other_names: ClassVar = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
