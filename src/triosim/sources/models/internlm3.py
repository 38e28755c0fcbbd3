"""InternLM3: Llama with few heads of keys and values (Shanghai AI Laboratory, model card, January 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Biased
from triosim.sources.models._parts import SelfAttention


@registered
@dataclass(frozen=True)
class InternLM3(Biased):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128

    layout: ClassVar = Layout("InternLM3")
    model_types: ClassVar = ("internlm3",)
    other_names: ClassVar = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), last_bias=self.mlp_bias)
