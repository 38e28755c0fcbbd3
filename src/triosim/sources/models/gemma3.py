"""Gemma 3: five blocks that see a window to one that sees all, a norm of each head (arXiv:2503.19786).

The text model; what its vision tower reads is not built.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._gemma import AROUND, GemmaLike
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class Gemma3(GemmaLike, MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 4096
    sliding_window_pattern: int = 6

    layout: ClassVar = Layout("Gemma3", norms=AROUND, residual="around", model="TextModel")
    model_types: ClassVar = ("gemma3_text",)
    other_names: ClassVar = {"_sliding_window_pattern": "sliding_window_pattern"}
    left_out: ClassVar = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072,
    }  # fmt: skip
    fixed: ClassVar = {"attention_bias": False}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "Gemma3RMSNorm"), norm_last=True)
