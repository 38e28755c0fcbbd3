"""Kernels worth measuring: calls of PyTorch's operators over sizes that models have, for any device.

Sizes are drawn evenly in the logarithm of the work, from launches to what takes ``LONGEST_S`` on the device at hand,
with a fixed seed: the same device measures the same kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triosim.sources.runtimes.draws import BLOCK, LONGEST_S, Draws, rounded

aten = torch.ops.aten

LARGE_BYTES = 2**28


class Rates(NamedTuple):
    """What the device does, roughly: FLOP per second by element type, and bytes per second."""

    flop: dict[torch.dtype, float]
    bytes: float


class Case(NamedTuple):
    """One kernel to be measured.

    Attributes:
        what: in words, for the progress bar.
        func: operator to call.
        make: new arguments, on the device.
    """

    what: str
    func: Callable[..., Any]
    make: Callable[[], Sequence[Any]]


class SizeDraws(Draws):
    """Draws sizes; tensors that it makes are on ``device``."""

    def __init__(self, device: str, rates: Rates, longest_s: float = LONGEST_S, seed: int = 0) -> None:
        super().__init__(longest_s, seed)
        self.device = device
        self.rates = rates
        self.copied = False
        self._numbers = torch.randn(2**20, device=device)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers around 0, as activations are: equal ones would cost less power.  Large tensors repeat themselves."""
        count = math.prod(shape)
        if count <= len(self._numbers):
            return self._numbers[:count].to(dtype, copy=True).view(shape)
        whole, rest = divmod(count, len(self._numbers))
        out = torch.empty(count, device=self.device, dtype=dtype)
        out[: count - rest].view(whole, -1).copy_(self._numbers)
        out[count - rest :].copy_(self._numbers[:rest])
        return out.view(shape)

    def indices(self, count: int, below: int) -> Tensor:
        """``count`` whole numbers."""
        return torch.randint(below, (count,), device=self.device)


def cases(sizes: SizeDraws, dtypes: Sequence[torch.dtype]) -> Iterator[Case]:
    """Kernels without end, the kinds taking turns, so that wherever one stops there are some of each.

    Args:
        sizes: draws them.
        dtypes: element types that the device is good at, the most important first.
    """
    for round_ in itertools.count():
        dtype = dtypes[round_ % len(dtypes)]
        for draw in (
            large_copy, matrix, convolution, matrix, stream_of("elementwise", 2 * round_), batch_matrix, attention,
            stream_of("reduction", round_), stream_of("softmax", round_), stream_of("layer_norm", round_), matrix,
            convolution, stream_of("batch_norm", round_), stream_of("copy", round_), stream_of("optimizer", round_),
            stream_of("embedding", round_), stream_of("pooling", round_), stream_of("loss", round_),
            stream_of("elementwise", 2 * round_ + 1), one_image, depthwise, one_image, stream_of("inference", round_),
        ):  # fmt: skip
            yield from draw(sizes, dtype)


