"""Qwen3, and the text model of Qwen3-VL: Llama with a norm of each head's query and key (arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._qwen import DenseQwen


@registered
@dataclass(frozen=True)
class Qwen3(BiasedAttention, DenseQwen):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128

    layout: ClassVar = Layout("Qwen3")
    model_types: ClassVar = ("qwen3", "qwen3_vl_text")
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), norm=Norm(self.head_size, "Qwen3RMSNorm"))
