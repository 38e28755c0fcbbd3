"""Qwen3.5, the text models without experts: gated DeltaNet and gated attention (Qwen team, 2026)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gated_delta import GatedDeltaLike


@registered
@dataclass(frozen=True)
class Qwen35(GatedDeltaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Qwen3_5", model="TextModel")
    model_types: ClassVar = ("qwen3_5_text",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False}
    rotary_kind: ClassVar[str] = "TextRotaryEmbedding"
    apart: ClassVar[bool] = True
