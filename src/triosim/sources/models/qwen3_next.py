"""Qwen3-Next: gated DeltaNet and gated attention, many small experts beside a shared one (Qwen team, 2025)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gated_delta import GatedDeltaExperts


@registered
@dataclass(frozen=True)
class Qwen3Next(GatedDeltaExperts):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_experts: int = 512
    num_experts_per_tok: int = 10

    layout: ClassVar = Layout("Qwen3Next")
    model_types: ClassVar = ("qwen3_next",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False}
