"""Attention written out operator by operator, as PyTorch models without a kernel for it call it.

Heads are copied to lie one after the other, their products are scaled, masked and normed by operators of their own, and
scores and weights are kept for the backward.  It is what runs unless a kernel of attention is asked for.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._unfused import softmax
from triosim.sources.models._weights import Weights

MASK = "transformer.causal_mask"
"""What :func:`make_mask` makes once for all blocks."""


@dataclass(frozen=True)
class EagerAttention(SelfAttention):
    """Causal attention without rotary positions; the mask is made before (:func:`make_mask`).

    Attributes:
        biases: the buffer [heads, 1, positions] of biases by distance, which are added to scaled scores, in float32;
            where it is empty, queries and keys are multiplied in float32 and not scaled, and a buffer of each block
            says which keys are seen (GPT-Neo).
        positions: that such a buffer has.
    """

    biases: str = ""
    positions: int = 0

    def weights(self, w: Weights, at: str) -> None:
        super().weights(w, at)
        if not self.biases:
            w.buffers[f"{at}.bias"] = ((1, 1, self.positions, self.positions), "bool")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        if net.kernels.attention != "auto":
            return super().__call__(net, x, rotation)
        made = self._packed_parts(net, x) if len(self.names) == 1 else [net.linear(f"{part}_proj", x) for part in "qkv"]
        (batch, length), whole = x.shape[:2], (x.shape[0], self.heads, x.shape[1], x.shape[1])
        q, k, v = (
            net.transpose(net.view(part, (batch, length, self.heads, self.size), strided_gradient=True), 1, 2)
            for part in made
        )
        if not self.biases:
            q, k = net.to(q, "float32"), net.to(k, "float32")
        q, k, v = (net.view(net.clone(part), (batch * self.heads, length, self.size)) for part in (q, k, v))
        scores = net.view(net.bmm(q, net.transpose(k, 1, 2)), whole)
        scores = self._biased(net, net.scaled(scores)) if self.biases else _chosen(net, scores)
        weights = net.dropout(net.to(softmax(net, scores), v.dtype), self.dropout)
        y = net.bmm(net.view(weights, (batch * self.heads, length, length)), v)
        y = net.transpose(net.view(y, (batch, self.heads, length, self.size), strided_gradient=True), 1, 2)
        y = net.linear(self.last, net.view(net.clone(y), (batch, length, self.heads * self.size)))
        return net.dropout(y, self.last_dropout)

    def _packed_parts(self, net: Net, x: Tensor) -> list[Tensor]:
        y = net.linear(self.names[0], x)
        return net.split(net.clamp(y) if self.clamped else y, list(self._widths.values()))

    def _biased(self, net: Net, scores: Tensor) -> Tensor:
        """Scores [batch, heads, tokens, keys] with biases by distance, later keys filled with a low number."""
        y = _plus(net, scores, net.slice(net.buffers[self.biases], 2, 0, scores.shape[3]))
        return _masked(net, "aten::masked_fill", ("self", "mask"), (y, net.buffers[MASK]))


def make_mask(net: Net, tokens: Tensor, dtype: str) -> None:
    """The mask of later tokens, [batch, 1, tokens, keys], where attention is written out."""
    if net.kernels.attention != "auto":
        return
    at = net.positions(tokens)
    seen = net.tensor((1, 1, *at.shape, *at.shape), "bool")
    net.operator("aten::le", ("self", "other"), (at, at), (seen,))
    mask = net.tensor((tokens.shape[0], *seen.shape[1:]), net.precision)
    net.operator("aten::where", ("condition",), (seen,), (mask,))
    net.buffers[MASK] = net.to(mask, dtype)


def _chosen(net: Net, scores: Tensor) -> Tensor:
    """Scores of the keys that the block's buffer allows, a number elsewhere; then the mask is added."""
    length = scores.shape[2]
    seen = net.slice(net.slice(net.buffers[f"{net.path}.bias"], 2, 0, length), 3, 0, length)
    return _plus(net, _masked(net, "aten::where", ("condition", "self"), (seen, scores)), net.buffers[MASK])


def _plus(net: Net, x: Tensor, constant: Tensor) -> Tensor:
    """Their sum in the wider of their types; ``constant`` needs no gradient."""
    dtype = "float32" if "float32" in (x.dtype, constant.dtype) else x.dtype
    y = net.tensor(x.shape, dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::add", ("self", "other"), (x, constant), (y,))
    net.derivative(row, (y,), lambda g: net.give(x, net.to(g, x.dtype)))
    return y


def _masked(net: Net, name: str, roles: tuple[str, str], read: tuple[Tensor, Tensor]) -> Tensor:
    """A choice between scores and a number; its derivative is one between the gradient and zero."""
    x = next(part for part in read if part.dtype != "bool")
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator(name, roles, read, (y,))

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator(name, roles, tuple(g if part is x else part for part in read), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
