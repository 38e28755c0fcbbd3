"""Physical model of scans that keep a state: the kernels of a chunked scan, one after another.

Mamba-2 (``mamba_ssm/ops/triton/ssd_combined.py``) convolves, sums up decays, makes the state of each chunk, passes
states on, multiplies B and C of a chunk, and makes results of both; its backward does all but the last again, and then
has one kernel for each gradient.  The gated delta rule (``fla/ops/gated_delta_rule/chunk.py``) norms queries and keys,
multiplies keys with keys, inverts that within a chunk, corrects keys and values, goes through the chunks one by one
with the state on the chip, and makes results of states and pairs.  Each kernel takes::

    compute = FLOP of whole tiles / (sustained min(1, blocks / SMs)) + blocks prologue_s / SMs
    feed    = bytes that tiles of 64 x 64 read / (feed_rate clock SMs min(1, blocks / SMs))
    chain   = length of the sums in a block * serial_cycles / clock * max(1, blocks / (SMs resident))
    seconds = launch + norm(bytes / bandwidth, norm4(compute, feed) + chain)

A block's products follow one another, each of the result of the one before, and with 255 registers a thread two blocks
of four warps fill a multiprocessor: little hides them.  A kernel that goes through the chunks has few blocks and a sum
as long as the sequence.  Blocks are compiled by Triton as those of fused experts are, whose constants are taken
(:mod:`triosim.kernels.physical.moe`), launches those of elementwise kernels.  No constant was fitted to a scan:
published times judge the model and give its interval alone (``validation/fit/physical_scan.py``).  Lightning attention
(``fla/ops/common/chunk_h.py`` and ``chunk_o.py``), which neither convolves nor gates, makes states and results, and in
its backward states again, their gradients, those of queries and keys, and those of values.  Mamba's own scan, which is
no product, is another (:mod:`triosim.kernels.physical.selective_scan`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import _constants, moe, stream
from triosim.kernels.physical._tables import device_of
from triosim.kernels.physical.moe import GroupedGemmConstants
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.scan import WIDE, ScanCalls

TILE = 64.0
"""Rows and columns of a tile: the chunk of the delta rule, and the heads of Mamba-2 (64 in all that are published)."""
RESIDENT = 65536 / (4 * 32 * 255.0)
"""Blocks of four warps whose threads have all 255 registers in the 65,536 of a multiprocessor (CUDA C++ Programming
Guide, "Technical Specifications per Compute Capability")."""
SOLVED = 16.0
"""Side of the blocks in which a chunk's triangle is inverted (``fla/ops/utils/solve_tril.py``)."""


@dataclass(frozen=True)
class ScanConstants:
    """Constants of a scan's kernels: those of tiles, and the seconds of a launch."""

    tiles: GroupedGemmConstants
    launch_s: float


class ScanKernel(NamedTuple):
    """One kernel of a scan.

    Attributes:
        flop: on matrix units, masked parts of a tile included.
        moved: bytes from and to the memory.
        blocks: thread blocks.
        serial: elements of the sums that a block goes through one after another.
        launches: kernels like this one.
    """

    flop: NDArray[np.float64]
    moved: NDArray[np.float64]
    blocks: NDArray[np.float64]
    serial: NDArray[np.float64]
    launches: float = 1.0


def constants() -> ScanConstants:
    """The constants that come with the program."""
    return ScanConstants(moe.constants().of("triton"), stream.load()["elementwise"].launch_s)


@lru_cache(maxsize=1)
def spreads() -> dict[str, tuple[float, float]]:
    """Half-widths of the 90 % interval by class, on devices whose families tiles were fitted on and on others."""
    return _constants.spreads("scan")


