"""BitNet b1.58: a Llama with squared ReLU, normed before the last product of each part (Ma et al., arXiv:2504.12285).

What trains are the 16-bit weights; that products read them rounded to three values, and 8-bit activations, is a matter
of the quantization and not of the model: here products are plain, as Hugging Face's model has them.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention, activate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

NORM = "BitNetRMSNorm"


@dataclass(frozen=True)
class NormedAttention(SelfAttention):
    """Attention whose result is normed before the last product."""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        super().weights(w, at)
        Norm(self.heads * self.size, NORM).weights(w, f"{at}.attn_sub_norm")

    def last_product(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        """Of the normed result."""
        return net.linear(self.last, net.rms_norm("attn_sub_norm", y, NORM))


@dataclass(frozen=True)
class NormedFeedForward(FeedForward):
    """A gated part, normed before the last product."""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        super().weights(w, at)
        Norm(self.inner, NORM).weights(w, f"{at}.ffn_sub_norm")

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [..., width]."""
        gate, up, down = self.names
        y = net.mul(activate(net, net.linear(gate, x), self.activation), net.linear(up, x))
        return net.linear(down, net.rms_norm("ffn_sub_norm", y, NORM))


@registered
@dataclass(frozen=True)
class BitNet(BiasedAttention):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("BitNet")
    model_types: ClassVar = ("bitnet",)
    fixed: ClassVar = {"hidden_act": "relu2", "attention_dropout": (0.0, 0)}

    def attention(self, layer: int) -> NormedAttention:
        return NormedAttention(**vars(super().attention(layer)))

    def feed_forward(self, layer: int) -> NormedFeedForward:
        return NormedFeedForward(self.hidden_size, self.intermediate_size, "BitNetMLP", "relu2")
