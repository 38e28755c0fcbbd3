"""RMS norms other than one kernel in the type of what they norm: spelled out, or of a float32 copy.

``composed`` is what PyTorch runs for ``torch.nn.RMSNorm`` before its 2.9 (``rms_norm_composite`` in
``aten/src/ATen/native/layer_norm.cpp``), and for a module that spells out the formula, as torchtitan's of 2024 did: a
copy in float32, its squares, their mean, the root, and the products.  ``wide`` is one kernel that reads a float32 copy
and writes the weights' type, as InternLM's blocks call Apex's (``self.norm1(residual.float())``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.sources.models._tape import Tensor

if TYPE_CHECKING:
    from triosim.sources.models._net import Net

NORMS = ("one", "composed", "wide")
"""How an RMS norm is run: by one kernel, operator by operator, or by one kernel from a float32 copy."""


def composed(net: Net, x: Tensor, weight: Tensor | None) -> Tensor:
    """The norm of the last dimension of ``x``, operator by operator."""
    wide = net.to(x, "float32")
    mean = _mean(net, _squared(net, wide))
    y = net.to(_times_rows(net, wide, _reciprocal_root(net, net.shifted(mean))), x.dtype)
    return y if weight is None else net.scaled_by(y, weight)


def _squared(net: Net, x: Tensor) -> Tensor:
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::pow", ("self",), (x,), (y,), {"exponent": 2})

    def rule(g: Tensor) -> None:  # of a power: g * (2 * x ** 1)
        power = net.tensor(x.shape, x.dtype)
        net.operator("aten::pow", ("self",), (x,), (power,), {"exponent": 1})
        net.give(x, net.mul(g, net.scaled(power)))

    net.derivative(row, (y,), rule)
    return y


def _mean(net: Net, x: Tensor) -> Tensor:
    """Over the last dimension, which is kept."""
    y = net.tensor((*x.shape[:-1], 1), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::mean", ("self",), (x,), (y,), {"dim": [-1], "keepdim": True})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::div", ("self",), (net.expanded(g, len(x.shape) - 1, int(x.shape[-1])),), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _reciprocal_root(net: Net, x: Tensor) -> Tensor:
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::rsqrt", ("self",), (x,), (y,))

    def rule(g: Tensor) -> None:  # -0.5 * g * y ** 3
        cube = net.tensor(y.shape, y.dtype)
        net.operator("aten::pow", ("self",), (y,), (cube,), {"exponent": 3})
        net.give(x, net.mul(net.scaled(g), cube))

    net.derivative(row, (y,), rule)
    return y


def _times_rows(net: Net, x: Tensor, scale: Tensor) -> Tensor:
    """``x`` [..., width] times [..., 1]."""
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::mul", ("self", "other"), (x, scale), (y,))

    def rule(g: Tensor) -> None:
        parts, total = net.mul(g, x), net.tensor(scale.shape, scale.dtype)
        net.operator("aten::sum", ("self",), (parts,), (total,), {"dim": [-1], "keepdim": True})
        net.give(x, net.mul(g, scale))
        net.give(scale, total)

    net.derivative(row, (y,), rule)
    return y