def predict(work: ScanCalls, device: Accelerator, c: ScanConstants | None = None) -> KernelPredictions:
    """Seconds of every call on ``device``.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    c = c or constants()
    d, t = device_of(device), c.tiles
    peak = arithmetic(device).flops[work.dtype]
    fed_by = t.joule_per_byte * work.item / TILE  # joules of feeding a tile's operands, for each operation
    rate = d.sustained(peak, t.efficiency, t.joule_per_flop * work.item / 2 + fed_by)
    seconds, computing, moving, launching = (np.zeros(len(work)) for _ in range(4))
    plain = ~work.delta & ~work.gated & (work.window == 0)
    for own, kernels in ((~work.delta & ~plain, _mamba(work)), (work.delta, _delta(work)), (plain, _lightning(work))):
        for kernel, there in kernels:
            there = there & own & ~work.selective
            busy_units = np.minimum(np.maximum(kernel.blocks, 1.0) / d.units, 1.0)
            compute = kernel.flop / (rate * busy_units) + kernel.blocks * t.prologue_s / d.units
            fed = kernel.flop * work.item / TILE  # each of two operands of a tile is read once for TILE columns
            feed = fed / (t.feed_rate * d.clock * d.units * busy_units)
            rounds = np.maximum(kernel.blocks / (d.units * RESIDENT), 1.0)
            chain = kernel.serial * t.serial_cycles / d.clock * rounds
            busy = np.where(kernel.flop > 0, (compute**4 + feed**4) ** 0.25 + chain, 0.0)
            memory = kernel.moved / (t.bandwidth_fraction * d.bandwidth)
            launch = kernel.launches * c.launch_s
            body = (busy**t.overlap + memory**t.overlap) ** (1 / t.overlap)
            seconds += np.where(there, launch + body, 0.0)
            computing += np.where(there, busy, 0.0)
            moving += np.where(there, memory, 0.0)
            launching += np.where(there, launch, 0.0)
    limit = np.where(computing > moving, Limit.COMPUTE, Limit.MEMORY)
    limit = np.where(launching > np.maximum(computing, moving), Limit.LAUNCH, limit)
    selective = np.flatnonzero(work.selective)
    if selective.size:
        from triosim.kernels.physical import selective_scan

        found = selective_scan.predict(work.take(selective), device, c.launch_s)
        seconds[selective], limit[selective] = found.seconds, found.limit
    return KernelPredictions(seconds, limit.astype(np.int8))


Kernels = Iterator[tuple[ScanKernel, NDArray[np.bool_]]]
"""Kernels, and the calls that run them."""


def _kernel(
    flop: NDArray, moved: NDArray, blocks: NDArray, serial: NDArray, there: NDArray, launches: float = 1.0
) -> tuple[ScanKernel, NDArray[np.bool_]]:
    return ScanKernel(flop, moved, blocks, serial, launches), there


def _mamba(w: ScanCalls) -> Kernels:
    """Kernels of Mamba-2's scan; pairs of a chunk are multiplied whole where no mask is passed (``ssd_bmm.py``)."""
    tokens, zero, every = w.tokens(), np.zeros(len(w)), np.ones(len(w), bool)
    keys, values, rows, states = w.keys(), w.values(), w.rows(), w.states()
    steps, pairs = 2 * WIDE * rows, WIDE * w.sequences * w.chunks() * w.groups * w.chunk**2
    of_states = 2 * tokens * w.heads * w.head * w.state
    of_pairs = tokens * w.heads * w.head * (w.chunk + TILE)  # tiles on the diagonal whole
    of_chunks = 2 * tokens * w.groups * w.state * w.chunk
    cells = w.sequences * w.chunks()
    heads = cells * w.heads * np.ceil(w.head / TILE)
    by_rows, by_state = heads * np.ceil(w.chunk / TILE), heads * np.ceil(w.state / TILE)
    square = cells * w.groups * np.ceil(w.chunk / TILE) ** 2
    back, forward, convolved = w.backward, ~w.backward, w.window > 0

    # again in the backward
    yield _kernel(zero, 2 * (values + 2 * keys), zero, zero, convolved)
    yield _kernel(zero, rows * w.item + steps, zero, zero, every, 3.0)  # decays of A_log, sums of steps
    yield _kernel(of_states, values + keys + steps + WIDE * states, by_state, w.chunk, every)
    yield _kernel(zero, (WIDE + np.where(back, WIDE, w.item)) * states, zero, zero, every)  # states passed on
    yield _kernel(of_chunks, 2 * keys + pairs, square, w.state, every)
    # forward alone: results, which are gated in the same kernel, by that which norms them, or later
    results = np.where(w.normed | ~w.gated, 2, 4) * values + keys + pairs + steps + w.item * states
    yield _kernel(of_states + of_pairs, results, by_rows, w.state + w.chunk, forward)
    yield _kernel(zero, 3 * values, zero, zero, forward & w.normed)
    # gradients: of the gate and the norm; of states, which are passed back; of x; of B and C, from states and pairs; of
    # pairs; of decays
    yield _kernel(zero, 6 * values, zero, zero, back & w.gated)
    yield _kernel(of_states, values + keys + WIDE * states, by_state, w.chunk, back)
    yield _kernel(zero, (2 * WIDE + 2 * w.item) * states, zero, zero, back)
    of_x = 3 * values + keys + pairs + steps + w.item * states
    yield _kernel(of_states + of_pairs, of_x, by_rows, w.state + w.chunk, back)
    for _ in range(2):
        yield _kernel(of_states, values + (1 + WIDE / w.item) * keys + steps + w.item * states, by_rows, w.head, back)
        yield _kernel(of_chunks, (2 + WIDE / w.item) * keys + pairs, square, w.chunk, back)
    yield _kernel(of_pairs, 2 * values + steps + pairs, square * w.heads / w.groups, w.head, back)
    yield _kernel(of_pairs, 2 * values + steps + pairs, by_rows, w.head, back)
    yield _kernel(zero, 12 * WIDE * rows, zero, zero, back, 9.0)  # sums of decays turned round, of steps and biases
    yield _kernel(zero, 3 * (values + 2 * keys), zero, zero, back & convolved)


