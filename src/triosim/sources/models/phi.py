"""Phi-1 and Phi-2: both parts of the same input, part of each head rotated (Gunasekar et al., arXiv:2306.11644)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import PartlyRotated
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention


@registered
@dataclass(frozen=True)
class Phi(PartlyRotated):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_act: str = "gelu_new"
    resid_pdrop: float = 0.0

    layout: ClassVar = Layout(
        "Phi", last_norm="final_layernorm", norms=("input_layernorm",), residual="parallel", last_bias=True
    )
    model_types: ClassVar = ("phi",)
    fixed: ClassVar = {"qk_layernorm": False}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), last="dense", bias=True, last_bias=True,
            last_dropout=self.resid_pdrop,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "PhiMLP", self.hidden_act, ("fc1", "fc2"), bias=True,
            dropout=self.resid_pdrop,
        )  # fmt: skip
