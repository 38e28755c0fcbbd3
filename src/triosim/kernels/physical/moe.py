"""Physical model of a layer of experts: two grouped products and the kernels around them, as one time.

Every expert's tokens are padded to whole tiles.  The product into the experts sums over the token's length, that out of
them over the expert's; each is::

    compute = FLOP of padded tiles / sustained + blocks prologue_s / SMs
    feed    = bytes that the tiles read / (feed_rate clock SMs)
    busy    = norm4(compute, feed) + length of the sum * serial_cycles / clock
    memory  = weights of the active experts, tokens in and out, at the bandwidth (the cache's rate where all fit)
    product = norm(memory, busy)

    seconds = launch + align tokens + both products + activating and adding up, at the bandwidth and token_rate

``sustained`` is what the power budget leaves of the peak (norm-6 minimum, as for attention), an operation's energy
being proportional to the bytes of an element.  Families and their tiles (SGLang 0.5):

* ``triton``: 16 x 32 where the tokens that arrive are at most the local experts, else 64 x 64, which read weights in
  pieces of 64 bytes (``large_fraction``); 64 x 128 with scales by block.  Activating and adding up go over the pairs
  with other devices' experts too.  Lengths that are no multiple of 16 elements forbid wide loads (``ragged_factor``).
* ``marlin``: as many rows as hold the mean load (8, 16, 32, 48 or 64) x 128, by the matrix instructions of Ampere,
  whose rate no later device raised: 2,048 operations a clock and multiprocessor at 16 bits (NVIDIA A100 whitepaper).
* ``native``: as many rows as hold the mean load (8, 16, 32, 64 or 128) x 128, at the rate of what tokens are cast to.
* ``cutedsl``: 128 x 128, over buffers that have as many rows for each expert as the fullest one has pairs.
* ``upcast``: as many rows as hold the mean load (32 or 64; 128 from 512 on) x 256, sums of 128 elements at a time,
  split where blocks are fewer than multiprocessors; lengths are padded to 128 elements.  Every block turns the weights
  of its columns into 16 bits, all of its rows sharing them, which takes longer than reading or multiplying them:
  ``convert = elements / (waves WAVE_RATE clock multiprocessors at work)``, another term of norm4.  The rest is
  ``triton``'s.

Where the stack has tiles that were looked for on this device for experts of these sizes (``ExpertCalls.tuned``),
those of ``triton`` follow the mean load instead, read whole cache lines, and keep the matrix units busier
(``tuned_efficiency``): 16 to 128 rows x 128 or 256 columns, as vLLM's ``E=8,N=7168`` on H100 has them.  Wide tiles are
fed fewer bytes for each operation, and feeding draws power too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.estimate import Limit
from triosim.kernels.physical._tables import Device, FamilyConstants, device_of, load
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.moe import FAMILIES, ExpertCalls

MARLIN_ROWS = np.array([8.0, 16.0, 32.0, 48.0, 64.0])
NATIVE_ROWS = np.array([8.0, 16.0, 32.0, 64.0, 128.0])
AMPERE = 2048.0
"""Operations of an SM's matrix instructions per clock at 16 bits, before those of Hopper and Blackwell."""
ALIGNED = 16
"""Elements that a row's length must be a multiple of for wide loads."""
UPCAST_ROWS, UPCAST_COLUMNS, UPCAST_STEP, UPCAST_PADDING = (32.0, 64.0, 128.0), 256.0, 128.0, 128.0
"""Tiles of ``make_default_opt_flags_amd`` (triton_kernels, ``matmul_ogs_details/opt_flags.py``) for weights with scales
on CDNA3, and what vLLM pads their lengths to (``get_padding_alignment`` of its ``mxfp4_utils.py``)."""
MANY, FEW_PAIRS = 512.0, 16.0
"""Rows of an expert from which on tiles have 128 rows, and pairs up to which a block has few waves (ibid.)."""
WAVE_RATE = 0.76
"""Elements that a wave turns into 16 bits in a clock: of one token, 4 x 3072 x 6144 elements took 82.3 us on an MI300X
under Triton 3.6 (ROCm/triton, issue 970), in 288 blocks of 2 waves, each on a multiprocessor of its own."""
FEW_WAVES, MOST_WAVES = 2.0, 8.0
"""Of a block with few pairs, and of others; no more help a multiprocessor, whose four vector units have two each."""

