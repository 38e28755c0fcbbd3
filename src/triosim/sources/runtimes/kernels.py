"""Networks of one operator that are worth measuring: those that networks are made of when they infer.

Sizes are those of one image or sequence, sometimes a few; see :mod:`~triosim.sources.runtimes.draws`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from triosim.core.dataclass import dataclass
from triosim.sources.runtimes.draws import Draws, rounded
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph


class RuntimeRates(NamedTuple):
    """What the device does under a runtime, roughly: FLOP and bytes per second."""

    flop: float
    bytes: float


@dataclass(frozen=True)
class KernelNetwork:
    """One kernel to be measured.

    Attributes:
        what: in words.
        graph: with nothing but the kernel.
        within: the same behind a convolution, as it stands in a network, whose result a runtime may have laid out in a
            way of its own; None where that makes no difference.
    """

    what: str
    graph: WrittenGraph
    within: WrittenGraph | None = None


Drawn = Callable[[Draws, RuntimeRates], KernelNetwork]


def kernels(draws: Draws, rates: RuntimeRates) -> Iterator[KernelNetwork]:
    """Kernels without end: the smallest and the largest of each kind, then the kinds taking turns, so that wherever one
    stops there are some of each."""
    yield from _corners()
    for draws.end in (0, 1):
        for group in _GROUPS:
            yield from (drawn(draws, rates) for drawn in group)
    draws.end = None
    turns = [itertools.cycle(group) for group in _GROUPS]
    while True:
        for turn in turns:
            yield next(turn)(draws, rates)


def _elements(draws: Draws, rates: RuntimeRates, tensors: float) -> int:
    """Elements of each of ``tensors`` float32 tensors that a kernel moves."""
    return rounded(min(draws.work(rates.bytes) / tensors / 4, 2**24), 64)


def _image(draws: Draws, rates: RuntimeRates, tensors: float) -> tuple[int, int, int]:
    """Channels and sides of one image, of about as many elements as :func:`_elements` draws."""
    side = draws.one_of(7, 14, 28, 56, 112)
    channels = min(max(_elements(draws, rates, tensors) / side**2, 8), 2048)
    return rounded(channels, 8 if channels < 96 else 32), side, side


def _convolution(*shapes: tuple[int, int]) -> Drawn:
    """Dense ones of these numbers of taps and strides."""

    def drawn(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
        taps, stride = draws.one_of(*shapes)
        side = draws.one_of(7, 14, 14, 28, 28, 56, 112) * stride
        if taps == stride == 1 and draws.one_of(*_ONE_PLACE):
            side = 1  # of what global pooling has left
        flop = draws.work(rates.flop)
        both = math.sqrt(flop / 2 / (side // stride) ** 2 / taps**2)
        deep, wide = (rounded(min(max(both * draws.spread(1.2), 8), 2048), 8 if both < 96 else 32) for _ in range(2))
        net = GraphDraft()
        return KernelNetwork(
            "convolution", net.graph(net.convolution(net.input("x", 1, deep, side, side), wide, taps, stride))
        )

    return drawn


def _first_convolution(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """Of an image."""
    taps, stride, wide = draws.one_of((3, 2, 16), (3, 2, 32), (7, 2, 64), (3, 1, 64), (16, 16, 192), (11, 4, 64))
    side = draws.one_of(128, 160, 192, 224, 256)
    net = GraphDraft()
    x = net.input("x", 1, 3, side, side)
    y = net.patches(x, wide, taps) if taps == stride else net.convolution(x, wide, taps, stride)
    return KernelNetwork("convolution", net.graph(y))


def _depthwise(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    taps, stride = draws.one_of((3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
    channels, side, _ = _image(draws, rates, 2)
    net = GraphDraft()
    x = net.input("x", 1, channels, side * stride, side * stride)
    return KernelNetwork("depthwise convolution", net.graph(net.convolution(x, channels, taps, stride, channels)))


def _linear(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """The last layers of an image network, or those of an MLP: few rows, or some."""
    rows = draws.one_of(1, 1, 1, 4, 16, 64, 256)
    size = math.sqrt(min(draws.work(rates.flop) / 2 / rows, draws.work(rates.bytes) / 4))
    deep, wide = (draws.side(min(max(size * draws.spread(1.5), 2), 8192), 2) for _ in range(2))
    net = GraphDraft()
    return KernelNetwork("linear", net.graph(net.linear(net.input("x", rows, deep), wide)))


def _tokens(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """A layer over the tokens of one sequence."""
    rows = draws.one_of(16, 32, 64, 128, 197, 256, 384, 512)
    size = math.sqrt(draws.work(rates.flop) / 2 / rows)
    deep, wide = (draws.side(min(max(size * draws.spread(1.5), 8), 8192)) for _ in range(2))
    net = GraphDraft()
    return KernelNetwork("linear", net.graph(net.linear(net.input("x", 1, rows, deep), wide, bias=False)))


def _batched(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """Products of attention: scores, or what they weigh."""
    heads, head = draws.one_of(2, 4, 8, 12, 16), draws.one_of(32, 64, 64, 96)
    length = rounded(min(max(math.sqrt(draws.work(rates.flop) / 2 / heads / head), 8), 1024))
    net = GraphDraft()
    first, second = draws.one_of(((length, head), (head, length)), ((length, length), (length, head)))
    a, b = net.input("a", 1, heads, *first), net.input("b", 1, heads, *second)
    return KernelNetwork("batched product", net.graph(net.product(a, b)))


def _pointwise(type_: str, **attributes: float) -> Drawn:
    def drawn(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
        net = GraphDraft()
        x = net.input("x", 1, *_image(draws, rates, 2))
        return KernelNetwork("elementwise", net.graph(net.same(type_, x, **attributes)))

    return drawn


def _clip(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net = GraphDraft()
    return KernelNetwork("elementwise", net.graph(net.clip(net.input("x", 1, *_image(draws, rates, 2)))))


def _binary(type_: str) -> Drawn:
    """Of two tensors of equal size, or of one and a number for each channel."""

    def drawn(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
        net, shape = GraphDraft(), _image(draws, rates, 3)
        x = net.input("x", 1, *shape)
        y = net.input("y", 1, shape[0], 1, 1) if draws.one_of(False, False, True) else net.input("y", 1, *shape)
        return KernelNetwork("elementwise", net.graph(net.same(type_, x, y)))

    return drawn


def _bias(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """A bias, or a scale, of tokens."""
    width = draws.one_of(128, 192, 256, 384, 512, 768, 1024, 3072)
    rows = max(_elements(draws, rates, 2) // width, 1)
    net = GraphDraft()
    y = net.same(draws.one_of("Add", "Mul"), net.input("x", 1, rows, width), net.weight(width))
    return KernelNetwork("elementwise", net.graph(y))


def _with_number(type_: str, number: float) -> Drawn:
    def drawn(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
        net = GraphDraft()
        x = net.input("x", 1, _elements(draws, rates, 2))
        other = net.constant(number, dtype="float32", shape=())
        return KernelNetwork("elementwise", net.graph(net.same(type_, x, other)))

    return drawn


def _batch_norm(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net = GraphDraft()
    return KernelNetwork("batch norm", net.graph(net.batch_norm(net.input("x", 1, *_image(draws, rates, 2)))))


def _rows(draws: Draws, rates: RuntimeRates, *lengths: int) -> tuple[int, int]:
    length = draws.one_of(*lengths)
    return max(_elements(draws, rates, 2) // length, 1), length


def _layer_norm(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net = GraphDraft()
    x = net.input("x", 1, *_rows(draws, rates, 128, 192, 256, 384, 768, 1024, 2048))
    return KernelNetwork("layer norm", net.graph(net.layer_norm(x)))


def _softmax(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net = GraphDraft()
    x = net.input("x", 1, *_rows(draws, rates, 32, 64, 128, 197, 256, 512, 1000, 4096))
    return KernelNetwork("softmax", net.graph(net.same("Softmax", x, axis=-1)))


def _mean(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net = GraphDraft()
    x = net.input("x", 1, *_rows(draws, rates, 64, 128, 256, 768, 1024))
    return KernelNetwork("reduction", net.graph(net.mean(x, draws.one_of(-1, 1))))


def _of_image(what: str, kernel: Callable[..., str], *choices: tuple[int, ...]) -> Drawn:
    """A kernel over one image, also measured behind a convolution; it is called with a draft, a tensor and one of these
    choices."""

    def drawn(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
        channels, side, _ = _image(draws, rates, 1.5)
        choice = draws.one_of(*choices)
        alone, behind = GraphDraft(), GraphDraft()
        x = alone.input("x", 1, channels, side, side)
        before = behind.convolution(behind.input("x", 1, _FEW_CHANNELS, side, side), channels)
        within = behind.graph(kernel(behind, before, *choice))
        return KernelNetwork(what, alone.graph(kernel(alone, x, *choice)), within)

    return drawn


_ONE_PLACE = (True, False, False, False, False)
"""Of the convolutions of one tap a fifth have but one position."""
_FEW_CHANNELS = 16
"""Of the image that the convolution before a kernel reads: it should take little."""


def _max_pool(net: GraphDraft, x: str, taps: int, stride: int) -> str:
    return net.pool(x, "MaxPool", taps, stride)


def _average_pool(net: GraphDraft, x: str, taps: int, stride: int) -> str:
    return net.pool(x, "AveragePool", taps, stride, padding=0 if taps == stride else None)


def _global_pool(net: GraphDraft, x: str) -> str:
    return net.global_pool(x)


def _concat(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    net, shape = GraphDraft(), _image(draws, rates, 4)
    return KernelNetwork("copy", net.graph(net.concat(1, net.input("x", 1, *shape), net.input("y", 1, *shape))))


def _transpose(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    """Heads and tokens, or channels and positions, change places."""
    width = draws.one_of(128, 256, 384, 768)
    rows, head = max(_elements(draws, rates, 2) // width, 1), draws.one_of(32, 64)
    net = GraphDraft()
    if draws.one_of(True, False):
        x = net.input("x", 1, rows, width // head, head)
        return KernelNetwork("copy", net.graph(net.transpose(x, *draws.one_of((0, 2, 1, 3), (0, 2, 3, 1)))))
    return KernelNetwork("copy", net.graph(net.transpose(net.input("x", 1, rows, width), 0, 2, 1)))


def _cut(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    channels, side, _ = _image(draws, rates, 2)
    net = GraphDraft()
    x = net.input("x", 1, 2 * channels, side, side)
    return KernelNetwork("copy", net.graph(net.cut(x, 1, 0, channels)))


def _gather(draws: Draws, rates: RuntimeRates) -> KernelNetwork:
    width = draws.one_of(128, 256, 384, 768)
    rows = max(min(_elements(draws, rates, 2) // width, 4096), 1)
    net = GraphDraft()
    indices = net.input("x", 1, rows, dtype="int64")
    return KernelNetwork("embedding", net.graph(net.gather(30522, width, indices)))


def _corners() -> Iterator[KernelNetwork]:
    """Sizes that networks have and draws may miss: few classes, patches, gates of one number for each channel."""
    for width, classes in ((256, 2), (1024, 10), (2048, 1000)):
        for rows in (1, 128):
            net = GraphDraft()
            yield KernelNetwork("linear", net.graph(net.linear(net.input("x", rows, width), classes)))
    for taps, wide in ((4, 96), (16, 192), (32, 768)):
        net = GraphDraft()
        yield KernelNetwork("convolution", net.graph(net.patches(net.input("x", 1, 3, 224, 224), wide, taps)))
    for type_ in ("Relu", "HardSigmoid", "Sigmoid", "HardSwish"):
        net = GraphDraft()
        yield KernelNetwork("elementwise", net.graph(net.same(type_, net.input("x", 1, 8, 1, 1))))


def large_copy() -> KernelNetwork:
    """More than any cache holds, for the bandwidth of the memory."""
    net = GraphDraft()
    return KernelNetwork("copy", net.graph(net.concat(1, *(net.input(name, 1, LARGE // 8) for name in "xy"))))


LARGE = 2**28
"""Bytes that :func:`large_copy` reads and writes."""


def product(side: int) -> KernelNetwork:
    """A square product."""
    net = GraphDraft()
    y = net.linear(net.input("x", 1, side, side), side, bias=False)
    return KernelNetwork("product", net.graph(y))


_WINDOWS = ((3, 2), (2, 2), (3, 1))
_GROUPS: tuple[tuple[Drawn, ...], ...] = (
    (_convolution((1, 1)),),
    (_depthwise,),
    (_convolution((3, 1)),),
    (_convolution((3, 2)), _first_convolution, _convolution((1, 1)), _convolution((1, 2), (5, 1))),
    (_linear, _tokens),
    (
        _pointwise("Relu"), _binary("Add"), _clip, _pointwise("Sigmoid"), _binary("Mul"), _pointwise("HardSwish"),
        _pointwise("Erf"), _pointwise("HardSigmoid"), _pointwise("Tanh"), _with_number("Div", 8.0), _pointwise("Exp"),
        _with_number("Pow", 2.0), _pointwise("Sqrt"),
    ),
    (_tokens, _batched),
    (_bias, _of_image("pooling", _max_pool, *_WINDOWS), _layer_norm, _softmax),
    (
        _of_image("pooling", _average_pool, (2, 2), (3, 1), (7, 7)), _batch_norm, _mean,
        _of_image("pooling", _global_pool, ()), _concat, _transpose, _cut, _gather,
    ),
)  # fmt: skip
"""Kinds that take turns; within one, the kernels do."""
