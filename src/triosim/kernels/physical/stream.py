"""Operators bound by the bytes that they move: memory, the units that issue the accesses, and rows that are summed.

::

    again    = again * read * miss          where a row is longer than what a block keeps (``kept``)
    memory   = (read + written + again) / (memory * delivered * bandwidth * min(1, rows / units))
    units    = ((read + written) / issue + rows * row) / (units * clock)
    seconds  = kernels * launch + (memory^2 + units^2)^(1/2)

Softmax and normalization read a row more than once; the second time it comes from a cache as long as the rows that are
worked on at one time fit.  What misses the last level missed that of the compute unit before: ``miss = lost(z)
lost(y)`` with ``lost(x) = x^2 / (1 + x^2)``, ``z = min(rows, in_flight * units) * row_bytes / cache`` and
``y = in_flight * row_bytes / near``, ``near`` being the unit's own cache.
The norms of Transformer Engine (``register_norm``) keep a row in registers and read it once, 16 bytes at a time; those
of PyTorch (``layer_norm``) read it twice.
A batch norm works on a channel per block, so that few channels leave units, and their part of the bandwidth, idle.  It
takes elements one by one (cuDNN has its ``bn_fw_tr_1C11_kernel_NCHW`` for ``float`` and for ``__half``; PyTorch's
``batch_norm_collect_statistics_kernel`` updates mean and variance with each), so that units issue as many elements of
16 bits in a cycle as of 32, half of the bytes (``half_batch_norm``).
Where the channels of a pixel lie side by side (``nhwc_norm``) all units work on every channel, 16 bytes at a time
(``batch_norm_collect_statistics_channels_last_kernel`` of PyTorch's ``aten/src/ATen/native/cuda/Normalization.cuh``
divides pixels among blocks; cuDNN's ``CUDNN_BATCHNORM_SPATIAL_PERSISTENT``, which PyTorch takes for them, too): all of
the input is gone over before any of it is read again.

What is read and written in turn gets less of some memories than of others, and datasheets tell of which
(:func:`delivered`).  Products and attention, which hardly write, do not: in products whose weights are read once, L40S
with error correction on reaches 0.81 of its bandwidth and H100 0.86, about the 1/16 that check bits take.

Constants hold for all devices; everything about a device is from its datasheet.  Kinds that were not measured on their
own take the constants of ``elementwise``, and an interval as wide as those are off for kinds that were.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import _constants
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.stream import KINDS, Stream

CLASSES = (
    "elementwise", "softmax", "layer_norm", "batch_norm", "pooling", "optimizer", "unmeasured", "register_norm",
    "nhwc_norm", "half_batch_norm",
)  # fmt: skip
"""Kinds with a spread of their own; those without constants in the file have those of ``elementwise``."""
_CLASS = {"copy": "elementwise", "create": "elementwise"}
CLASS_OF = np.array([
    CLASSES.index(_CLASS.get(name, name) if name in (*CLASSES, *_CLASS) else "unmeasured") for name in KINDS
])  # fmt: skip
"""Index into :data:`CLASSES` by kind."""

UNITS, CLOCK = 100.0, 1.5e9
"""Where a datasheet is silent: a data-centre accelerator of the 2020s."""
CACHE_PER_BANDWIDTH = 1.5e-5
"""Bytes of last-level cache per byte per second of memory bandwidth, where the cache is not known (A100 to B200:
1.6e-5 to 2.0e-5)."""

INLINE_ECC = 0.85
"""Part of the bandwidth that GDDR delivers with error correction on (``memory_type`` says ``ECC``; NVIDIA's cards for
servers have it on by default): check bits lie in the same memory, and what writes a part of them reads them first.  A40
and RTX 4090 were 15 % slower with it than without (Chaos, support article "ECC State for Nvidia GPUs").  HBM has wires
for them (NVIDIA, Tesla V100 whitepaper, "ECC Memory Resiliency")."""
FIRST_HBM2 = 900 / (1.5 * 732)
"""Of Pascal GP100, the first GPU with HBM2: Volta delivers 1.5 times its memory bandwidth, at 900 GB/s of the datasheet
over 732 (NVIDIA, Tesla V100 whitepaper, "HBM2 Memory Architecture")."""

CDNA3 = 4.069 / 5.3 / (828.5 / 900)
"""Of MI300's memory, whose eight dies of compute units reach it through four others: BabelStream's copy, mul, add and
triad, on average, on an MI300X (AMD, Instinct documentation, "System validation", BabelStream: 4,256, 4,116, 3,956
and 3,948 GB/s of 5,300) over those on a V100 (812, 810, 846 and 846 of 900, UoB-HPC)."""


@dataclass(frozen=True)
class StreamConstants:
    """Of one class; units and meanings are in ``data/physical/stream.json``."""

    launch_s: float
    memory: float
    issue: float
    row: float
    again: float
    kept: float
    in_flight: float


@lru_cache(maxsize=1)
def load() -> dict[str, StreamConstants]:
    """Constants by class."""
    return _constants.constants("stream", StreamConstants)


def shortest_kernel_s() -> float:
    """Seconds of an elementwise kernel that does next to nothing."""
    return load()["elementwise"].launch_s


@lru_cache(maxsize=1)
def near_caches() -> dict[str, float]:
    """Bytes of a compute unit's first-level data cache by architecture or its first word; ``""`` for all others."""
    return {name: float(row["bytes"]) for name, row in _constants.document("stream")["near"].items()}


