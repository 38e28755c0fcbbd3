"""Physical model of a layer of experts: two grouped products and the kernels around them, as one time.

Every expert's tokens are padded to whole tiles; blocks of all experts form one set of waves.  With few tokens
(at most as many as local experts) the stacks choose small tiles, else large ones, with constants of their own::

    compute = FLOP of padded tiles / sustained
    feed    = FLOP of padded tiles / (intensity of a tile * feed_rate clock SMs)
    memory  = weights of the active experts, and tokens, at the bandwidth (or the cache's rate where all fit)
    seconds = launch + align tokens + norm(memory, norm(compute, feed))

``intensity`` is FLOP per byte that a tile reads: ``rows cols / (rows + cols)`` times 2 over the bytes of an element.
Families and the choice of the tile: SGLang 0.5 (fused_moe_triton: 16 rows where tokens are at most the local experts,
64 elsewhere; marlin: the first of 8, 16, 32, 48, 64 rows that hold the mean load).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical._tables import Table, device_of, load
from triosim.kernels.physical.predicted import Predicted
from triosim.kernels.work.moe import FAMILIES, Experts
from triosim.workload.trace import DTYPES

SMALL_TILE = (16.0, 32.0)
LARGE_TILE = (64.0, 64.0)
MARLIN_ROWS = np.array([8.0, 16.0, 32.0, 48.0, 64.0])
MARLIN_COLUMNS = 128.0
CUTE_TILE = (128.0, 128.0)


@dataclass(frozen=True)
class Grouped:
    """Constants of one family.

    Attributes:
        launch_s: time of the kernels of a layer that does next to nothing, at 1.8 GHz.
        align_s: what sorting the pairs by expert adds, seconds for each pair (on the host's time scale of one block).
        efficiency: part of the peak that full tiles reach when power is no limit.
        joule_per_flop: energy of an operation at full load.
        feed_rate: bytes per clock and multiprocessor into the tiles.
        bandwidth_fraction: part of the datasheet's bandwidth that is reached, small tiles.
        large_fraction: the same, large tiles.
        cache_fraction: part of the last-level cache that repeated weights may fill and still be served from it.
        cache_rate: bytes per clock and multiprocessor from the cache.
        overlap: exponent of the norm that joins memory and computing.
    """

    launch_s: float
    align_s: float
    efficiency: float
    joule_per_flop: float
    feed_rate: float
    bandwidth_fraction: float
    large_fraction: float
    cache_fraction: float
    cache_rate: float
    overlap: float


@lru_cache(maxsize=1)
def constants() -> Table[Grouped]:
    """The constants that come with the program."""
    return load("moe", "grouped", Grouped)


def predict(work: Experts, device: Accelerator, table: Table[Grouped] | None = None) -> Predicted:
    """Seconds of every call on ``device``.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    table = table or constants()
    seconds, limit = np.zeros(len(work)), np.zeros(len(work), np.int8)
    for code in np.unique(work.family):
        rows = np.flatnonzero(work.family == code)
        seconds[rows], limit[rows] = grouped(work.take(rows), device, table.of(FAMILIES[code]))
    return Predicted(seconds, limit)


def tile(work: Experts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows and columns of the tiles that the kernels choose."""
    small = work.tokens <= work.local()
    rows = np.where(small, SMALL_TILE[0], LARGE_TILE[0])
    columns = np.where(small, SMALL_TILE[1], LARGE_TILE[1])
    mean = work.pairs() / work.local() / 0.9
    marlin = MARLIN_ROWS[np.minimum(np.searchsorted(MARLIN_ROWS, mean), len(MARLIN_ROWS) - 1)]
    is_marlin, is_cute = work.family == FAMILIES.index("marlin"), work.family == FAMILIES.index("cutedsl")
    rows = np.where(is_marlin, marlin, np.where(is_cute, CUTE_TILE[0], rows))
    columns = np.where(is_marlin, MARLIN_COLUMNS, np.where(is_cute, CUTE_TILE[1], columns))
    return rows, columns


def padded(work: Experts, rows: NDArray) -> NDArray[np.float64]:
    """Rows of all tiles: every active expert's load in whole tiles, and other devices' pairs unless skipped."""
    load, each = work.loads()
    high = rows[:, None]
    tiles = np.where(load >= 1, np.ceil(load / high), load)  # a load below one: that part of such experts has one
    remote = np.where(work.skips, 0.0, np.maximum(work.arriving() * work.topk - work.pairs() * work.share(), 0.0))
    return (tiles * each).sum(1) * rows + remote


def grouped(work: Experts, device: Accelerator, c: Grouped) -> Predicted:
    """Seconds of calls of one family (see the module's docstring)."""
    d = device_of(device)
    peak = np.array([device.peak(name) for name in DTYPES])[work.dtype]
    rows, columns = tile(work)
    flop = 2.0 * padded(work, rows) * work.matrices()
    compute = flop / d.sustained(peak, c.efficiency, c.joule_per_flop)
    intensity = 2.0 * rows * columns / (rows * work.token_bytes + columns * work.weight_bytes)
    feed = flop / (intensity * c.feed_rate * d.clock * d.units)
    weights, traffic = work.weights(), work.traffic()
    slow = d.bytes_s(weights + traffic, work.warm, c)
    large = np.where(work.tokens <= work.local(), 1.0, c.bandwidth_fraction / c.large_fraction)
    memory = weights * slow * large + traffic * slow
    busy = (compute**4 + feed**4) ** 0.25
    body = (memory**c.overlap + busy**c.overlap) ** (1 / c.overlap)
    launch = d.launch(c.launch_s + c.align_s * work.arriving() * work.topk)
    limit = np.where(busy > memory, Limit.COMPUTE, Limit.MEMORY)
    limit = np.where(launch > np.maximum(busy, memory), Limit.LAUNCH, limit)
    return Predicted(launch + body, limit.astype(np.int8))