TUNED_ROWS, TUNED_LOADS = np.array([16.0, 32.0, 64.0, 128.0]), np.array([10.0, 28.0, 200.0])
"""Rows of tuned tiles, and pairs of an expert in the mean up to which each but the last is taken (vLLM,
``E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json``)."""
TUNED_WIDE = 100.0
"""Pairs of an expert in the mean from which on they have 256 columns and step by 64, not 128 each (ibid.)."""

GROUPED_ROWS = 8
"""Rows of untuned tiles that take the same columns one after the other, before the next read all weights of the expert
anew (``GROUP_SIZE_M`` of both stacks' rule of thumb)."""


@dataclass(frozen=True)
class GroupedGemmConstants:
    """Constants of grouped matrix products on one family of devices.

    Attributes:
        launch_s: time of the kernels of a layer that does next to nothing, at 1.8 GHz.
        align_s: what sorting the pairs by expert adds, seconds for each pair at 1.8 GHz.
        serial_cycles: clocks of a block for each element of the sum, which no other block can take off it.
        prologue_s: time of a multiprocessor for each block besides its sum (its latencies follow no clock).
        efficiency: part of the peak that full tiles reach when power is no limit.
        tuned_efficiency: the same of tuned tiles.
        joule_per_flop: energy of an operation at 16 bits and full load.
        joule_per_byte: energy of a byte that is fed into the tiles.
        feed_rate: bytes per clock and multiprocessor into the tiles.
        bandwidth_fraction: part of the datasheet's bandwidth that is reached.
        large_fraction: the same for weights that large tiles read.
        cache_fraction: part of the last-level cache that repeated weights may fill and still be served from it.
        cache_rate: bytes per clock and multiprocessor from the cache.
        token_rate: bytes per clock and multiprocessor of the kernels that activate and add up.
        ragged_factor: how much longer the product out of the experts takes when rows are not aligned.
        ragged_narrow: the same for elements of one byte.
        overlap: exponent of the norm that joins memory and computing.
    """

    launch_s: float
    align_s: float
    serial_cycles: float
    prologue_s: float
    efficiency: float
    tuned_efficiency: float
    joule_per_flop: float
    joule_per_byte: float
    feed_rate: float
    bandwidth_fraction: float
    large_fraction: float
    cache_fraction: float
    cache_rate: float
    token_rate: float
    ragged_factor: float
    ragged_narrow: float
    overlap: float


@dataclass(frozen=True)
class Tiles:
    """Tiles of every call: rows, columns, elements of the sum that one step takes, and whether weights come in pieces
    of half a cache line."""

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    step: NDArray[np.float64]
    large: NDArray[np.bool_]


@lru_cache(maxsize=1)
def constants() -> FamilyConstants[GroupedGemmConstants]:
    """The constants that come with the program."""
    return load("moe", "grouped", GroupedGemmConstants)