def _lightning(w: ScanCalls) -> Kernels:
    """Kernels of linear attention whose heads decay by constants; a chunk is a tile, all of it multiplied."""
    tokens, every = w.tokens(), np.ones(len(w), bool)
    keys, values, states = w.keys(), w.values(), w.states() * w.item
    of_states = 2 * tokens * w.heads * w.head * w.state
    by_key, by_value = 2 * w.rows() * w.chunk * w.state, 2 * w.rows() * w.chunk * w.head
    cells = w.sequences * w.chunks() * w.heads
    one_by_one = w.sequences * w.heads * np.ceil(w.head / TILE) * np.ceil(w.state / TILE)
    by_value_tiles, by_key_tiles = cells * np.ceil(w.head / TILE), cells * np.ceil(w.state / TILE)
    through, back = w.chunks() * w.chunk, w.backward

    yield _kernel(of_states, keys + values + states, one_by_one, through, every)
    results = of_states + by_key + by_value, 2 * keys + 2 * values + states
    yield _kernel(*results, by_value_tiles, 2 * w.state + w.chunk, ~back)
    yield _kernel(of_states, keys + values + states, one_by_one, through, back)
    of_keys = 2 * of_states + 2 * by_key + by_value, 4 * keys + 2 * values + 2 * states
    yield _kernel(*of_keys, by_key_tiles, 3 * w.head + 2 * w.chunk, back)
    yield _kernel(
        of_states + by_key + by_value, 2 * keys + 2 * values + states, by_value_tiles, 2 * w.state + w.chunk, back
    )


def _delta(w: ScanCalls) -> Kernels:
    """Kernels of the gated delta rule, also where each element of a key decays by itself."""
    tokens, zero, every = w.tokens(), np.zeros(len(w)), np.ones(len(w), bool)
    keys, values, rows, decays = w.keys(), w.values(), w.rows(), w.decays()
    wide_keys = rows * w.state * w.item  # corrected keys, of each head of values
    states, square = w.states() * w.item, rows * w.chunk * w.item
    of_states = 2 * tokens * w.heads * w.head * w.state
    by_key, by_value = 2 * rows * w.chunk * w.state, 2 * rows * w.chunk * w.head
    cells = w.sequences * w.chunks() * w.heads
    by_tiles = cells * np.ceil(w.head / TILE)
    one_by_one = w.sequences * w.heads * np.ceil(w.head / TILE)  # blocks that go through the chunks
    through = w.chunks() * (w.state + w.chunk)
    back, forward = w.backward, ~w.backward

    # norms of queries and keys, sums of decays
    yield _kernel(zero, np.where(back, 6.0, 4.0) * keys + 2 * WIDE * decays, zero, zero, every, 3.0)
    # keys with keys, and the inverse
    yield _kernel(by_key, keys + 2 * WIDE * decays + rows * w.chunk * WIDE, cells, w.state, forward)
    solve = 2 * rows * w.chunk * w.chunk / 2
    yield _kernel(solve, rows * w.chunk * WIDE + square, cells, w.chunk**2 / SOLVED, forward)
    # corrected keys and values, states chunk by chunk; again in the backward
    corrected = keys + 2 * values + wide_keys + square + 2 * WIDE * decays
    parts = np.ceil(w.state / TILE) + np.ceil(w.head / TILE)
    yield _kernel(by_key + by_value, corrected, cells, w.chunk * parts, every)
    passed = keys + wide_keys + 2 * values + states + WIDE * decays
    yield _kernel(2 * of_states, passed, one_by_one, through, every)
    # results
    yield _kernel(
        of_states + by_key + by_value, 2 * keys + 2 * values + states, by_tiles, 2 * w.state + w.chunk, forward
    )
    # gradients: of values within a chunk; of states chunk by chunk; of queries, keys and decays; of what was corrected
    yield _kernel(by_key + by_value, 2 * keys + 2 * values, cells, w.state + w.chunk * np.ceil(w.head / TILE), back)
    of_dh = 2 * keys + wide_keys + 3 * values + states
    yield _kernel(3 * of_states, of_dh, one_by_one, through + w.chunks() * w.chunk, back)
    wide_gradients = 3 * wide_keys + 2 * WIDE * decays
    yield _kernel(
        3 * of_states + by_value * np.ceil(w.state / TILE) + 2 * by_key,
        2 * keys + 3 * values + 2 * states + wide_keys + wide_gradients,
        cells * np.ceil(w.state / TILE), 4 * w.head + 2 * w.chunk, back,
    )  # fmt: skip
    of_wy = keys + 3 * values + 2 * wide_keys + square + 4 * WIDE * decays
    yield _kernel(
        4 * by_key + 3 * by_value + 2 * rows * w.chunk**2,
        of_wy,
        cells,
        w.chunk * (2 + 2 * parts + 3 * np.ceil(w.state / TILE)),
        back,
    )
    yield _kernel(zero, 3 * wide_keys + 6 * WIDE * decays, zero, zero, back, 3.0)  # sums of parts
