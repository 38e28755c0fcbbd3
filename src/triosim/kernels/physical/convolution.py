"""Convolutions on a GPU: the fastest of the library's algorithms.

A pass (output, gradient of the input, gradient of the weight) is a matrix product in disguise, the *implicit GEMM*
(Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", arXiv:1410.0759, section 3)::

    pass               m                     n                  k
    forward            images * out          out channels       in channels * taps
    data gradient      images * in           in channels        out channels * taps of a phase
    weight gradient    out channels          in channels * taps images * out

where a stride ``s`` sorts the input's positions into phases, of which ``min(kernel, s)`` in each direction see up to
``ceil(kernel / s)`` taps.  The product is cut into tiles like any other: ``u`` blocks per compute unit in
``w = (1 - wave) u + wave ceil(u) + tail`` waves of ``2 tm tn (k + ends)`` operations at ``sustained / units *
eff(tile)``.  Compute and memory join by a 4-norm.

On the vector units 3 x 3 convolutions without a stride also have the minimal filtering algorithms of Winograd (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016): F(2x2, 3x3) in one kernel, 16
multiplications for 4 outputs, in blocks of 4 x 8 tiles and 32 channels; and F(4x4, 3x3), 36 for 16 outputs, as 36
products between kernels that transform input, weight and output through the memory.

On the matrix units tensors that lie as images x channels x positions are first brought to channels last, and the
result back; a convolution of one tap without a stride needs neither, as it is a product per image.  Channels are filled
up to whole steps of the matrix unit.  Where channels lie side by side from the start (``channels_last``) the implicit
GEMM is a matrix product that reads each tensor once, and is priced as one (:mod:`triosim.kernels.physical.gemm`), with
channels filled up to 16 bytes, what a load takes at once (NVIDIA, Convolutional Layers User's Guide, "Channels In And
Out").  In 16 bits images that lie otherwise are turned for the same kernels, before and after (the guide, "Tensor
Layouts In Memory": NHWC avoids transposing input and output), unless what was fitted to a step in TF32 is faster.

Few constants hold for all devices; everything about a device is from its datasheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import Multiplication, MultiplicationMethod, multiplication, unit_of
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import _constants, fallbacks, gemm
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import VECTOR, Gemm
from triosim.operators import HALF

CHUNK = 8192
"""Rows at a time: what is at work stays in a core's cache."""

SIMT_MENU = ((128, 128), (128, 64), (128, 32))
TENSOR_MENU = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
WINOGRAD_MENU = ((128, 128), (128, 64), (64, 64), (32, 128))
"""Tiles of the result, rows x columns, that the libraries have in common."""

REFERENCE_TILE = 64.0
"""``tm tn / (tm + tn)`` of the 128 x 128 tile, whose efficiency is 1 by definition."""
REFERENCE_NM = 7.0
LEAST_SPLIT = 128.0
"""Terms of the sum that one block of a split has at least."""
MOST_SPLIT = 64.0


@dataclass(frozen=True)
class ConvolutionConstants:
    """Of one engine; units and meanings are in ``data/physical/convolution.json``."""

    launch_s: float
    reach: float
    joule: float
    process: float
    tile: float
    ends: float
    wave: float
    tail: float
    memory: float
    layout: float
    step: float
    fused: float
    fused_ends: float
    fused_memory: float
    filtered: float
    filtered_ends: float
    filtered_memory: float
    filtered_s: float
    split_s: float
    data_gradient: float
    weight_gradient: float
    depthwise: float


@lru_cache(maxsize=1)
def load() -> dict[str, ConvolutionConstants]:
    """Constants by engine, ``"simt"`` and ``"tensor"``."""
    return _constants.constants("convolution", ConvolutionConstants)


@lru_cache(maxsize=1)
def spreads() -> dict[str, tuple[float, float]]:
    """Half-widths of the 90 % interval by engine, on devices whose families were fitted and on others."""
    return _constants.spreads("convolution")


@dataclass(frozen=True)
class _Chip:
    device: Accelerator
    units: float
    peak: float
    vector_peak: float
    bandwidth: float
    power: float  # watts per joule-per-FLOP at the reference process: multiply by 1 / joule for FLOP/s


_UNITS, _NM = 100.0, 7.0
"""Compute units and process in nm where the datasheet is silent: a data-centre accelerator of the 2020s."""


def _chip(device: Accelerator, how: Multiplication, process: float) -> _Chip:
    shrink = (device.nm or _NM) / REFERENCE_NM
    power = (device.tdp_w or math.inf) / shrink**process
    units = float(device.compute_units or _UNITS)
    peak, vector = (device.peak(one.dtype) * one.rate for one in (how, multiplication(device, "float32")))
    return _Chip(device, units, peak, vector, _constants.bandwidth(device), power)


