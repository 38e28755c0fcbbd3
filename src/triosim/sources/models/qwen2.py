"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values (Yang et al., arXiv:2407.10671 and 2412.15115).

It is the text model of Qwen2-VL and Qwen2.5-VL too (Wang et al., arXiv:2409.12191; Bai et al., arXiv:2502.13923), whose
blocks are the same whatever the positions of an image are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._parts import SelfAttention
from triosim.sources.models._qwen import DenseQwen


@registered
@dataclass(frozen=True)
class Qwen2(DenseQwen):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("Qwen2")
    model_types: ClassVar = ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=True)
