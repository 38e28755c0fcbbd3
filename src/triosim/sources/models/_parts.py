"""What transformers are made of: norms, rotary positions, attention and feed-forward parts, each with its weights.

A part is a frozen dataclass that says its sizes.  ``weights`` declares its parameters under the name that it has in
its module, in the order in which Hugging Face registers them; calling it appends its operators.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import JOINED_HEADS, KEY_HEADS

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of every position and frequency, [1, sequence, rotated] each."""

GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def activate(net: Net, x: Tensor, name: str) -> Tensor:
    """An activation by the name that configurations give it."""
    if name in ("silu", "swish"):
        return net.silu(x)
    if name == "quick_gelu":
        return net.mul(x, net.sigmoid(net.scaled(x)))
    if name == "relu2" and net.kernels.fused:
        return net.squared_relu(x)
    if name in ("relu", "relu2"):
        y = net.relu(x)
        return net.squared(y) if name == "relu2" else y
    if name == "gelu_new" and net.kernels.composed_gelu:
        return net.composed_gelu(x)
    return net.gelu(x, "none" if name == "gelu" else "tanh")


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over the last dimension.

    Attributes:
        width: its size.
        kind: class of the module; one that ends in ``RMSNorm`` has no mean and no bias.
        bias: whether a LayerNorm has one.
        weight: whether there is one; without it there is no bias either.
        full_precision: a LayerNorm of a float32 copy.
    """

    width: int
    kind: str = "RMSNorm"
    bias: bool = True
    weight: bool = True
    full_precision: bool = False

    def weights(self, w: Weights, name: str) -> None:
        """Declare its parameters."""
        if not self.weight:
            return
        w.norm(name, self.width, bias=self.bias and not self.kind.endswith("RMSNorm"))

    def __call__(self, net: Net, name: str, x: Tensor) -> Tensor:
        """The normalised ``x``."""
        if self.kind.endswith("RMSNorm"):
            return net.rms_norm(name, x, self.kind)
        return (
            net.to(net.layer_norm(name, net.to(x, "float32")), x.dtype)
            if self.full_precision
            else net.layer_norm(name, x)
        )


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al., arXiv:2104.09864).

    Attributes:
        size: dimensions of a head that are rotated.
        kind: class of the module.
        name: of the module in the body.
        full_precision: heads are turned in float32.
    """

    size: int
    kind: str
    name: str = "rotary_emb"
    full_precision: bool = False

    def weights(self, w: Weights, body: str) -> None:
        """Declare the buffer of frequencies."""
        w.buffers[f"{body}.{self.name}.inv_freq"] = ((self.size // 2,), "float32")

    def __call__(self, net: Net, tokens: Tensor) -> Rotation:
        """Angles of tokens [batch, sequence]."""
        frequencies = net.buffers[f"{net.path}.{self.name}.inv_freq"]
        with net.module(self.name, self.kind):
            rows = net.unsqueeze(net.unsqueeze(frequencies, 0), 2)
            positions = net.to(net.unsqueeze(net.unsqueeze(net.positions(tokens), 0), 0), "float32")
            with net.without_autocast():  # as Hugging Face's rotary embeddings have it
                angles = net.transpose(net.bmm(rows, positions), 1, 2)
            angles = net.cat((angles, angles), 2)
            dtype = "float32" if self.full_precision else net.precision
            cos, sin = (net.to(net.unary(f"aten::{f}", angles), dtype) for f in ("cos", "sin"))
            return cos, sin


def rotate(
    net: Net, heads: tuple[Tensor, Tensor], cos: Tensor, sin: Tensor, cut: bool = False
) -> tuple[Tensor, Tensor]:
    """Queries and keys [batch, heads, tokens, size] turned by their positions, the halves of what is turned as pairs.

    Where fewer dimensions are rotated than a head has, or with ``cut`` always, they are cut out and put back.
    """
    size, turned = heads[0].shape[3], cos.shape[-1]
    if turned == size and not cut:
        q, k = (rotated(net, x, cos, sin) for x in heads)
        return net.to(q, heads[0].dtype), net.to(k, heads[1].dtype)
    parts = [(net.slice(x, 3, 0, turned) if turned < size else x, net.slice(x, 3, turned, size)) for x in heads]
    if cut:  # one after the other; what is passed on may be nothing
        q, k = (net.cat((rotated(net, first, cos, sin), rest), 3) for first, rest in parts)
        return q, k
    q, k = (rotated(net, first, cos, sin) for first, _ in parts)
    return net.cat((q, parts[0][1]), 3), net.cat((k, parts[1][1]), 3)


def rotated(net: Net, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """All dimensions of heads turned, as :func:`rotate` does."""
    if net.kernels.fused:
        return net.rotary(x, cos, sin)
    size = x.shape[3]
    straight = net.mul(x, cos)
    first, second = net.slice(x, 3, 0, size // 2), net.slice(x, 3, size // 2, size)
    return net.add(straight, net.mul(net.cat((net.neg(second), first), 3), sin))


@dataclass(frozen=True)
class SelfAttention:
    """Attention of tokens to those before them, with grouped keys and values.

    Attributes:
        width: of the residual stream.
        heads, groups: of queries, and of keys and values.
        size: of a head.
        kind: class of the module.
        names: of the products that make queries, keys and values, in the order of registration; one name for all three
            makes them by one product.
        last: name of the last product; ``last_first`` whether it is registered before the others.
        sliced: queries, keys and values are cut out of the one product one by one, and what is rotated out of them.
        interleaved: the one product makes query, key and value of the first head, then of the second, and so on.
        bias, last_bias: whether the products have one.
        norm: of queries and keys: of each head, or where it is as wide as all of them, of all heads at once.
        norms: what those of queries and of keys are called.
        norm_last: heads are normed when all three are made; ``rotated_first``: when they have been rotated.
        rotated: whether positions rotate queries and keys.
        window: tokens that a token sees, its own among them; 0 for all.
        dropout, last_dropout: of the attention weights, and of the result.
        scaled: queries are divided by the root of their size before, not in the kernel.
        sinks: each head has one more score, a parameter.
        unfused: scores and weights are tensors of their own, as attention with ALiBi ran.
        clamped: what the one product makes is kept within limits.
        causal: off: tokens see those after them too; a window reaches as far to either side.
    """

    width: int
    heads: int
    groups: int
    size: int
    kind: str
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    last: str = "o_proj"
    last_first: bool = False
    sliced: bool = False
    interleaved: bool = False
    bias: bool = False
    last_bias: bool = False
    norm: Norm | None = None
    norms: tuple[str, str] = ("q_norm", "k_norm")
    norm_last: bool = False
    rotated_first: bool = False
    rotated: bool = True
    window: int = 0
    dropout: float = 0.0
    last_dropout: float = 0.0
    scaled: bool = False
    sinks: bool = False
    unfused: bool = False
    clamped: bool = False
    causal: bool = True

    @property
    def _heads_of(self) -> dict[str, int]:
        groups = Dim(self.groups, KEY_HEADS) if self.groups < self.heads else self.groups
        return {"q": self.heads, "k": groups, "v": groups}

    @property
    def _widths(self) -> dict[str, int]:
        return {part: heads * self.size for part, heads in self._heads_of.items()}

    @property
    def _found(self) -> int:
        """Width of what all heads find together."""
        return self.heads * self.size

    @property
    def _width(self) -> int:
        """Of queries, keys and values made by one product."""
        whole = sum(self._widths.values())
        return Dim(whole, JOINED_HEADS) if self.groups < self.heads else whole

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        widths = self._widths
        if self.sinks:
            w.add(f"{at}.sinks", self.heads)
        if self.last_first:
            w.linear(f"{at}.{self.last}", self._found, self.width, bias=self.last_bias)
        if len(self.names) == 1:
            w.linear(f"{at}.{self.names[0]}", self.width, self._width, bias=self.bias)
        else:
            for name in self.names:
                w.linear(f"{at}.{name}", self.width, widths[name[0]], bias=self.bias)
        if not self.last_first:
            w.linear(f"{at}.{self.last}", self._found, self.width, bias=self.last_bias)
        if self.norm:
            for part, name in zip("qk", self.norms, strict=True):
                whole = self.norm.width != self.size
                replace(self.norm, width=widths[part] if whole else self.size).weights(w, f"{at}.{name}")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        q, k, v = self._packed(net, x) if len(self.names) == 1 else self._apart(net, x)
        if rotation is not None and self.rotated:
            cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
            q, k = rotate(net, (q, k), cos, sin, cut=self.sliced)
        if self.norm and self.rotated_first:
            q, k = (net.rms_norm(name, y, self.norm.kind) for name, y in zip(self.norms, (q, k), strict=True))
        return self.found(net, x, q, k, v)

    def found(self, net: Net, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What queries find among keys and values of ``x``, all [batch, heads, tokens, size]."""
        if self.unfused and net.kernels.attention in ("auto", "unfused"):
            from triosim.sources.models._unfused import unfused_attention

            y = unfused_attention(net, q, k, v, self.dropout, net.kernels.fused_softmax)
        else:
            y = net.attention(
                q, k, v, causal=self.causal, dropout=self.dropout, window=self.window, padded=not self.causal
            )
            y = net.transpose(y, 1, 2)
        y = self.last_product(net, x, net.view(y, (*x.shape[:2], self._found)))
        return net.dropout(y, self.last_dropout)

    def last_product(self, net: Net, x: Tensor, y: Tensor) -> Tensor:
        """Of what the heads found, ``y`` [batch, tokens, heads x size], for ``x``."""
        return net.linear(self.last, y)

    def joined(self) -> SelfAttention:
        """The same with one product for queries, keys and values, where nothing is done to one of them at once."""
        whole = self.norm is not None and self.norm.width != self.size
        if len(self.names) == 1 or whole or self.scaled or type(self) is not SelfAttention:
            return self
        return replace(self, names=("qkv_proj",))

    def _apart(self, net: Net, x: Tensor) -> list[Tensor]:
        made = {
            name[0]: self._heads(net, name, x) for name in sorted(self.names, key=lambda name: "qkv".index(name[0]))
        }
        if self.norm and self.norm_last:
            for part, name in zip("qk", self.norms, strict=True):
                made[part] = net.rms_norm(name, made[part], self.norm.kind)
        return [made[part] for part in "qkv"]

    def _heads(self, net: Net, name: str, x: Tensor) -> Tensor:
        """Queries, keys or values, [batch, heads, tokens, size]."""
        part, y = name[0], net.linear(name, x)
        shape = (*x.shape[:2], self._heads_of[part], self.size)
        norm = self.norm if part != "v" and not (self.norm_last or self.rotated_first) else None
        if self.scaled and part == "q":
            y = net.scaled(y)
        if norm and norm.width != self.size:  # all heads at once
            y = net.rms_norm(self._norm_of(part), y, norm.kind)
        each = norm if norm and norm.width == self.size else None
        copied = self.rotated and part != "v" and not net.kernels.fused and each is None
        y = net.view(y, shape, strided_gradient=copied)
        return net.transpose(net.rms_norm(self._norm_of(part), y, each.kind) if each else y, 1, 2)

    def _norm_of(self, part: str) -> str:
        return self.norms["qk".index(part)]

    def _packed(self, net: Net, x: Tensor) -> list[Tensor]:
        y = net.linear(self.names[0], x)
        if self.clamped:
            y = net.clamp(y)
        shape = x.shape[:2]
        if self.interleaved:
            y = net.transpose(net.view(y, (*shape, self.heads, 3 * self.size)), 1, 2)
            return net.split(y, [self.size] * 3)
        widths = list(self._widths.values())
        if self.sliced:
            ends = [sum(widths[: at + 1]) for at in range(3)]
            parts = [net.slice(y, 2, end - width, end) for end, width in zip(ends, widths, strict=True)]
        else:
            parts = net.split(y, widths)
        heads = [net.view(y, (*shape, self._heads_of[part], self.size)) for part, y in zip("qkv", parts, strict=True)]
        if self.norm and not self.rotated_first:
            for at, name in enumerate(self.norms):
                heads[at] = net.rms_norm(name, heads[at], self.norm.kind)
        if net.kernels.joined_products and net.kernels.attention == "cudnn":  # Transformer Engine's get_qkv_layout
            heads[2] = net.clone(heads[2])
        return [net.transpose(part, 1, 2) for part in heads]


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
        elif self.packed and net.kernels.one_gate and self.activation == "silu" and type(self) is FeedForward:
            y = net.packed_swiglu(net.linear(self.names[0], x))
        elif self.packed:
            gate, up = net.split(net.linear(self.names[0], x), [self.inner] * 2)
            y = self.gate(net, gate, up)
        elif net.kernels.one_gate and self.activation == "silu":
            y = net.swiglu(net.linear(self.names[0], x), net.linear(self.names[1], x))
        else:
            y = net.mul(activate(net, net.linear(self.names[0], x), self.activation), net.linear(self.names[1], x))
        return net.dropout(net.linear(self.names[-1], y), self.dropout)

    def joined(self) -> FeedForward:
        """The same with one product for gate and up, where there are both."""
        if len(self.names) != 3 or type(self) is not FeedForward:
            return self
        return replace(self, names=("gate_up_proj", self.names[2]), packed=True)

    def gate(self, net: Net, gate: Tensor, up: Tensor) -> Tensor:
        """The activation of ``gate`` times ``up``."""
        if net.kernels.one_gate and self.activation == "silu":
            return net.swiglu(gate, up)
        return net.mul(activate(net, gate, self.activation), up)
