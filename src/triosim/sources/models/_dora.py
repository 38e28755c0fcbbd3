"""Adapters with a magnitude of their own (Liu et al., DoRA, arXiv:2402.09353): ``m (W + s B A) / |W + s B A|``.

What runs, and in which order, is that of Hugging Face's ``peft`` without dropout
(``src/peft/tuners/lora/dora.py``): the product of both adapters is made by sending an identity matrix through them, its
norm by rows is a constant of the backward (section 4.3 of the paper), and what the frozen layer gave is used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.sources.models._broadcast import times_each
from triosim.sources.models._tape import Tensor
from triosim.trace.tables import Category

if TYPE_CHECKING:
    from collections.abc import Callable

    from triosim.sources.models._products import ProductLayers

MAGNITUDE = "lora_magnitude_vector"
"""The module of ``peft`` that has the magnitudes."""


def with_magnitude(
    net: ProductLayers,
    x: Tensor,
    y: Tensor,
    weight: Callable[[], Tensor],
    bias: Tensor | None,
    adapter: Callable[[Tensor], Tensor],
) -> Tensor:
    """``y``, what the frozen layer that is being called made of ``x``, with its adapter and magnitudes.

    Args:
        net: the model.
        x: [..., inputs].
        y: [..., outputs].
        weight: gives the frozen weight [outputs, inputs] in the model's element type.
        bias: of the layer.
        adapter: both thin products.
    """
    outputs, inputs = int(y.shape[-1]), int(x.shape[-1])
    name = f"{net.path}.{MAGNITUDE}.weight"
    if name not in net.parameters:
        net.parameters[name] = net.tensor(
            (outputs,), net.precision, Category.WEIGHT, needs_grad=net.training, name=name
        )
    added = adapter(x)
    eye = net.tensor((inputs, inputs), net.precision)
    net.operator("aten::eye", (), (), (eye,))
    product = net.t(adapter(eye))  # its gradient is never asked for
    with net.module(MAGNITUDE, "DoraLinearLayer"):
        scaled, whole = (net.tensor((outputs, inputs), net.precision) for _ in range(2))
        frozen = weight()
        net.operator("aten::mul", ("self",), (product,), (scaled,))
        net.operator("aten::add", ("self", "other"), (frozen, scaled), (whole,))
        norm = net.tensor((outputs,), net.precision)
        net.operator("aten::linalg_vector_norm", ("self",), (whole,), (norm,), {"dim": [1]})
        scale = net.view(_over(net, net.parameters[name], norm), (1, outputs))
        base = y
        less = _less_one(net, scale)
        if bias is not None:
            base = net.tensor(y.shape, y.dtype, needs_grad=y.needs_grad)
            row = net.operator("aten::sub", ("self", "other"), (y, bias), (base,))
            net.derivative(row, (base,), lambda g: net.give(y, g))
        return net.add(y, net.add(times_each(net, less, base), net.scaled(times_each(net, scale, added))))


def _less_one(net: ProductLayers, x: Tensor) -> Tensor:
    made = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::sub", ("self",), (x,), (made,))
    net.derivative(row, (made,), lambda g: net.give(x, g))
    return made


def _over(net: ProductLayers, magnitude: Tensor, norm: Tensor) -> Tensor:
    """Magnitudes over the norms, which are constants."""
    made = net.tensor(magnitude.shape, magnitude.dtype, needs_grad=magnitude.needs_grad)
    row = net.operator("aten::div", ("self", "other"), (magnitude, norm), (made,))

    def rule(g: Tensor) -> None:
        over = net.tensor(g.shape, g.dtype)
        net.operator("aten::div", ("self", "other"), (g, norm), (over,))
        net.give(magnitude, over)

    net.derivative(row, (made,), rule)
    return made
