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


@dataclass(frozen=True)
class EagerAttention(SelfAttention):
    """Causal attention without rotary positions.

    Attributes:
        biases: the buffer [heads, 1, positions] of biases by distance, which are added to scaled scores, in float32;
            where it is empty, queries and keys are multiplied in float32 and not scaled (GPT-Neo).
    """

    biases: str = ""

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Attention of ``x`` [batch, tokens, width]."""
        if net.kernel != "auto":
            return super().__call__(net, x, rotation)
        made = self._packed_parts(net, x) if len(self.names) == 1 else [net.linear(f"{part}_proj", x) for part in "qkv"]
        shape = (*x.shape[:2], self.heads, self.size)
        q, k, v = (net.transpose(net.view(part, shape, strided_gradient=True), 1, 2) for part in made)
        if not self.biases:
            q, k = net.to(q, "float32"), net.to(k, "float32")
        q, k, v = (net.view(net.clone(part), (x.shape[0] * self.heads, x.shape[1], self.size)) for part in (q, k, v))
        scores = net.bmm(q, net.transpose(k, 1, 2))
        scores = self._biased(net, net.scaled(scores)) if self.biases else _chosen(net, scores)
        weights = net.dropout(net.to(softmax(net, scores), v.dtype), self.dropout)
        y = net.view(net.bmm(weights, v), (x.shape[0], self.heads, x.shape[1], self.size))
        y = net.linear(self.last, net.view(net.clone(net.transpose(y, 1, 2)), (*x.shape[:2], self.heads * self.size)))
        return net.dropout(y, self.last_dropout)

    def _packed_parts(self, net: Net, x: Tensor) -> list[Tensor]:
        y = net.linear(self.names[0], x)
        return net.split(net.clamp(y) if self.clamped else y, list(self._widths.values()))

    def _biased(self, net: Net, scores: Tensor) -> Tensor:
        """Scores [batch * heads, tokens, keys] with biases by distance, later keys filled with a low number."""
        flat = scores.shape
        whole = net.view(scores, (flat[0] // self.heads, self.heads, *flat[1:]))
        y = _plus(net, whole, net.slice(net.buffers[self.biases], 2, 0, flat[2]))
        return net.view(_masked(net, "aten::masked_fill", ("self", "mask"), (y, net.tensor(flat[1:], "bool"))), flat)


def _chosen(net: Net, scores: Tensor) -> Tensor:
    """Scores of [tokens, keys] that a buffer allows, a number elsewhere; then the mask of padding is added."""
    mask = net.tensor(scores.shape[1:], "bool")
    y = _masked(net, "aten::where", ("condition", "self"), (mask, scores))
    return _plus(net, y, net.tensor(scores.shape[1:], scores.dtype))


def _plus(net: Net, x: Tensor, constant: Tensor) -> Tensor:
    """Their sum, in the type of the constant."""
    y = net.tensor(x.shape, constant.dtype, needs_grad=x.needs_grad)
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