def engine(dtype: int) -> str:
    """Which of ``simt`` and ``tensor`` multiplies the type of this code where a device has units for it."""
    return "simt" if unit_of(DTYPES[dtype]) == "simt" else "tensor"


def predict(
    work: ConvolutionCalls, device: Accelerator, constants: dict[str, ConvolutionConstants] | None = None
) -> KernelPredictions:
    """Seconds of each convolution on ``device``, all its passes together.

    Args:
        work: convolutions, any mixture of element types and passes.
        device: with its peaks, memory bandwidth and whatever else its datasheet gives.
        constants: by engine; those that come with the program if None.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    constants = constants or load()
    seconds, limit = np.empty(len(work)), np.empty(len(work), np.int8)
    for code in np.unique(work.dtype).tolist():
        how = multiplication(device, DTYPES[code])
        kind = "simt" if how.unit == "simt" else "tensor"
        c = constants[kind]
        chip = _chip(device, how, c.process)
        rows = np.flatnonzero(work.dtype == code)
        if how.method == MultiplicationMethod.EMULATED:
            alone = _lone(work)[rows]  # in every type
            slow, rows = rows[~alone], rows[alone]
            seconds[slow], limit[slow] = fallbacks.convolution(work.take(slow), device)
        for start in range(0, len(rows), CHUNK):
            at = rows[start : start + CHUNK]
            seconds[at], limit[at] = _call(work.take(at), chip, c, kind == "simt")
    return KernelPredictions(seconds, limit)


def _call(work: ConvolutionCalls, chip: _Chip, c: ConvolutionConstants, simt: bool) -> tuple[NDArray, NDArray]:
    """All passes of each call, and what binds it."""
    total = np.zeros(len(work))
    for asked, one in (
        (work.forward, _forward), (work.data_gradient, _data_gradient), (work.weight_gradient, _weight_gradient)
    ):  # fmt: skip
        if asked.all():
            total += one(work, chip, c, simt)
        elif asked.any():
            rows = np.flatnonzero(asked)
            total[rows] += one(work.take(rows), chip, c, simt)
    rate = c.memory * chip.bandwidth
    total += (work.bias_gradient * work.output_bytes() + work.accumulates * 3.0 * work.input_bytes()) / rate
    memory = work.bytes() / rate
    limit = np.where(total > 2.0 * memory, Limit.COMPUTE, Limit.MEMORY)
    limit[total < 2.0 * c.launch_s * work.passes()] = Limit.LAUNCH
    return total, limit.astype(np.int8)


@dataclass(frozen=True)
class _Pass:
    """One pass as a product: ``m x n`` sums of ``k`` terms, and the same as a product per image where that is one."""

    m: NDArray
    n: NDArray
    k: NDArray
    batch: NDArray
    rows_in: NDArray  # positions and channels of what is read and written, for Winograd's tiles
    columns_in: NDArray
    deep: NDArray
    wide: NDArray
    converted: NDArray  # bytes of activations that change their layout
    operands: tuple[NDArray, NDArray, NDArray]  # bytes of what is multiplied and of the result


def _forward(w: ConvolutionCalls, chip: _Chip, c: ConvolutionConstants, simt: bool) -> NDArray[np.float64]:
    out = w.out_rows * w.out_columns
    p = _Pass(
        w.images * out, w.out_channels, _steps(w, w.in_channels, c) * w.taps(), w.groups, w.out_rows, w.out_columns,
        w.in_channels, w.out_channels, w.input_bytes() + w.output_bytes(),
        (w.input_bytes(), w.weight_bytes(), w.output_bytes()),
    )  # fmt: skip
    seconds = _fastest(w, p, chip, c, simt, out, split=False)
    return _or_channels_last(seconds, w, p, chip, c, simt, split=False)


def _data_gradient(w: ConvolutionCalls, chip: _Chip, c: ConvolutionConstants, simt: bool) -> NDArray[np.float64]:
    positions = w.in_rows * w.in_columns
    p = _Pass(
        w.images * positions, w.in_channels, _steps(w, w.out_channels, c) * _phase(w), w.groups, w.in_rows,
        w.in_columns, w.out_channels, w.in_channels, w.input_bytes() + w.output_bytes(),
        (w.output_bytes(), w.weight_bytes(), w.input_bytes()),
    )  # fmt: skip
    seconds = _fastest(w, p, chip, c, simt, positions, split=False) * c.data_gradient
    return _or_channels_last(seconds, w, p, chip, c, simt, split=False)


def _phase(w: ConvolutionCalls) -> NDArray[np.float64]:
    """Taps that a position of the input sees, on average over the phases of a stride."""
    side = np.sqrt(w.stride)
    taps = np.ones(len(w))
    for kernel in (w.kernel_rows, w.kernel_columns):
        taps *= np.ceil(kernel / side) * np.minimum(kernel / side, 1.0)
    return taps


def _weight_gradient(w: ConvolutionCalls, chip: _Chip, c: ConvolutionConstants, simt: bool) -> NDArray[np.float64]:
    out = w.out_rows * w.out_columns
    p = _Pass(
        w.out_channels, w.in_channels * w.taps(), w.images * out, w.groups, w.out_rows, w.out_columns,
        w.in_channels, w.out_channels, w.input_bytes() + w.output_bytes(),
        (w.output_bytes(), w.input_bytes(), w.weight_bytes()),
    )  # fmt: skip
    seconds = _fastest(w, p, chip, c, simt, out, split=True) * c.weight_gradient
    return _or_channels_last(seconds, w, p, chip, c, simt, split=True)


_LOAD_BYTES = 16.0
"""What a thread loads at once."""


def _steps(w: ConvolutionCalls, channels: NDArray, c: ConvolutionConstants) -> NDArray[np.float64]:
    """Channels filled up to whole steps of the unit that multiplies, or to whole loads where they lie side by side."""
    step = np.where(w.channels_last, np.minimum(_LOAD_BYTES / w.item, c.step), c.step)
    return np.ceil(channels / step) * step


def _or_channels_last(
    seconds: NDArray, w: ConvolutionCalls, p: _Pass, chip: _Chip, c: ConvolutionConstants, simt: bool, split: bool
) -> NDArray[np.float64]:
    """The times of a pass, those on channels that lie side by side as products that read each tensor once, and those in
    16 bits as the same products of images that are turned before and after, where that is faster.

    Several groups may share a product, with zeros between them: more operations, but loads and tiles that are filled.
    """
    told = w.channels_last | (w.item == HALF)
    rows = np.flatnonzero(told & ~_lone(w)) if not simt else np.zeros(0, np.int64)
    if not rows.size:
        return seconds
    groups = p.batch[rows]
    turned = np.where(w.channels_last, 0.0, 2.0 * p.converted / (c.layout * chip.bandwidth))
    seconds[w.channels_last & told & ~_lone(w)] = np.inf
    for together in 2.0 ** np.arange(int(np.log2(groups.max())) + 1):
        at = rows[groups >= together]
        own, batch = w.take(at), np.ceil(p.batch[at] / together)
        if split:  # result: channels x (channels at each tap)
            m, n, k = p.m[at] * together, p.n[at] * together, p.k[at]
        else:  # result: positions x channels
            m, n, taps = p.m[at], p.n[at] * together, p.k[at] / _steps(own, p.deep[at], c)
            k = _steps(own, p.deep[at] * together, c) * taps
        a, b, result = (of[at] / (batch * x * y) for of, x, y in zip(p.operands, (m, n, m), (k, k, n), strict=True))
        never = np.zeros(len(at), bool)
        products = Gemm(
            m, n, k, batch, own.dtype, a, b, result, never, never, never, never, never, np.full(len(m), VECTOR)
        )  # fmt: skip
        found = gemm.predict(products, chip.device, gemm.load().constants).seconds
        seconds[at] = np.minimum(seconds[at], found + turned[at])
    return seconds


def _lone(w: ConvolutionCalls) -> NDArray[np.bool_]:
    """Convolutions of a channel by itself, which PyTorch's own kernels run."""
    return (w.in_channels == 1) & (w.groups > 1)


