"""Attention whose result is gated before the last product (Qiu et al., arXiv:2505.06708)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation, SelfAttention, rotate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class GatedAttention(SelfAttention):
    """Head by head: the product of queries makes a gate of each beside it; queries and keys are normed."""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        assert self.norm is not None
        for name, outputs in (("q_proj", 2 * self.heads), ("k_proj", self.groups), ("v_proj", self.groups)):
            w.linear(f"{at}.{name}", self.width, outputs * self.size, bias=self.bias)
        w.linear(f"{at}.{self.last}", self.heads * self.size, self.width, bias=self.last_bias)
        for name in self.norms:
            Norm(self.size, self.norm.kind).weights(w, f"{at}.{name}")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        assert rotation is not None
        assert self.norm is not None
        shape = x.shape[:2]
        both = net.view(net.linear("q_proj", x), (*shape, self.heads, 2 * self.size))
        q, gate = net.split(both, [self.size] * 2)
        gate = net.view(net.clone(gate), (*shape, self.heads * self.size))
        k, v = (net.view(net.linear(name, x), (*shape, self.groups, self.size)) for name in ("k_proj", "v_proj"))
        q, k = (net.rms_norm(name, part, self.norm.kind) for name, part in zip(self.norms, (q, k), strict=True))
        q, k, v = (net.transpose(part, 1, 2) for part in (q, k, v))
        cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
        q, k = rotate(net, (q, k), cos, sin)
        y = net.transpose(net.attention(q, k, v, causal=True), 1, 2)
        y = net.view(y, (*shape, self.heads * self.size))
        return net.linear(self.last, net.mul(y, net.sigmoid(gate)))


@dataclass(frozen=True)
class OutputGatedAttention(SelfAttention):
    """A product of its own makes a gate for what the last product reads."""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        super().weights(w, at)
        w.linear(f"{at}.gate_proj", self.width, self.heads * self.size, bias=False)

    def last_product(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        """Of what the heads found times its gate, which is made of ``x``."""
        gate = net.linear("gate_proj", x)
        return super().last_product(net, x, net.mul(y, net.sigmoid(gate)))
