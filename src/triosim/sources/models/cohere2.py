"""Command R7B and Command A: both parts of the same input, windows in three of four (Cohere, arXiv:2504.00698).

Blocks without a window know no positions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention, MostlyWindowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Cohere2(BiasedAttention, MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 4096
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("Cohere2", norms=("input_layernorm",), residual="parallel")
    model_types: ClassVar = ("cohere2",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "Cohere2LayerNorm", bias=False)

    def attention(self, layer: int) -> SelfAttention:
        own: SelfAttention = super().attention(layer)
        return replace(own, rotated=own.window > 0)

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x))
