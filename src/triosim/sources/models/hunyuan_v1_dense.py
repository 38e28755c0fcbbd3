"""Hunyuan, the dense ones: Llama whose heads are normed when they have been rotated (Tencent 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class HunYuanV1(BiasedAttention):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("HunYuanDenseV1")
    model_types: ClassVar = ("hunyuan_v1_dense",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    def attention(self, layer: int) -> SelfAttention:
        norm, norms = Norm(self.head_size, f"{self.layout.kind}RMSNorm"), ("query_layernorm", "key_layernorm")
        return replace(super().attention(layer), norm=norm, norms=norms, rotated_first=True)