def matrix(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """A linear layer or one of its gradients: with a bias or without, the operands lying either way round."""
    side = (s.work(s.rates.flop[dtype]) / 2) ** (1 / 3)
    n, k = s.side(min(side * s.spread(1.5), 32768)), s.side(min(side * s.spread(1.5), 32768))
    m = s.side(min(max(side**3 / (n * k), 1.0), 131072), s.one_of(1, BLOCK))
    layout = s.one_of("as it is", "weight", "input")

    def make() -> Sequence[Any]:
        weight = s.tensor(n, k, dtype=dtype).t() if layout == "weight" else s.tensor(k, n, dtype=dtype)
        return s.tensor(k, m, dtype=dtype).t() if layout == "input" else s.tensor(m, k, dtype=dtype), weight

    if s.one_of(True, False):
        yield Case("linear", aten.mm.default, make)
    else:
        yield Case("linear", aten.addmm.default, lambda: (s.tensor(n, dtype=dtype), *make()))


def batch_matrix(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """Products in a batch."""
    batch = s.one_of(4, 8, 16, 32, 64, 96)
    side = (s.work(s.rates.flop[dtype]) / 2 / batch) ** (1 / 3)
    m, n, k = (s.side(min(max(side * s.spread(1.5), 8), 8192)) for _ in range(3))
    yield Case(
        "batched product", aten.bmm.default,
        lambda: (s.tensor(batch, m, k, dtype=dtype), s.tensor(batch, k, n, dtype=dtype)),
    )  # fmt: skip


def convolution(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """A convolution of an image model, and its gradients."""
    taps, stride = s.one_of((1, 1), (3, 1), (3, 1), (3, 2), (1, 2), (7, 2), (1, 1))
    deep, wide = s.one_of(64, 128, 256, 512), s.one_of(64, 128, 256, 512)
    if taps == 7:
        deep = 3
    side = s.one_of(7, 14, 28, 56, 112) if taps != 7 else s.one_of(112, 224)
    while side > 7 and _macs(deep, wide, taps, side, stride) * 2 > s.longest_s * s.rates.flop[dtype]:
        side //= 2
    flop = 2.0 * _macs(deep, wide, taps, side, stride)
    images = int(min(max(s.work(s.rates.flop[dtype]) / flop, 1), 256))
    rest = [[stride, stride], [taps // 2, taps // 2], [1, 1], False, [0, 0], 1]

    def make() -> Sequence[Any]:
        return s.tensor(images, deep, side, side, dtype=dtype), s.tensor(wide, deep, taps, taps, dtype=dtype)

    yield Case("convolution", aten.convolution.default, lambda: (*make(), None, *rest))

    def backward() -> Sequence[Any]:
        source, weight = make()
        out = math.ceil(side / stride)
        return s.tensor(images, wide, out, out, dtype=dtype), source, weight, [0], *rest, [deep > 3, True, False]

    yield Case("convolution backward", aten.convolution_backward.default, backward)


def _macs(deep: int, wide: int, taps: int, side: int, stride: int) -> float:
    """Multiplications for one image."""
    return float(deep * wide * taps * taps * math.ceil(side / stride) ** 2)


def one_image(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """A convolution of a single image, as networks run it that only infer."""
    taps, stride = s.one_of((1, 1), (3, 1), (1, 1), (3, 2), (1, 2), (5, 1))
    side = s.one_of(7, 14, 14, 28, 28, 56, 112) * stride
    both = math.sqrt(s.work(s.rates.flop[dtype]) / 2 / (side // stride) ** 2 / taps**2)
    deep, wide = (rounded(min(max(both * s.spread(1.2), 8), 2048), 8 if both < 96 else 32) for _ in range(2))
    rest = [[stride, stride], [taps // 2, taps // 2], [1, 1], False, [0, 0], 1]

    def make() -> Sequence[Any]:
        image, weight = s.tensor(1, deep, side, side, dtype=dtype), s.tensor(wide, deep, taps, taps, dtype=dtype)
        return image, weight, s.tensor(wide, dtype=dtype), *rest

    yield Case("convolution", aten.convolution.default, make)


def depthwise(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """A convolution of each channel by itself, of a few images."""
    taps, stride = s.one_of((3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
    images, side = s.one_of(1, 1, 8), s.one_of(7, 14, 28, 56, 112)
    channels = rounded(min(max(_elements(s, dtype, 2) / (images * side * side), 8), 2048), 8)
    rest = [[stride, stride], [taps // 2, taps // 2], [1, 1], False, [0, 0], channels]

    def make() -> Sequence[Any]:
        image = s.tensor(images, channels, side * stride, side * stride, dtype=dtype)
        return image, s.tensor(channels, 1, taps, taps, dtype=dtype), s.tensor(channels, dtype=dtype), *rest

    yield Case("depthwise convolution", aten.convolution.default, make)


def attention(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """Fused attention of whole sequences, and its gradients; on an accelerator in 16 bits only, as models run it."""
    if s.device != "cpu" and dtype == torch.float32:
        return
    head, heads, causal = s.one_of(32, 64, 64, 128), s.one_of(4, 8, 12, 16), s.one_of(True, False)
    length = rounded(2.0 ** s.one_of(6, 7, 8, 9, 10, 11) * s.spread(0.5), 64)
    while length > 64 and 4.0 * heads * length**2 * head > s.longest_s * s.rates.flop[dtype]:
        length = rounded(length / 2, 64)
    flop = 4.0 * heads * length**2 * head
    batch = int(min(max(s.work(s.rates.flop[dtype]) / flop, 1), 64))

    def given() -> list[Tensor]:
        return [s.tensor(batch, heads, length, head, dtype=dtype) for _ in range(3)]

    if s.device == "cpu":
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        yield Case("attention", forward, lambda: (*given(), 0.0, causal))

        def backward() -> Sequence[Any]:
            qkv = given()
            out, sums = forward(*qkv, 0.0, causal)
            return torch.randn_like(out), *qkv, out, sums, 0.0, causal

        yield Case("attention backward", aten._scaled_dot_product_flash_attention_for_cpu_backward.default, backward)
    else:
        forward = aten._scaled_dot_product_flash_attention.default
        yield Case("attention", forward, lambda: (*given(), 0.0, causal, False))

        def gradients() -> Sequence[Any]:
            qkv = given()
            out, sums, first, second, longest, most, seed, offset, _ = forward(*qkv, 0.0, causal, False)
            return (
                torch.randn_like(out), *qkv, out, sums, first, second, longest, most, 0.0, causal, seed, offset
            )  # fmt: skip

        yield Case("attention backward", aten._scaled_dot_product_flash_attention_backward.default, gradients)


def large_copy(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
    """More than any cache holds, for the bandwidth of the memory; once is enough."""
    if not s.copied:
        s.copied = True
        yield Case("copy", aten.copy_.default, lambda: tuple(s.tensor(LARGE_BYTES // 8) for _ in range(2)))


def stream_of(kind: str, round_: int) -> Callable[[SizeDraws, torch.dtype], Iterator[Case]]:
    """Operators of one kind that are bound by what they move; of several, one after another in turn."""
    made = _STREAMS[kind]

    def draw(s: SizeDraws, dtype: torch.dtype) -> Iterator[Case]:
        yield made[round_ % len(made)](s, dtype)

    return draw


Stream = Callable[[SizeDraws, torch.dtype], Case]


def _elements(s: SizeDraws, dtype: torch.dtype, tensors: float) -> int:
    """Elements of each of ``tensors`` tensors that a kernel moves."""
    return rounded(min(s.work(s.rates.bytes) / tensors / dtype.itemsize, 2**27), 64)


def _unary(func: Callable[..., Any], *rest: Any) -> Stream:
    def draw(s: SizeDraws, dtype: torch.dtype) -> Case:
        size = _elements(s, dtype, 2)
        return Case("elementwise", func, lambda: (s.tensor(size, dtype=dtype), *rest))

    return draw


def _binary(func: Callable[..., Any], *rest: Any) -> Stream:
    def draw(s: SizeDraws, dtype: torch.dtype) -> Case:
        size = _elements(s, dtype, 3)
        return Case("elementwise", func, lambda: (s.tensor(size, dtype=dtype), s.tensor(size, dtype=dtype), *rest))

    return draw


def _reduction(func: Callable[..., Any], over: int) -> Stream:
    def draw(s: SizeDraws, dtype: torch.dtype) -> Case:
        columns = s.one_of(64, 256, 1024, 4096)
        rows = max(_elements(s, dtype, 1) // columns, 1)
        return Case("reduction", func, lambda: (s.tensor(rows, columns, dtype=dtype), [over]))

    return draw


def _rows(s: SizeDraws, dtype: torch.dtype, tensors: float, *lengths: int) -> tuple[int, int]:
    length = s.one_of(*lengths)
    return max(_elements(s, dtype, tensors) // length, 1), length


def _softmax(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 2, 128, 512, 1024, 4096, 32768)
    func = s.one_of(aten._softmax.default, aten._log_softmax.default)
    return Case("softmax", func, lambda: (s.tensor(rows, length, dtype=dtype), -1, False))


def _softmax_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 3, 128, 512, 1024, 4096, 32768)
    func = s.one_of(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)

    def make() -> Sequence[Any]:
        return s.tensor(rows, length, dtype=dtype), s.tensor(rows, length, dtype=dtype), -1, dtype

    return Case("softmax backward", func, make)


def _layer_norm(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 2, 256, 768, 1024, 2048, 4096, 8192)

    def make() -> Sequence[Any]:
        weight, bias = (s.tensor(length, dtype=dtype) for _ in range(2))
        return s.tensor(rows, length, dtype=dtype), [length], weight, bias, 1e-5

    return Case("layer norm", aten.native_layer_norm.default, make)


def _layer_norm_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 3, 256, 768, 1024, 2048, 4096, 8192)

    def make() -> Sequence[Any]:
        source, weight, bias = s.tensor(rows, length, dtype=dtype), s.tensor(length, dtype=dtype), s.tensor(length)
        _, mean, scale = aten.native_layer_norm.default(source, [length], weight, bias.to(dtype), 1e-5)
        return torch.randn_like(source), source, [length], mean, scale, weight, bias.to(dtype), [True, True, True]

    return Case("layer norm backward", aten.native_layer_norm_backward.default, make)


def _batch_norm_shape(s: SizeDraws, tensors: float) -> tuple[int, int, int, int]:
    channels, side = s.one_of(64, 128, 256, 512), s.one_of(7, 14, 28, 56)
    images = min(max(_elements(s, torch.float32, tensors) // (channels * side * side), 1), 256)
    return images, channels, side, side


def _batch_norm(s: SizeDraws, dtype: torch.dtype) -> Case:
    shape = _batch_norm_shape(s, 2)

    def make() -> Sequence[Any]:
        weight, bias, mean, variance = (torch.ones(shape[1], device=s.device) for _ in range(4))
        return s.tensor(*shape), weight, bias, mean, variance, True, 0.1, 1e-5

    return Case("batch norm", aten.native_batch_norm.default, make)


def _batch_norm_of_inference(s: SizeDraws, dtype: torch.dtype) -> Case:
    shape = _batch_norm_shape(s, 2)

    def make() -> Sequence[Any]:
        weight, bias, mean, variance = (torch.ones(shape[1], device=s.device) for _ in range(4))
        return s.tensor(*shape), weight, bias, mean, variance, False, 0.1, 1e-5

    return Case("batch norm", aten.native_batch_norm.default, make)


def _concatenated(s: SizeDraws, dtype: torch.dtype) -> Case:
    shape = _batch_norm_shape(s, 4)
    return Case("copy", aten.cat.default, lambda: ([s.tensor(*shape) for _ in range(2)], 1))


def _pool_of_one(s: SizeDraws, dtype: torch.dtype) -> Case:
    _, channels, side, _ = _batch_norm_shape(s, 2)
    return Case(
        "pooling", aten.max_pool2d_with_indices.default,
        lambda: (s.tensor(1, channels, 2 * side, 2 * side), [3, 3], [2, 2], [1, 1]),
    )  # fmt: skip


def _global_pool(s: SizeDraws, dtype: torch.dtype) -> Case:
    shape = _batch_norm_shape(s, 1)
    return Case("reduction", aten.mean.dim, lambda: (s.tensor(*shape), [2, 3], True))


def _batch_norm_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    shape = _batch_norm_shape(s, 3)

    def make() -> Sequence[Any]:
        weight, mean, variance, saved, scale = (torch.ones(shape[1], device=s.device) for _ in range(5))
        gradient, source = s.tensor(*shape), s.tensor(*shape)
        return gradient, source, weight, mean, variance, saved, scale, True, 1e-5, [True, True, True]

    return Case("batch norm backward", aten.native_batch_norm_backward.default, make)


def _clone(s: SizeDraws, dtype: torch.dtype) -> Case:
    size = _elements(s, dtype, 2)
    return Case("copy", aten.clone.default, lambda: (s.tensor(size, dtype=dtype),))


def _transpose(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows = rounded(math.sqrt(_elements(s, dtype, 2)))
    place = torch.contiguous_format
    return Case(
        "copy", lambda x: aten.clone.default(x, memory_format=place), lambda: (s.tensor(rows, rows, dtype=dtype).t(),)
    )


def _cat(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 4, 256, 1024)
    return Case("copy", aten.cat.default, lambda: ([s.tensor(rows, length, dtype=dtype) for _ in range(2)], 1))


def _foreach(func: Callable[..., Any], lists: int, *rest: Any) -> Stream:
    def draw(s: SizeDraws, dtype: torch.dtype) -> Case:
        length, total = s.one_of(2**12, 2**16, 2**20), _elements(s, torch.float32, lists + 1)
        count = min(max(total // length, 1), 128)
        return Case(
            "optimizer", func, lambda: (*([s.tensor(length) for _ in range(count)] for _ in range(lists)), *rest)
        )

    return draw


def _embedding(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 2, 256, 768, 1024, 4096)
    return Case(
        "embedding", aten.embedding.default, lambda: (s.tensor(8192, length, dtype=dtype), s.indices(rows, 8192))
    )


def _embedding_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, dtype, 2, 256, 768, 1024, 4096)

    def make() -> Sequence[Any]:
        return s.tensor(rows, length, dtype=dtype), s.indices(rows, 8192), 8192, -1, False

    return Case("embedding backward", aten.embedding_dense_backward.default, make)


def _max_pool(s: SizeDraws, dtype: torch.dtype) -> Case:
    images, channels, side, _ = _batch_norm_shape(s, 2)
    return Case(
        "pooling", aten.max_pool2d_with_indices.default,
        lambda: (s.tensor(images, channels, 2 * side, 2 * side), [3, 3], [2, 2], [1, 1]),
    )  # fmt: skip


def _average_pool(s: SizeDraws, dtype: torch.dtype) -> Case:
    images, channels, side, _ = _batch_norm_shape(s, 2)
    return Case(
        "pooling", aten.avg_pool2d.default, lambda: (s.tensor(images, channels, 2 * side, 2 * side), [2, 2], [2, 2])
    )


def _max_pool_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    images, channels, side, _ = _batch_norm_shape(s, 2)
    window = [3, 3], [2, 2], [1, 1], [1, 1], False

    def make() -> Sequence[Any]:
        source = s.tensor(images, channels, 2 * side, 2 * side)
        out, at = aten.max_pool2d_with_indices.default(source, *window)
        return torch.randn_like(out), source, *window, at

    return Case("pooling backward", aten.max_pool2d_with_indices_backward.default, make)


def _nll(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, torch.float32, 1, 1000, 8192, 32768)
    return Case(
        "loss", aten.nll_loss_forward.default, lambda: (s.tensor(rows, length), s.indices(rows, length), None, 1, -100)
    )


def _nll_backward(s: SizeDraws, dtype: torch.dtype) -> Case:
    rows, length = _rows(s, torch.float32, 1, 1000, 8192, 32768)

    def make() -> Sequence[Any]:
        one = torch.ones((), device=s.device)
        return one, s.tensor(rows, length), s.indices(rows, length), None, 1, -100, one * rows

    return Case("loss backward", aten.nll_loss_backward.default, make)


_GELU = partial(aten.gelu.default, approximate="tanh")  # as GPT has it; it takes about twice as long on a CPU
_GELU_BACKWARD = partial(aten.gelu_backward.default, approximate="tanh")

_STREAMS: dict[str, tuple[Stream, ...]] = {
    "elementwise": (
        _binary(aten.add.Tensor), _unary(_GELU), _binary(aten.threshold_backward.default, 0),
        _unary(aten.relu_.default), _binary(aten.mul.Tensor), _binary(_GELU_BACKWARD),
        _binary(aten.add_.Tensor), _unary(aten.silu.default), _unary(aten.tanh.default), _unary(aten.mul.Scalar, 0.5),
    ),
    "reduction": (
        _reduction(aten.sum.dim_IntList, 0), _reduction(aten.mean.dim, 1), _reduction(aten.sum.dim_IntList, 1),
    ),
    "inference": (
        _batch_norm_of_inference, _unary(aten.relu.default), _pool_of_one, _unary(aten.hardswish.default),
        _unary(aten.clamp.default, 0, 6), _concatenated, _unary(aten.erf.default), _global_pool,
        _unary(aten.hardsigmoid.default), _unary(aten.div.Scalar, 8.0), _unary(aten.sigmoid.default),
    ),
    "softmax": (_softmax, _softmax_backward),
    "layer_norm": (_layer_norm, _layer_norm_backward),
    "batch_norm": (_batch_norm, _batch_norm_backward),
    "copy": (_clone, _transpose, _cat),
    "optimizer": (
        _foreach(aten._foreach_add_.List, 2), _foreach(aten._foreach_mul_.Scalar, 1, 0.9),
        _foreach(aten._foreach_addcdiv_.Scalar, 3), _foreach(aten._foreach_lerp_.Scalar, 2, 0.1),
        _foreach(aten._foreach_sqrt.default, 1),
    ),
    "embedding": (_embedding, _embedding_backward),
    "pooling": (_max_pool, _average_pool, _max_pool_backward),
    "loss": (_nll, _nll_backward),
}  # fmt: skip
