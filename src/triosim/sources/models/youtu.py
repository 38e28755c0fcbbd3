"""Youtu-LLM: a small dense model with the latent attention of DeepSeek-V3 (Tencent, arXiv:2512.24618)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama


@registered
@dataclass(frozen=True)
class Youtu(LatentLlama):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Youtu")
    model_types: ClassVar = ("youtu",)
    left_out: ClassVar = {"tie_word_embeddings": True, "q_lora_rank": 1536}
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "mlp_bias": False}