def predict(
    work: ExpertCalls, device: Accelerator, table: FamilyConstants[GroupedGemmConstants] | None = None
) -> KernelPredictions:
    """Seconds of every call on ``device``.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    table = table or constants()
    seconds, limit = np.zeros(len(work)), np.zeros(len(work), np.int8)
    for code in np.unique(work.family):
        rows = np.flatnonzero(work.family == code)
        seconds[rows], limit[rows] = grouped(work.take(rows), device, table.of(FAMILIES[code]))
    return KernelPredictions(seconds, limit)


def tiles(work: ExpertCalls) -> Tiles:
    """The tiles that the kernels choose."""
    narrow = work.token_bytes < 2
    small = (work.arriving() <= work.local()) & ~narrow
    rows = np.where(small, 16.0, 64.0)
    columns = np.where(small, 32.0, np.where(narrow, 128.0, 64.0))
    step = np.where(small, 64.0, np.where(narrow, 128.0, 32.0))
    mean = work.arriving() * work.topk / work.local() / 0.9
    marlin = MARLIN_ROWS[np.minimum(np.searchsorted(MARLIN_ROWS, mean), len(MARLIN_ROWS) - 1)]
    native = NATIVE_ROWS[np.minimum(np.searchsorted(NATIVE_ROWS, mean), len(NATIVE_ROWS) - 1)]
    is_marlin, is_cute, is_upcast = _is(work, "marlin"), _is(work, "cutedsl"), _is(work, "upcast")
    is_native = _is(work, "native")
    tuned = work.tuned & _is(work, "triton")
    if tuned.any():
        load = work.pairs() * work.share() / work.local()
        rows = np.where(tuned, TUNED_ROWS[np.searchsorted(TUNED_LOADS, load)], rows)
        columns = np.where(tuned, np.where(load < TUNED_WIDE, 128.0, 256.0), columns)
        step = np.where(tuned, np.where(load < TUNED_WIDE, 128.0, 64.0), step)
    if is_upcast.any():
        load = work.pairs() * work.share() / work.local()
        least, most, whole = UPCAST_ROWS
        upcast = np.where(load >= MANY, whole, np.where(load > least, most, least))
        rows, columns = np.where(is_upcast, upcast, rows), np.where(is_upcast, UPCAST_COLUMNS, columns)
        step = np.where(is_upcast, UPCAST_STEP, step)
    wide = is_cute | is_native
    return Tiles(
        np.where(is_marlin, marlin, np.where(is_native, native, np.where(is_cute, 128.0, rows))),
        np.where(is_marlin | wide, 128.0, columns), np.where(is_marlin, 64.0, np.where(wide, 128.0, step)),
        ~small & ~narrow & ~is_marlin & ~wide & ~is_upcast & ~tuned,
    )  # fmt: skip


def padded(work: ExpertCalls, rows: NDArray) -> NDArray[np.float64]:
    """Rows of all tiles: every active expert's load in whole tiles, and other devices' pairs unless skipped."""
    load, each = work.loads()
    high = rows[:, None]
    whole = np.where(load >= 1, np.ceil(load / high), load)  # a load below one: that part of such experts has one
    remote = np.where(work.skips, 0.0, np.ceil(work.remote() / rows))
    return ((whole * each).sum(1) + remote) * rows


def grouped(work: ExpertCalls, device: Accelerator, c: GroupedGemmConstants) -> KernelPredictions:
    """Seconds of calls of one family (see the module's docstring)."""
    d = device_of(device)
    marlin, cute, upcast = _is(work, "marlin"), _is(work, "cutedsl"), _is(work, "upcast")
    native = _is(work, "native")
    if upcast.any():
        hidden, inner = (
            np.where(upcast, np.ceil(length / UPCAST_PADDING) * UPCAST_PADDING, length)
            for length in (work.hidden, work.inner)
        )
        work = replace(work, hidden=hidden, inner=inner)
    tile = tiles(work)
    peak = arithmetic(device).flops[work.dtype]
    peak = np.where(marlin, np.minimum(peak, AMPERE * d.clock * d.units), peak)
    efficiency = np.where(work.tuned & _is(work, "triton"), c.tuned_efficiency, c.efficiency)
    side = work.weight_bytes * tile.columns + work.token_bytes * tile.rows
    joules = c.joule_per_flop * work.token_bytes / 2 + c.joule_per_byte * side / (2 * tile.rows * tile.columns)
    sustained = d.sustained(peak, efficiency, joules)
    height = padded(work, tile.rows) / tile.rows
    pairs = work.pairs() * work.share() + np.where(work.skips, 0.0, work.remote())
    moved = np.where(marlin | cute | native, pairs, work.arriving() * work.topk)
    passed = np.where(work.skips & ~cute & ~native, work.remote() / tile.rows, 0.0)  # blocks that only write zeros
    matrix = work.active() * work.hidden * work.inner * work.weight_bytes
    into = np.where(work.gated, 2.0, 1.0)
    through = d.bytes_s(2 * moved * (work.hidden + work.inner), work.warm, c)
    slow = d.bytes_s(work.weights() + 2 * moved * (work.hidden + work.inner), work.warm, c)
    slow = np.where(tile.large, c.bandwidth_fraction / c.large_fraction, 1.0) * slow
    rounds = np.where(tile.large, pairs / work.active() / (GROUPED_ROWS * tile.rows), 1.0)
    ragged = np.where(work.token_bytes < 2, c.ragged_narrow, c.ragged_factor)
    ragged = np.where((work.inner % ALIGNED != 0) & ~marlin & ~cute & ~native, ragged, 1.0)

    def product(
        columns: NDArray, length: NDArray, matrices: NDArray | float, read: NDArray, factor: NDArray | float
    ) -> tuple[NDArray, NDArray]:
        """Seconds of computing and of memory; ``read`` counts elements, ``factor`` what ragged rows cost."""
        across = np.ceil(columns / tile.columns)
        flop = 2 * height * tile.rows * across * tile.columns * np.ceil(length / tile.step) * tile.step
        compute = factor * (flop / sustained + (height + passed) * across * c.prologue_s / d.units)
        fed = length * across * (height * tile.columns * work.weight_bytes + pairs * work.token_bytes)
        feed = fed / (c.feed_rate * d.clock * d.units)
        convert = np.where(upcast, _converted(work, d, height * across, length), 0.0)
        busy = (compute**4 + feed**4 + convert**4) ** 0.25 + length * c.serial_cycles / d.clock
        again = np.maximum(rounds - 1, 0.0) * matrix * matrices
        missed = 1 / (1 + (c.cache_fraction * d.cache / (columns * length * work.weight_bytes)) ** 4)
        anew = again * missed / (c.bandwidth_fraction * d.bandwidth)
        return busy, factor * matrices * matrix * slow + anew + 2 * (read + moved * columns) * through

    first = product(into * work.inner, work.hidden, into, work.tokens * work.hidden, 1.0)
    second = product(work.hidden, work.inner, 1.0, moved * work.inner, ragged)
    busy, memory = (one + other for one, other in zip(first, second, strict=True))
    body = sum((took[0] ** c.overlap + took[1] ** c.overlap) ** (1 / c.overlap) for took in (first, second))
    tokens = 2 * (moved * (work.hidden + (into + 1) * work.inner) + work.tokens * work.hidden)
    tokens = tokens * (through + 1 / (c.token_rate * d.clock * d.units))
    padding = np.where(cute, work.local() * work.fullest() * (2.5 * work.hidden + (2 * into + 0.5) * work.inner), 0.0)
    tokens = tokens + padding / (c.bandwidth_fraction * d.bandwidth)
    launch = d.launch(c.launch_s + c.align_s * work.arriving() * work.topk)
    limit = np.where(busy > memory + tokens, Limit.COMPUTE, Limit.MEMORY)
    limit = np.where(launch > np.maximum(busy, memory + tokens), Limit.LAUNCH, limit)
    return KernelPredictions(launch + body + tokens, limit.astype(np.int8))


def _converted(work: ExpertCalls, d: Device, blocks: NDArray, length: NDArray) -> NDArray[np.float64]:
    """Seconds in which blocks turn weights into 16 bits, each of its columns along the sum."""
    elements = blocks * UPCAST_COLUMNS * np.ceil(length / UPCAST_STEP) * UPCAST_STEP
    split = blocks * np.maximum(np.floor(d.units / np.maximum(blocks, 1.0)), 1.0)
    waves = np.where(work.pairs() <= FEW_PAIRS, FEW_WAVES, MOST_WAVES) * np.maximum(split / d.units, 1.0)
    rate = WAVE_RATE * np.minimum(waves, MOST_WAVES)
    return np.asarray(elements / (rate * d.clock * np.minimum(split, d.units)), np.float64)


def _is(work: ExpertCalls, family: str) -> NDArray[np.bool_]:
    return np.asarray(work.family == FAMILIES.index(family))