def _fastest(
    w: ConvolutionCalls, p: _Pass, chip: _Chip, c: ConvolutionConstants, simt: bool, positions: NDArray, split: bool
) -> NDArray[np.float64]:
    once = w.input_bytes() + w.output_bytes() + w.weight_bytes()
    memory = once / (c.memory * chip.bandwidth)
    menu = SIMT_MENU if simt else TENSOR_MENU
    best = _product(p.m, p.n, p.k, p.batch, memory, chip, c, menu, c.reach, c.ends, split)
    if simt:
        if not split:
            plain = (w.kernel_rows == 3) & (w.kernel_columns == 3) & (w.stride == 1) & (w.groups == 1)
            minimal = np.minimum(_fused(w, p, once, chip, c), _filtered(w, p, chip, c))
            best = np.where(plain, np.minimum(best, minimal), best)
    else:
        best += 2.0 * p.converted / (c.layout * chip.bandwidth)
        one = np.flatnonzero((w.taps() == 1) & (w.stride == 1))
        if one.size:
            images, n, k = w.images[one], p.wide[one], p.deep[one]
            if split:
                m, n, k = p.m[one], p.n[one], p.k[one]
                images = np.ones(len(one))
            else:
                m = positions[one]
            direct = _product(m, n, k, p.batch[one] * images, memory[one], chip, c, menu, c.reach, c.ends, split)
            best[one] = np.minimum(best[one], direct)
    lone = np.flatnonzero(_lone(w))
    if lone.size:  # a channel by itself: a kernel on the vector units that reads each tensor once
        flop = 2.0 * p.m[lone] * p.n[lone] * w.taps()[lone] * w.groups[lone] if not split else w.flop()[lone]
        best[lone] = _join(flop / (c.depthwise * chip.vector_peak), memory[lone])
    return best + c.launch_s


