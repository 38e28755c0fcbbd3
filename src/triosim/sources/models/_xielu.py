"""xIELU, an activation with two parameters (Huang & Schlag, arXiv:2411.13010), as Hugging Face spells it out.

``where(x > 0, a x x + b x, (expm1(min(x, e)) - x) c + b x)`` with a = softplus(alpha_p), c = b + softplus(alpha_n), and
numbers b and e: nine kernels on what goes through it, of which five results stay for the gradients.
"""

from __future__ import annotations

from triosim.sources.models._broadcast import times_each
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


def declare(w: Weights, at: str) -> None:
    """Declare its parameters and numbers."""
    for name in ("alpha_p", "alpha_n"):
        w.add(f"{at}.act_fn.{name}", 1)


def xielu(net: Net, x: Tensor) -> Tensor:
    """The activation of ``x`` [..., width], whose parameters are those of the module ``act_fn``."""
    with net.module("act_fn", "XIELUActivation"):
        up, down = (net.softplus(net.parameter(name)) for name in ("alpha_p", "alpha_n"))
        down = net.shifted(down)
        positive = net.tensor(x.shape, "bool")
        net.operator("aten::gt", ("self",), (x,), (positive,))
        above = net.add(net.mul(times_each(net, x, up), x), net.scaled(x))
        below = net.add(times_each(net, _difference(net, _expm1(net, _least(net, x)), x), down), net.scaled(x))
        return _where(net, positive, above, below)


def _least(net: Net, x: Tensor) -> Tensor:
    """``x`` and no more than a number; halves of its gradient where both are equal."""
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::minimum", ("self",), (x,), (y,))

    def rule(g: Tensor) -> None:
        half, equal, shared, more, dx = (net.tensor(x.shape, t) for t in (x.dtype, "bool", x.dtype, "bool", x.dtype))
        net.operator("aten::div", ("self",), (g,), (half,))
        net.operator("aten::eq", ("self",), (x,), (equal,))
        net.operator("aten::where", ("condition", "self", "other"), (equal, half, g), (shared,))
        net.operator("aten::gt", ("self",), (x,), (more,))
        net.operator("aten::masked_fill", ("self", "mask"), (shared, more), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _expm1(net: Net, x: Tensor) -> Tensor:
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::expm1", ("self",), (x,), (y,))
    net.derivative(row, (y,), lambda g: net.give(x, net.mul(g, net.shifted(y))))
    return y


def _difference(net: Net, a: Tensor, b: Tensor) -> Tensor:
    y = net.tensor(a.shape, a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::sub", ("self", "other"), (a, b), (y,))

    def rule(g: Tensor) -> None:
        net.give(b, net.neg(g))
        net.give(a, g)

    net.derivative(row, (y,), rule)
    return y


def _where(net: Net, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    roles = ("condition", "self", "other")
    y = net.tensor(a.shape, a.dtype, needs_grad=a.needs_grad or b.needs_grad)
    row = net.operator("aten::where", roles, (mask, a, b), (y,))

    def rule(g: Tensor) -> None:
        for x in (a, b):
            dx = net.tensor(x.shape, x.dtype)
            net.operator("aten::where", roles[:2], (mask, g), (dx,))
            net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
