"""Command R7B and Command A: both parts of the same input, windows in three of four (Cohere, arXiv:2504.00698).

Blocks without a window know no positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout, LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Cohere2(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 4096
    sliding_window_pattern: int = 4
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("Cohere2", norms=("input_layernorm",), residual="parallel")
    model_types: ClassVar = ("cohere2",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "Cohere2LayerNorm", bias=False)

    def attention(self, layer: int) -> SelfAttention:
        seen = self.of_kind(layer, SLIDING, (layer + 1) % self.sliding_window_pattern != 0)
        return replace(
            super().attention(layer), bias=self.attention_bias, last_bias=self.attention_bias, rotated=seen,
            window=self.sliding_window if seen else 0,
        )  # fmt: skip

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x))
