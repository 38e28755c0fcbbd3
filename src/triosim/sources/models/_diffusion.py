"""What diffusion models are made of beside transformers: embedded times, and what a condition shifts and scales."""

from __future__ import annotations

import math

from triosim.core.errors import InputError
from triosim.sources.models._broadcast import plus, times_each
from triosim.sources.models._family import PIXELS
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category


def check_positions(size: int | None, sample_size: int) -> None:
    """Refuse images of another size than a model has positions for.

    Args:
        size: of the images, pixels; None for the model's own.
        sample_size: of the model, in latents.

    Raises:
        InputError: it has none for them.
    """
    if size not in (None, PIXELS * sample_size):
        raise InputError(
            f"the model has positions for images of {PIXELS * sample_size} pixels, not {size}: leave the size out, or "
            f"give sample_size = {(size or 0) // PIXELS} in its configuration"
        )


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


def group_norm(net: Net, name: str, x: Tensor, groups: int, strided_gradient: bool = False) -> Tensor:
    """``torch.nn.GroupNorm`` of [batch, channels, ...]; ``strided_gradient`` as of :meth:`Net.view`."""
    batch, channels, *sides = x.shape
    args = {"N": int(batch), "C": channels, "HxW": math.prod(sides), "group": groups}
    with net.module(name, "GroupNorm"):
        weight, bias = net.parameter("weight"), net.parameter("bias")
        x = net.raised(x)
        y = net.tensor(x.shape, net.normed(x.dtype), needs_grad=net.training)
        mean, rstd = (net.tensor((batch, groups), "float32") for _ in range(2))
        row = net.operator(
            "aten::native_group_norm", ("input", "weight", "bias"), (x, weight, bias), (y, mean, rstd), args
        )

    def rule(g: Tensor) -> None:
        g = net.clone(g) if strided_gradient else g
        gradients = [net.tensor(p.shape, p.dtype) for p in (x, weight, bias)]
        roles = ("grad_out", "input", "mean", "rstd", "weight")
        net.operator("aten::native_group_norm_backward", roles, (g, x, mean, rstd, weight), gradients, args)
        for tensor, gradient in zip((x, weight, bias), gradients, strict=True):
            net.give(tensor, gradient)

    net.derivative(row, (y,), rule)
    return y


def residual_weights(w: Weights, name: str, inputs: int, outputs: int, condition: int = 0) -> None:
    """Parameters of :func:`residual`, with those that a condition of so many elements needs."""
    w.norm(f"{name}.norm1", inputs)
    w.conv2d(f"{name}.conv1", inputs, outputs, 3, bias=True)
    if condition:
        w.linear(f"{name}.time_emb_proj", condition, outputs)
    w.norm(f"{name}.norm2", outputs)
    w.conv2d(f"{name}.conv2", outputs, outputs, 3, bias=True)
    if inputs != outputs:
        w.conv2d(f"{name}.conv_shortcut", inputs, outputs, 1, bias=True)


def residual(net: Net, name: str, x: Tensor, groups: int, condition: Tensor | None = None) -> Tensor:
    """``diffusers``' ``ResnetBlock2D`` of [batch, channels, height, width], conditioned by [batch, size] or not."""
    with net.module(name, "ResnetBlock2D"):
        y = net.conv2d("conv1", net.silu(group_norm(net, "norm1", x, groups)), 1, 1)
        if condition is not None:
            time = net.linear("time_emb_proj", net.silu(condition))
            y = plus(net, y, net.unsqueeze(net.unsqueeze(time, 2), 3))
        y = net.conv2d("conv2", net.silu(group_norm(net, "norm2", y, groups)), 1, 1)
        if x.shape[1] != y.shape[1]:
            x = net.conv2d("conv_shortcut", x)
        return net.scaled(net.add(x, y), "aten::div")


def doubled(net: Net, x: Tensor) -> Tensor:
    """An image [batch, channels, height, width] with each element four times."""
    size = [2 * x.shape[2], 2 * x.shape[3]]
    y = net.tensor((*x.shape[:2], *size), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::upsample_nearest2d", ("input",), (x,), (y,), {"output_size": size})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        args = {"output_size": size, "input_size": [int(n) for n in x.shape]}
        net.operator("aten::upsample_nearest2d_backward", ("grad_output",), (g,), (dx,), args)
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
