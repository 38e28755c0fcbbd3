"""Windows of an image: places [batch, rows, columns, width] cut into them, moved, put together, and masked."""

from __future__ import annotations

from triosim.sources.models._diffusion import times_each
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Shape, Tensor


def in_windows(net: Net, x: Tensor, window: int) -> Tensor:
    """[batch, rows, columns, width] as [windows, places, width]."""
    batch, rows, columns, width = x.shape
    shape = (batch, rows // window, window, columns // window, window, width)
    x = net.clone(net.transpose(net.view(x, shape, strided_gradient=True), 2, 3))
    return net.view(x, (batch * (rows // window * (columns // window)), window**2, width))


def together(net: Net, x: Tensor, shape: Shape, window: int) -> Tensor:
    """What :func:`in_windows` cut, put together again."""
    batch, rows, columns, width = shape
    apart = (batch, rows // window, columns // window, window, window, width)
    return net.view(net.clone(net.transpose(net.view(x, apart, strided_gradient=True), 2, 3)), shape)


def merged(net: Net, x: Tensor, sides: list[int], strided: bool) -> tuple[Tensor, list[int]]:
    """Four neighbours each as one place of twice the width, and the sides of what is left."""
    batch, _, width = x.shape
    y = net.view(x, (batch, *sides, width))
    y = padded(net, y, 2, 1) if any(side % 2 for side in sides) else y
    after = [side // 2 for side in y.shape[1:3]]
    parts = [_every_second(net, _every_second(net, y, 1, row), 2, column) for column in range(2) for row in range(2)]
    y = net.view(net.cat(parts, 3), (batch, after[0] * after[1], 4 * width))
    return net.linear("reduction", net.layer_norm("norm", y), strided_gradient=strided), after


def _every_second(net: Net, x: Tensor, dim: int, start: int) -> Tensor:
    shape, args = list(x.shape), {"dim": dim, "start": start, "end": x.shape[dim], "step": 2}
    shape[dim] = shape[dim] // 2
    y = net.alias(x, tuple(shape))
    row = net.operator("aten::slice", ("self",), (x,), (y,), args, view=True)

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::slice_backward", ("grad_output",), (g,), (dx,), args)
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def padded(net: Net, x: Tensor, multiple: int, dim: int) -> Tensor:
    """Two dimensions from ``dim`` on filled up with zeros to multiples; copied even where there is nothing to fill."""
    more = [-size % multiple for size in x.shape[dim : dim + 2]]
    shape = (*x.shape[:dim], *(n + m for n, m in zip(x.shape[dim:], more, strict=False)), *x.shape[dim + 2 :])
    pad = [0, 0] * (len(x.shape) - dim - 2) + [0, more[1], 0, more[0]]
    return _copied(net, "aten::constant_pad_nd", x, shape, {"pad": pad}, {"pad": [-n for n in pad]})


def rolled(net: Net, x: Tensor) -> Tensor:
    """Places moved by half a window, round the image."""
    return _copied(net, "aten::roll", x, x.shape, {"dims": [1, 2]}, {"dims": [1, 2]})


def _copied(
    net: Net, name: str, x: Tensor, shape: Shape, args: dict[str, list[int]], back: dict[str, list[int]]
) -> Tensor:
    """A copy whose derivative is a copy by the same operator."""
    y = net.tensor(shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator(name, ("self",), (x,), (y,), args)

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator(name, ("self",), (g,), (dx,), back)
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def dropped(net: Net, x: Tensor, rate: float) -> Tensor:
    """Samples [batch, places, width] whose block is left out set to zero."""
    if not net.training or rate == 0:
        return x
    drawn = net.tensor((x.shape[0], 1, 1), x.dtype)
    net.operator("aten::rand", (), (), (drawn,))
    drawn = net.unary("aten::floor", net.shifted(drawn))
    return times_each(net, net.scaled(x, "aten::div"), drawn)


def mask_of(net: Net, x: Tensor, shape: Shape, window: int) -> Tensor:
    """What keeps places apart that shifting brought into one window, added to scores, [windows, 1, places, places]."""
    _, rows, columns, _ = shape

    def step(name: str, dtype: str, made: Shape, *read: Tensor) -> Tensor:
        y = net.tensor(made, dtype)
        net.operator(f"aten::{name}", ("self", "other")[: len(read)], read, (y,))
        return y

    regions = []
    for at in [step("arange", "int64", (size,)) for size in (rows, columns)]:
        near = [net.to(step("ge", "bool", at.shape, at), "int64") for _ in range(2)]
        regions.append(step("add", "int64", at.shape, *near))
    of_rows = step("mul", "int64", (1, rows, 1, 1), net.view(regions[0], (1, rows, 1, 1)))
    y = step("add", "int64", (1, rows, columns, 1), of_rows, net.view(regions[1], (1, 1, columns, 1)))
    y = in_windows(net, net.to(y, x.dtype), window)
    count, places, _ = y.shape
    square = (count, places, places)
    y = step("sub", x.dtype, square, net.transpose(y, 1, 2), y)
    for name in ("ne", "eq"):
        y = step("masked_fill", x.dtype, square, y, step(name, "bool", square, y))
    return y


def of_each(net: Net, mask: Tensor, batch: int) -> Tensor:
    """A mask [windows of an image, places, places] repeated for all images, [windows, 1, places, places]."""
    count, places, _ = mask.shape
    y = net.unsqueeze(net.unsqueeze(mask, 1), 0)
    y = net.expanded(y, 0, batch)
    return net.view(net.clone(y), (batch * count, 1, places, places))
