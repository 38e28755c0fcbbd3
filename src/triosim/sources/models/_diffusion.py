"""What diffusion models are made of beside transformers: embedded times, and what a condition shifts and scales."""

from __future__ import annotations

from triosim.sources.models._net import Net
from triosim.sources.models._tape import Shape, Tensor
from triosim.trace.tables import Category


def times(net: Net, batch: int) -> Tensor:
    """How noisy each sample is, an input [batch]."""
    return net.tensor((batch,), "int64", Category.INPUT)


def embedded(net: Net, name: str, kind: str, x: Tensor) -> Tensor:
    """What two products with an activation between them make of ``x`` [batch, size]."""
    with net.module(name, kind):
        return net.linear("linear_2", net.silu(net.linear("linear_1", x)))


def sinusoids(net: Net, at: Tensor, size: int, flipped: bool = False) -> Tensor:
    """Cosines and sines [batch, size] of times; ``flipped`` they are sines and cosines first and then exchanged."""
    half = size // 2
    frequencies = net.tensor((half,), "float32")
    net.operator("aten::arange", (), (), (frequencies,))
    for name in ("mul", "div", "exp"):
        frequencies = net.unary(f"aten::{name}", frequencies)
    angles = times_each(net, net.to(net.unsqueeze(at, 1), "float32"), net.unsqueeze(frequencies, 0))
    if not flipped:
        return net.cat([net.unary(f"aten::{f}", angles) for f in ("cos", "sin")], 1)
    angles = net.unary("aten::mul", angles)
    y = net.cat([net.unary(f"aten::{f}", angles) for f in ("sin", "cos")], 1)
    return net.cat((net.slice(y, 1, half, size), net.slice(y, 1, 0, half)), 1)


def turns_of(net: Net, tokens: int, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Cosine and sine [1, tokens, 1, head] that heads are turned by; ``sizes`` of a head turn by each coordinate."""
    places, found = net.tensor((tokens, len(sizes)), net.precision, Category.INPUT), []
    for size in sizes:
        angles = net.tensor((tokens, size // 2), "float64")
        net.operator("aten::mul", ("self",), (places,), (angles,))
        for name in ("cos", "sin"):
            y = net.tensor((tokens, size), "float64")
            net.operator("aten::repeat_interleave", ("self",), (net.unary(f"aten::{name}", angles),), (y,))
            found.append(net.to(y, "float32"))
    cos, sin = (net.cat(found[which::2], 1) for which in range(2))
    return net.unsqueeze(net.unsqueeze(cos, 0), 2), net.unsqueeze(net.unsqueeze(sin, 0), 2)


def turned(net: Net, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [batch, tokens, heads, size] turned by their places in float32, pairs of neighbours at a time."""
    first, second = net.unbind(net.view(x, (*x.shape[:3], x.shape[3] // 2, 2)), 4)
    other = net.view(net.stack((net.neg(second), first), 4), x.shape)
    y = times_each(net, net.to(x, "float32"), cos)
    return net.to(net.add(y, times_each(net, net.to(other, "float32"), sin)), x.dtype)


def modulated(net: Net, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """``x`` [batch, tokens, width] x (1 + scale) + shift, of vectors [batch, width]."""
    scale = net.shifted(net.unsqueeze(scale, 1))
    return plus(net, times_each(net, x, scale), net.unsqueeze(shift, 1))


def times_each(net: Net, a: Tensor, b: Tensor) -> Tensor:
    """a x b, dimensions of one repeated in either."""
    y = net.tensor(_shape(a, b), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::mul", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        found = [(x, _product(net, g, other)) for x, other in ((b, a), (a, b)) if x.needs_grad]
        for x, gradient in reversed(found):
            net.give(x, _summed(net, gradient, x))

    net.derivative(row, (y,), rule)
    return y


def plus(net: Net, a: Tensor, b: Tensor) -> Tensor:
    """a + b, dimensions of one repeated in ``b``."""
    y = net.tensor(_shape(a, b), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::add", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        for x in (a, b):
            if x.needs_grad:
                net.give(x, _summed(net, g, x))

    net.derivative(row, (y,), rule)
    return y


def _shape(a: Tensor, b: Tensor) -> Shape:
    """Of what two tensors of one rank make together."""
    return tuple(m if n == 1 else n for m, n in zip(a.shape, b.shape, strict=True))


def _product(net: Net, a: Tensor, b: Tensor) -> Tensor:
    y = net.tensor(_shape(a, b), a.dtype)
    net.operator("aten::mul", ("self", "other"), (a, b), (y,))
    return y


def _summed(net: Net, g: Tensor, x: Tensor) -> Tensor:
    """A gradient summed over the dimensions in which ``x`` was repeated."""
    dims = [at for at, (n, m) in enumerate(zip(g.shape, x.shape, strict=True)) if m == 1 and n != 1]
    if not dims:
        return g
    y = net.tensor(x.shape, g.dtype)
    net.operator("aten::sum", ("self",), (g,), (y,), {"dim": dims, "keepdim": True})
    return y
