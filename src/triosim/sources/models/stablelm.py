"""StableLM: Llama with LayerNorm, a quarter of each head rotated (Tow et al., StableLM 3B 4E1T, Stability AI, 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Share
from triosim.sources.models._llama_like import PartlyRotated
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class StableLM(PartlyRotated):
    """Configuration, named as in Hugging Face's ``config.json``."""

    partial_rotary_factor: Share = 0.25
    use_qkv_bias: bool = False

    layout: ClassVar = Layout("StableLm")
    model_types: ClassVar = ("stablelm",)
    fixed: ClassVar = {
        "hidden_act": "silu", "qk_layernorm": False, "use_parallel_residual": False, "hidden_dropout": (0.0, 0),
    }  # fmt: skip

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.use_qkv_bias)