def near_cache(device: Accelerator) -> float:
    """Bytes of the first-level data cache of one of the device's compute units."""
    known, words = near_caches(), device.architecture.split(" ")
    for name in (" ".join(words[:2]), words[0]):
        if name in known:
            return known[name]
    return known[""]


def delivered(device: Accelerator) -> float:
    """Part of the bandwidth that a device's memory delivers, 1 for those that the constants hold for."""
    words = device.memory_type.upper().split()
    if words and words[0].startswith("GDDR") and "ECC" in words:
        return INLINE_ECC
    if device.architecture.startswith("CDNA3"):
        return CDNA3
    return FIRST_HBM2 if device.architecture.startswith("Pascal GP100") else 1.0


@lru_cache(maxsize=1)
def spreads() -> dict[str, tuple[float, float]]:
    """Half-widths of the 90 % interval by class, on devices whose families were fitted and on others."""
    return _constants.spreads("stream")


def predict(
    work: Stream, device: Accelerator, constants: dict[str, StreamConstants] | None = None
) -> KernelPredictions:
    """Seconds of each operator on ``device``, with a cold cache.

    Args:
        work: what the operators move, any mixture of kinds.
        device: with its memory bandwidth and whatever else its datasheet gives.
        constants: by class; those that come with the program if None.

    Raises:
        InputError: the device has no memory bandwidth.
    """
    c = _columns(work, constants or load())
    units = float(device.compute_units or UNITS)
    cache = float(device.cache_bytes or CACHE_PER_BANDWIDTH * _constants.bandwidth(device))
    far = _lost(np.minimum(work.rows, c.in_flight * units) * work.row_bytes / cache)
    near = _lost(c.in_flight * work.row_bytes / near_cache(device))
    again = np.where(work.row_bytes > c.kept, c.again * work.read * far * near, 0.0)
    busy = np.where(work.row_bytes > 0, np.minimum(work.rows / units, 1.0), 1.0)
    memory, issue = _bound(work, device, c, again, busy)
    launch = work.kernels * c.launch_s
    body = np.sqrt(memory * memory + issue * issue)
    limit = np.where(memory >= issue, Limit.MEMORY, Limit.COMPUTE)
    limit[launch > body] = Limit.LAUNCH
    return KernelPredictions(launch + body, limit.astype(np.int8))


def least(work: Stream, device: Accelerator) -> NDArray[np.float64]:
    """Seconds that :func:`predict` never says less of: nothing is read again, and no unit is idle.

    A launch and the norm of two sums of what is done: of work that grows by as much with each sample, convex in them.
    """
    c = _columns(work, load())
    return work.kernels * c.launch_s + np.hypot(*_bound(work, device, c, 0.0, 1.0))


def _bound(
    work: Stream, device: Accelerator, c: StreamColumns, again: NDArray[np.float64] | float,
    busy: NDArray[np.float64] | float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Seconds by the memory, of which ``busy`` of the units use their part, and by what the units issue."""
    moved, summed = work.read + work.written, work.row_bytes > 0
    memory = (moved + again) / (c.memory * delivered(device) * _constants.bandwidth(device) * busy)
    rate = float(device.compute_units or UNITS) * (device.clock_hz or CLOCK)
    return memory, (moved / c.issue + np.where(summed, work.rows * c.row, 0.0)) / rate


def _lost(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Part that a cache loses of what is ``x`` times its size: 0 well below 1, 1 well above."""
    square = x * x
    return square / (1.0 + square)


@dataclass(frozen=True)
class StreamColumns:
    """:class:`StreamConstants`, one row per operator."""

    launch_s: NDArray[np.float64]
    memory: NDArray[np.float64]
    issue: NDArray[np.float64]
    row: NDArray[np.float64]
    again: NDArray[np.float64]
    kept: NDArray[np.float64]
    in_flight: NDArray[np.float64]


def _columns(work: Stream, constants: dict[str, StreamConstants]) -> StreamColumns:
    at = CLASS_OF[work.kind]
    return StreamColumns(*(_column(constants, f.name)[at] for f in fields(StreamConstants)))


def _column(constants: dict[str, StreamConstants], name: str) -> NDArray[np.float64]:
    """One constant by class; that of ``elementwise`` where a class is missing."""
    return np.array([getattr(constants.get(one, constants["elementwise"]), name) for one in CLASSES], np.float64)
