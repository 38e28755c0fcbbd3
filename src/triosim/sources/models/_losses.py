"""What models that score no classes are trained by: one number in the end."""

from __future__ import annotations

from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor


def squared_error(net: Net, x: Tensor, target: Tensor) -> Tensor:
    """The mean squared difference of two tensors of one shape, in float32."""
    return _loss(net, "mse_loss", net.to(x, "float32"), net.to(target, "float32"))


def binary_cross_entropy(net: Net, x: Tensor, target: Tensor) -> Tensor:
    """The mean cross entropy of probabilities and labels of one shape, in float32."""
    return _loss(net, "binary_cross_entropy", net.to(x, "float32"), target)


def cross_entropy_of_scores(net: Net, x: Tensor, target: Tensor) -> Tensor:
    """The mean cross entropy of what a sigmoid makes probabilities of, in float32; its derivative is written out."""
    x, target = net.to(x, "float32"), net.to(target, "float32")
    y = net.tensor((), "float32", needs_grad=x.needs_grad)
    name, args = "aten::binary_cross_entropy_with_logits", {"reduction": 1}
    row = net.operator(name, ("self", "target"), (x, target), (y,), args)

    def rule(g: Tensor) -> None:
        dx = net.unary("aten::sigmoid", x)
        for step, read in (("sub_", (target,)), ("mul_", (g,)), ("div_", ())):
            made = net.overwritten(dx)
            net.operator(f"aten::{step}", ("self", "other")[: 1 + len(read)], (dx, *read), (made,))
            dx = made
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _loss(net: Net, name: str, x: Tensor, target: Tensor) -> Tensor:
    y = net.tensor((), "float32", needs_grad=x.needs_grad)
    args = {"reduction": 1}
    row = net.operator(f"aten::{name}", ("self", "target"), (x, target), (y,), args)

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator(f"aten::{name}_backward", ("grad_output", "self", "target"), (g, x, target), (dx,), args)
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
