"""Sums and products of tensors of which one is repeated along some dimensions of the other, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.sources.models._tape import Shape, Tensor

if TYPE_CHECKING:
    from triosim.sources.models._products import ProductLayers


def times_each(net: ProductLayers, a: Tensor, b: Tensor) -> Tensor:
    """a x b, dimensions of one, or that are not there, repeated in either."""
    y = net.tensor(_shape(a, b), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::mul", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        found = [(x, _product(net, g, other)) for x, other in ((b, a), (a, b)) if x.needs_grad]
        for x, gradient in reversed(found):
            net.give(x, _summed(net, gradient, x))

    net.derivative(row, (y,), rule)
    return y


def plus(net: ProductLayers, a: Tensor, b: Tensor) -> Tensor:
    """a + b, dimensions of one, or that are not there, repeated in ``b``."""
    y = net.tensor(_shape(a, b), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::add", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        for x in (a, b):
            if x.needs_grad:
                net.give(x, _summed(net, g, x))

    net.derivative(row, (y,), rule)
    return y


def over_each(net: ProductLayers, a: Tensor, b: Tensor) -> Tensor:
    """a / b, dimensions of one repeated in ``b``."""
    y = net.tensor(_shape(a, b), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::div", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        def quotient(x: Tensor) -> Tensor:
            made = net.tensor(y.shape, y.dtype)
            net.operator("aten::div", ("self", "other"), (x, b), (made,))
            return made

        of_b = quotient(net.neg(net.mul(g, quotient(a)))) if b.needs_grad else None
        if a.needs_grad:
            net.give(a, _summed(net, quotient(g), a))
        if of_b is not None:
            net.give(b, _summed(net, of_b, b))

    net.derivative(row, (y,), rule)
    return y


def _shape(a: Tensor, b: Tensor) -> Shape:
    """Of what two tensors make together; either may have fewer dimensions."""
    return tuple(m if n == 1 else n for m, n in zip(_padded(a, b), _padded(b, a), strict=True))


def _padded(x: Tensor, like: Tensor) -> Shape:
    return (*(1,) * (len(like.shape) - len(x.shape)), *x.shape)


def _product(net: ProductLayers, a: Tensor, b: Tensor) -> Tensor:
    y = net.tensor(_shape(a, b), a.dtype)
    net.operator("aten::mul", ("self", "other"), (a, b), (y,))
    return y


def _summed(net: ProductLayers, g: Tensor, x: Tensor) -> Tensor:
    """A gradient summed over the dimensions in which ``x`` was repeated."""
    kept = _padded(x, g)
    dims = [at for at, (n, m) in enumerate(zip(g.shape, kept, strict=True)) if m == 1 and n != 1]
    if not dims:
        return g
    y = net.tensor(kept, g.dtype)
    net.operator("aten::sum", ("self",), (g,), (y,), {"dim": dims, "keepdim": True})
    return y if len(kept) == len(x.shape) else net.view(y, x.shape)