def _sustained(chip: _Chip, c: ConvolutionConstants, reach: float) -> float:
    """FLOP/s that large products reach, under the peak and under the power limit."""
    return float(((reach * chip.peak) ** -6 + (chip.power / c.joule) ** -6) ** (-1 / 6))


def _waves(u: NDArray, c: ConvolutionConstants) -> NDArray[np.float64]:
    return np.where(u > 1.0, (1.0 - c.wave) * u + c.wave * np.ceil(u), 1.0) + c.tail


def _join(a: NDArray, b: NDArray) -> NDArray[np.float64]:
    return np.sqrt(np.sqrt((a * a) ** 2 + (b * b) ** 2))


def _product(
    m: NDArray, n: NDArray, k: NDArray, batch: NDArray, memory: NDArray, chip: _Chip, c: ConvolutionConstants,
    menu: Iterable[tuple[int, int]], reach: float, ends: float, split: bool,
) -> NDArray[np.float64]:  # fmt: skip
    """Time of the fastest tile; with ``split`` the sum may be cut so that every unit has a block."""
    rate = _sustained(chip, c, reach) / chip.units
    best = np.full(len(m), np.inf)
    for tm, tn in menu:
        intensity = tm * tn / (tm + tn)
        of_tile = 2.0 * tm * tn / (rate * intensity / (intensity + c.tile) * (1.0 + c.tile / REFERENCE_TILE))
        blocks = np.ceil(m / tm) * np.ceil(n / tn) * batch
        parts = np.ones(len(m))
        if split:
            wanted = np.clip(np.minimum(chip.units / blocks, k / LEAST_SPLIT), 1.0, MOST_SPLIT)
            parts = np.exp2(np.floor(np.log2(wanted)))
        time = _join(_waves(blocks * parts / chip.units, c) * of_tile * (k / parts + ends), memory)
        if split:
            sums = 8.0 * parts * m * n * batch / (c.memory * chip.bandwidth)
            time = np.where(parts > 1.0, time + sums + c.split_s, time)
        np.minimum(best, time, out=best)
    return best


FUSED_ROWS, FUSED_COLUMNS, FUSED_CHANNELS = 4, 8, 32
"""Winograd tiles, and channels of the result, of one block of the fused kernel."""


def _fused(w: ConvolutionCalls, p: _Pass, once: NDArray, chip: _Chip, c: ConvolutionConstants) -> NDArray[np.float64]:
    """F(2x2, 3x3) in one kernel; the weight is transformed before."""
    rate = _sustained(chip, c, c.fused) / chip.units
    down, across = np.ceil(p.rows_in / 2), np.ceil(p.columns_in / 2)
    blocks = w.images * np.ceil(down / FUSED_ROWS) * np.ceil(across / FUSED_COLUMNS) * np.ceil(p.wide / FUSED_CHANNELS)
    of_block = 2.0 * 16 * FUSED_ROWS * FUSED_COLUMNS * FUSED_CHANNELS * (np.ceil(p.deep / 8) * 8 + c.fused_ends) / rate
    weights = (9 + 16) / 9 * w.weight_bytes()
    memory = c.fused_memory * chip.bandwidth
    return _join(_waves(blocks / chip.units, c) * of_block, once / memory) + weights / memory + c.launch_s


def _filtered(w: ConvolutionCalls, p: _Pass, chip: _Chip, c: ConvolutionConstants) -> NDArray[np.float64]:
    """F(4x4, 3x3): transforms of input, weight and output through the memory around 36 products."""
    rate = c.filtered_memory * chip.bandwidth
    tiles = w.images * np.ceil(p.rows_in / 4) * np.ceil(p.columns_in / 4)
    transformed = 36 * w.item * (tiles * (p.deep + p.wide) + p.deep * p.wide)
    product = _product(
        tiles, p.wide, p.deep, np.full(len(w), 36.0), transformed / rate, chip, c, WINOGRAD_MENU, c.filtered,
        c.filtered_ends, False,
    )  # fmt: skip
    return product + (transformed + w.input_bytes() + w.output_bytes() + w.weight_bytes()) / rate + c.filtered_s
