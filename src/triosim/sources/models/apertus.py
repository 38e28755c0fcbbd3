"""Apertus: a Llama with heads normed and xIELU in place of a gate (Swiss AI Initiative, arXiv:2509.14233)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.sources.models._xielu import declare, xielu


@dataclass(frozen=True)
class XIELUFeedForward:
    """Two products with xIELU between them."""

    width: int
    inner: int
    kind: str

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.linear(f"{at}.up_proj", self.width, self.inner, bias=False)
        w.linear(f"{at}.down_proj", self.inner, self.width, bias=False)
        declare(w, at)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [..., width]."""
        return net.linear("down_proj", xielu(net, net.linear("up_proj", x)))


@registered
@dataclass(frozen=True)
class Apertus(BiasedAttention):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout(
        "Apertus", norms=("attention_layernorm", "feedforward_layernorm"),
    )  # fmt: skip
    model_types: ClassVar = ("apertus",)
    fixed: ClassVar = {"hidden_act": "xielu", "mlp_bias": False, "post_norm": False, "qk_norm": True}

    def attention(self, layer: int) -> SelfAttention:
        norm = Norm(self.head_size, "ApertusRMSNorm")
        return replace(super().attention(layer), norm=norm, norm_last=True)

    def feed_forward(self, layer: int) -> XIELUFeedForward:
        return XIELUFeedForward(self.hidden_size, self.intermediate_size, "ApertusMLP")
