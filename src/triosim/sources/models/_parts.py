"""What transformers are made of: norms, rotary positions, attention and feed-forward parts, each with its weights.

A part is a frozen dataclass that says its sizes.  ``weights`` declares its parameters under the name that it has in
its module, in the order in which Hugging Face registers them; calling it appends its operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.sources.models._net import Net, Weights
from triosim.sources.models._tape import Tensor
from triosim.sources.models._unfused import unfused_attention

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of every position and frequency, [1, sequence, rotated] each."""

GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def activate(net: Net, x: Tensor, name: str) -> Tensor:
    """An activation by the name that configurations give it."""
    if name in ("silu", "swish"):
        return net.silu(x)
    if name in ("relu", "relu2"):
        y = net.relu(x)
        return net.mul(y, y) if name == "relu2" else y
    return net.gelu(x, "none" if name == "gelu" else "tanh")


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over the last dimension.

    Attributes:
        width: its size.
        kind: class of the module; one that ends in ``RMSNorm`` has no mean and no bias.
        bias: whether a LayerNorm has one.
    """

    width: int
    kind: str = "RMSNorm"
    bias: bool = True

    def weights(self, w: Weights, name: str) -> None:
        """Declare its parameters."""
        w.norm(name, self.width, bias=self.bias and not self.kind.endswith("RMSNorm"))

    def __call__(self, net: Net, name: str, x: Tensor) -> Tensor:
        """The normalised ``x``."""
        return net.rms_norm(name, x, self.kind) if self.kind.endswith("RMSNorm") else net.layer_norm(name, x)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al., arXiv:2104.09864).

    Attributes:
        size: dimensions of a head that are rotated.
        kind: class of the module.
        name: of the module in the body.
    """

    size: int
    kind: str
    name: str = "rotary_emb"

    def weights(self, w: Weights, body: str) -> None:
        """Declare the buffer of frequencies."""
        w.buffers[f"{body}.{self.name}.inv_freq"] = ((self.size // 2,), "float32")

    def __call__(self, net: Net, tokens: Tensor) -> Rotation:
        """Angles of tokens [batch, sequence]."""
        frequencies = net.buffers[f"{net.path}.{self.name}.inv_freq"]
        with net.module(self.name, self.kind):
            rows = net.unsqueeze(net.unsqueeze(frequencies, 0), 2)
            positions = net.to(net.unsqueeze(net.unsqueeze(net.positions(tokens), 0), 0), "float32")
            angles = net.transpose(net.bmm(rows, positions), 1, 2)
            angles = net.cat((angles, angles), 2)
            cos, sin = (net.to(net.unary(f"aten::{f}", angles), net.precision) for f in ("cos", "sin"))
            return cos, sin


def rotate(net: Net, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` [batch, heads, tokens, size] turned by its positions, the halves of what is turned as pairs.

    Where fewer dimensions are rotated than a head has, the rest is passed on.
    """
    size, turned = x.shape[3], cos.shape[-1]
    if turned < size:
        passed = net.slice(x, 3, turned, size)
        return net.cat((rotate(net, net.slice(x, 3, 0, turned), cos, sin), passed), 3)
    if net.fused:
        return net.rotary(x, cos, sin)
    straight = net.mul(x, cos)
    first, second = net.slice(x, 3, 0, size // 2), net.slice(x, 3, size // 2, size)
    return net.add(straight, net.mul(net.cat((net.neg(second), first), 3), sin))


@dataclass(frozen=True)
class SelfAttention:
    """Causal attention of tokens to those before them, with grouped keys and values.

    Attributes:
        width: of the residual stream.
        heads, groups: of queries, and of keys and values.
        size: of a head.
        kind: class of the module.
        names: of the products that make queries, keys and values (in the order of registration), and of the last; one
            name for the first three makes them by one product.
        bias, last_bias: whether the products have one.
        norm: of queries and keys: of each head, or where it is as wide as all of them, of all heads at once.
        rotated: whether positions rotate queries and keys.
        window: tokens that a token sees, its own among them; 0 for all.
        dropout: of the attention weights.
        unfused: scores and weights are tensors of their own, as attention with ALiBi ran.
    """

    width: int
    heads: int
    groups: int
    size: int
    kind: str
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    bias: bool = False
    last_bias: bool = False
    norm: Norm | None = None
    rotated: bool = True
    window: int = 0
    dropout: float = 0.0
    unfused: bool = False

    @property
    def _widths(self) -> dict[str, int]:
        return {"q": self.heads * self.size, "k": self.groups * self.size, "v": self.groups * self.size}

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        widths = self._widths
        if len(self.names) == 2:
            w.linear(f"{at}.{self.names[0]}", self.width, sum(widths.values()), bias=self.bias)
        else:
            for name in self.names[:-1]:
                w.linear(f"{at}.{name}", self.width, widths[name[0]], bias=self.bias)
        w.linear(f"{at}.{self.names[-1]}", widths["q"], self.width, bias=self.last_bias)
        if self.norm:
            for part in ("q", "k"):
                whole = self.norm.width != self.size
                Norm(widths[part] if whole else self.size, self.norm.kind).weights(w, f"{at}.{part}_norm")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        q, k, v = self._packed(net, x) if len(self.names) == 2 else self._apart(net, x)
        if rotation is not None and self.rotated:
            cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
            q, k = (rotate(net, part, cos, sin) for part in (q, k))
        if self.unfused:
            y = unfused_attention(net, q, k, v, self.dropout)
        else:
            y = net.transpose(net.attention(q, k, v, causal=True, dropout=self.dropout, window=self.window), 1, 2)
        return net.linear(self.names[-1], net.view(y, (*x.shape[:2], self.heads * self.size)))

    def _apart(self, net: Net, x: Tensor) -> list[Tensor]:
        def heads(name: str) -> Tensor:
            part = name[0]
            normed = self.norm is not None and part != "v"
            rotated = self.rotated and part != "v" and not net.fused and not normed
            y = net.linear(name, x)
            shape = (*x.shape[:2], self._widths[part] // self.size, self.size)
            if normed and self.norm is not None and self.norm.width != self.size:
                y = net.rms_norm(f"{part}_norm", y, self.norm.kind)
                normed, rotated = False, True
            y = net.view(y, shape, strided_gradient=rotated)
            if normed and self.norm is not None:
                y = net.rms_norm(f"{part}_norm", y, self.norm.kind)
            return net.transpose(y, 1, 2)

        made = {name[0]: heads(name) for name in self.names[:-1]}
        return [made[part] for part in "qkv"]

    def _packed(self, net: Net, x: Tensor) -> list[Tensor]:
        y = net.linear(self.names[0], x)
        shape = x.shape[:2]
        parts = net.split(y, list(self._widths.values()))
        return [net.transpose(net.view(p, (*shape, p.shape[-1] // self.size, self.size)), 1, 2) for p in parts]


@dataclass(frozen=True)
class FeedForward:
    """Products with an activation between them; gated where there are three (Shazeer, arXiv:2002.05202).

    Attributes:
        width, inner: of the residual stream and between the products.
        kind: class of the module, empty where the products are the block's own.
        activation: by the name that configurations give it.
        names: of the products; three are gate, up and down.
        packed: gate and up are one product, named first of two.
        bias: whether the products have one.
        dropout: of the result.
    """

    width: int
    inner: int
    kind: str
    activation: str = "silu"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    packed: bool = False
    bias: bool = False
    dropout: float = 0.0

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        for name in self.names[:-1]:
            w.linear(f"{at}.{name}", self.width, self.inner * (2 if self.packed else 1), bias=self.bias)
        w.linear(f"{at}.{self.names[-1]}", self.inner, self.width, bias=self.bias)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [..., width]."""
        if len(self.names) == 2 and not self.packed:
            y = activate(net, net.linear(self.names[0], x), self.activation)
        elif self.packed:
            gate, up = net.split(net.linear(self.names[0], x), [self.inner] * 2)
            y = self.gate(net, gate, up)
        elif net.fused and self.activation == "silu":
            y = net.swiglu(net.linear(self.names[0], x), net.linear(self.names[1], x))
        else:
            y = net.mul(activate(net, net.linear(self.names[0], x), self.activation), net.linear(self.names[1], x))
        return net.dropout(net.linear(self.names[-1], y), self.dropout)

    def gate(self, net: Net, gate: Tensor, up: Tensor) -> Tensor:
        """The activation of ``gate`` times ``up``."""
        if net.fused and self.activation == "silu":
            return net.swiglu(gate, up)
        return net.mul(activate(net, gate, self.activation), up)
