"""Qwen3.5, the text models with experts: gated DeltaNet and gated attention (Qwen team, 2026)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gated_delta import GatedDeltaExperts


@registered
@dataclass(frozen=True)
class Qwen35Moe(GatedDeltaExperts):
    """Configuration, named as in Hugging Face's ``config.json``; all blocks have experts."""

    layout: ClassVar = Layout("Qwen3_5Moe", model="TextModel")
    model_types: ClassVar = ("qwen3_5_moe_text",)
    left_out: ClassVar = {"intermediate_size": 1}
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "decoder_sparse_step": 1}
    rotary_kind: ClassVar[str] = "TextRotaryEmbedding"
    apart: ClassVar[bool] = True
