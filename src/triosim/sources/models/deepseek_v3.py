"""DeepSeek-V3, R1 and Kimi K2: experts scored by a sigmoid, chosen from the best groups (arXiv:2412.19437)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama, SigmoidExperts


@registered
@dataclass(frozen=True)
class DeepSeekV3(LatentLlama, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("DeepseekV3")
    model_types: ClassVar = ("deepseek_v3", "kimi_k2")
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}
