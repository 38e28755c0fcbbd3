"""Physical model of attention: tiles of queries over the multiprocessors, keys and values from memory or cache.

One set of constants per kernel family and phase, nothing per device: devices differ by their datasheets alone.

Prefill, one thread block per tile of ``tile`` queries (some families pack heads that share keys into one tile)::

    pair    = norm(FLOP of a pair / (sustained / SMs), softmax_cycles / (clock exponentials))
    compute = norm2(pairs of padded tiles / SMs, pairs of the longest tile) pair
    memory  = bytes * (miss / (bandwidth_fraction bandwidth) + (1 - miss) / (cache_rate clock SMs))
    seconds = launch + norm(compute, memory) + waves prologue / clock + store

Decoding, one block per sequence and key head, split along the keys while blocks are fewer than multiprocessors::

    memory  = as above
    stream  = waves * bytes of a block / (block_rate clock), keys padded to ``pad`` positions
    block   = block_cycles * head size / 128 + head_cycles * query heads per key head
    busy    = block (1 + (waves - 1) / blocks that a multiprocessor holds)
    seconds = launch + split (1 - exp(-keys / split_keys)) + part * parts + norm(memory, stream + busy)

A block waits for memory most of its time, so ``block`` follows no clock (its cycles are those of 1.8 GHz); what hides
it are other blocks on the same multiprocessor, as many as its shared memory holds.

``sustained`` is what the power limit leaves of ``efficiency peak``, by the law of matrix products
(:mod:`triosim.kernels.physical.gemm`): their joules per FLOP follow process, width and clock, with a constant of
attention's own.  Matrix instructions that warps issue wait for the softmax: the two add up, but for what ``wgmma``
hides of it.  Those of Blackwell (``tcgen05``, which one thread issues) run beside the softmax of another tile: the root
of the sum of squares, so that equal ones give 1 / sqrt(2) of the peak (FlashAttention-4's authors reach 71 % on B200
with heads of 128, where both take as long).  Gradients are computed at :data:`BACKWARD` of the output's rate, and three
kernels around theirs move bytes (:meth:`~triosim.kernels.work.attention.AttentionCalls.gradient_bytes`).

``miss`` goes from 0 to 1 where the bytes outgrow the part ``cache_fraction`` of the cache.  Kernels in a model find a
cold cache (``warm`` false), those of a repeated benchmark a warm one.

Sources: FlashAttention-2 (Dao, arXiv:2307.08691, section 3.3: blocks over batch, heads and query tiles), Flash-Decoding
(split keys); wave quantisation as in NeuSight (Lee et al., ASPLOS 2025, section 4).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE, DTYPES
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import fallbacks, gemm
from triosim.kernels.physical._tables import FamilyConstants, device_of, load, waves
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.attention import FAMILIES, AttentionCalls
from triosim.trace.tables import Trace

STEP = 128
"""Keys of one step of a thread block's loop."""
LEAST_SPLIT = 256
"""Keys that one block of a split has at least."""
BACKWARD = 63 / 73
"""Rate of the gradients in that of the output, softmax and all: at best 63 % and 73 % of an A100's peak
(FlashAttention-2, section 4.1).  On H100, 16,384 positions and heads of 128, the authors of FlashAttention-3 measured
0.870 of their second version, 0.866 of the third and 0.867 of cuDNN's kernels (arXiv:2407.08608, figures 5 and 6)."""
FLASH1 = 1 / 2
"""Rate of FlashAttention's first version, in CUDA and in Triton, in that of the second on an A100: the latter "yields
around 2x speedup" (FlashAttention-2, abstract; 1.7 to 3.0 times over the one in CUDA, 1.3 to 2.5 over the one in
Triton, section 4.1)."""
FLASH1_HEADS = (32.0, 64.0, 128.0)
"""Heads that FlashAttention's first version has kernels for; others are computed as the next longer (run_fmha_fwd in
csrc/flash_attn/fmha_api.cpp; the one in Triton rounds up to a power of two, BLOCK_HEADDIM in flash_attn_triton.py)."""
SYNCHRONOUS = 0.565
"""Part of Hopper's peak that the matrix instructions of Ampere (``mma``), in which the first two versions of
FlashAttention are written, reach on it in their kernels: with it the second reaches 335 TFLOP/s on an H100, forward and
backward with heads of 128 over 16,384 positions, which is the most that its authors measured (FlashAttention-2, section
4.1; FlashAttention-3's find it at 35 % of the peak, arXiv:2407.08608, abstract).  In a loop of their own these
instructions reach 0.629 (Luo et al., arXiv:2402.13499)."""
CLOCK = 1.8e9
"""Clock in Hz at which constants in seconds hold."""
EXPONENTIALS = 16.0
"""Exponentials that a multiprocessor does in a clock (CUDA C++ Programming Guide, "Throughput of Native Arithmetic
Instructions")."""
TILES = 4.0
"""Tiles of keys under way in kernels that copy by the tensor memory accelerator, over the one of others."""
NEWER = ("flash3", "trtllm")
"""Families of kernels whose copies and matrix instructions are asynchronous (Hopper, data-centre Blackwell)."""
BLOCK_BYTES = 82 * 1024.0
"""Shared memory of a block that decodes: two of them fit into a multiprocessor of an A100."""


@dataclass(frozen=True)
class Prefill:
    """Constants of one family's prefill.

    Attributes:
        launch_s: shortest time at a clock of 1.8 GHz, as many cycles at others.
        efficiency: part of the peak that the inner loop reaches when power is no limit.
        joule_per_flop: energy of an operation at full load, at 7 nm and A100's width and clock.
        prologue_cycles: clocks of a block before and after its loop.
        bandwidth_fraction: part of the datasheet's bandwidth that is reached.
        cache_fraction: part of the last-level cache that repeated tensors may fill and still be served from it.
        cache_rate: bytes per clock and multiprocessor from the cache.
        overlap: exponent of the norm that joins compute and memory.
        softmax_cycles: clocks of a multiprocessor for the softmax of one pair.
        cast_s: time that is added where keys are kept in a narrower type than the queries come in, at 1.8 GHz.
        tile: queries of one thread block.
        packs: 1 where queries of heads that share their keys lie in one tile, 0 where each head has its own.
        skips: 1 where keys outside a window are skipped, 0 where they are computed and masked.
        narrow_cycles: clocks that the softmax of one pair takes longer where 8 bits are multiplied.
        beside: 1 where the softmax runs beside the products of another tile, 0 where they wait for it.
        casts: 1 where queries are cast to the type that keys are kept in, which is multiplied then.
    """

    launch_s: float
    efficiency: float
    joule_per_flop: float
    prologue_cycles: float
    bandwidth_fraction: float
    cache_fraction: float
    cache_rate: float
    overlap: float
    softmax_cycles: float
    cast_s: float
    tile: float
    packs: float
    skips: float
    narrow_cycles: float
    beside: float
    casts: float


@dataclass(frozen=True)
class Decode:
    """Constants of one family's decoding; those of the same name as in :class:`Prefill` mean the same.

    Attributes:
        launch_s: shortest time at a clock of 1.8 GHz; it falls with the root of the clock (host and memory latencies do
            not follow it).
        split_s: time that long contexts add once, for splitting the keys and joining the parts.
        split_keys: keys at which most of it is there.
        part_s: time that joining takes for each part.
        pad_keys: keys that a block reads at least.
        block_cycles: clocks of 1.8 GHz of a block besides reading.
        head_cycles: more of them for each query head that shares the keys.
        block_rate: bytes per clock that one multiprocessor reads at most.
        drift: part of the last wave's idle time that is hidden.
    """

    launch_s: float
    split_s: float
    split_keys: float
    part_s: float
    pad_keys: float
    block_cycles: float
    head_cycles: float
    block_rate: float
    bandwidth_fraction: float
    cache_fraction: float
    cache_rate: float
    overlap: float
    drift: float


@dataclass(frozen=True)
class AttentionConstants:
    """Constants by family, for both phases."""

    prefill: FamilyConstants[Prefill]
    decode: FamilyConstants[Decode]


@lru_cache(maxsize=1)
def constants() -> AttentionConstants:
    """The constants that come with the program."""
    return AttentionConstants(load("attention", "prefill", Prefill), load("attention", "decode", Decode))


Phase = TypeVar("Phase", Prefill, Decode)


def newer(c: Phase) -> Phase:
    """What a family of :data:`NEWER` is taken for while nobody has measured it, from the constants of an older one.

    Instructions that run beside others hide all of the softmax but its exponentials; the accelerator that copies tiles
    has more of them under way; and a kernel that joins parts is launched before the one that makes them ends (CUDA C++
    Programming Guide, "Programmatic Dependent Launch").  On H100, from A100 and L40S alone, prefill is 12.0 % off and
    decoding 14.3 % (26.9 and 29.7 % without any of this); the three were chosen with H100 in view.
    """
    if isinstance(c, Prefill):
        changed = {"softmax_cycles": min(c.softmax_cycles, 1 / EXPONENTIALS)}
    else:
        changed = {"block_rate": TILES * c.block_rate, "split_s": max(c.split_s - c.launch_s, 0.0)}
    return replace(c, **changed)


def _of(table: FamilyConstants[Phase], family: str) -> Phase:
    """Constants of a family, or what it is taken for."""
    found = table.of(family)
    return newer(found) if family in NEWER and family not in table.families else found


def family_of(device: Accelerator) -> str:
    """The family that PyTorch and the serving stacks run on a device: by its architecture, ``flash2`` elsewhere."""
    if device.vendor == "NVIDIA":
        if device.architecture.startswith("Hopper"):
            return "flash3"
        if device.architecture.startswith("Rubin"):
            return "trtllm"
        if device.architecture.startswith("Blackwell") and not device.architecture.startswith("Blackwell GB2"):
            return "trtllm"  # the data-centre dies; the workstation's (GB20x) have no tcgen05 instructions
    return "flash2"


def resolved(family: str, device: Accelerator) -> str:
    """The family whose constants price what a call names, on a device."""
    best = family_of(device)
    if family == "torch":
        return "flash2" if best == "flash3" else best
    if family == "paged":
        return family if best == "flash2" and device.vendor == "NVIDIA" else best
    return best if family in ("auto", "cudnn") else family


def check(trace: Trace, device: Accelerator) -> None:
    """Refuse a step that asks for kernels that a device has not.

    Raises:
        InputError: FlashAttention-3 is asked for on what is not Hopper.
    """
    if family_of(device) != "flash3" and any('"flash3"' in args for args in set(trace.operators.args)):
        raise InputError(
            f"FlashAttention-3 is written for Hopper, and {device.name or 'the device'} is none: use attention flash2 "
            "or cudnn"
        )


def predict(work: AttentionCalls, device: Accelerator, table: AttentionConstants | None = None) -> KernelPredictions:
    """Seconds of every call on ``device``.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    table = table or constants()
    seconds, limit = np.zeros(len(work)), np.zeros(len(work), np.int8)
    for emulated in distinct(unfused := arithmetic(device).emulated[work.dtype]):
        rows = np.flatnonzero(unfused == emulated)
        found = fallbacks.attention(work.take(rows), device) if emulated else _fused(work.take(rows), device, table)
        seconds[rows], limit[rows] = found
    return KernelPredictions(seconds, limit)


def _fused(work: AttentionCalls, device: Accelerator, table: AttentionConstants) -> KernelPredictions:
    """Calls for which there is a kernel that keeps the scores on the chip."""
    seconds, limit = np.zeros(len(work)), np.zeros(len(work), np.int8)
    names = {int(code): resolved(FAMILIES[code], device) for code in distinct(work.family)}
    family = np.array([FAMILIES.index(names[code]) for code in work.family.tolist()], np.int8)
    decodes = work.decodes()
    for code in distinct(family):
        for phase in (False, True):
            rows = np.flatnonzero((family == code) & (decodes == phase))
            if len(rows) == len(work):
                rows = slice(None)  # type: ignore[assignment]
            elif not len(rows):
                continue
            part, name = work.take(rows), FAMILIES[code]
            if phase:
                seconds[rows], limit[rows] = decode(part, device, _of(table.decode, name))
            else:
                seconds[rows], limit[rows] = _many(part, device, table, name)
    return KernelPredictions(seconds, limit)


def _many(work: AttentionCalls, device: Accelerator, table: AttentionConstants, family: str) -> KernelPredictions:
    """Prefill; a short continuation of a long context also has the kernels that split the keys to choose from."""
    seconds, limit = prefill(
        work, device, _of(table.prefill, family), _reached(family, device), first=family == "flash1"
    )
    few = np.flatnonzero((work.queries <= STEP) & (work.keys > work.queries) & ~work.backward)
    if few.size:
        split = decode(work.take(few), device, _of(table.decode, family))
        faster = split.seconds < seconds[few]
        seconds[few[faster]], limit[few[faster]] = split.seconds[faster], split.limit[faster]
    return KernelPredictions(seconds, limit)


def least(work: AttentionCalls, device: Accelerator) -> NDArray[np.float64]:
    """Seconds that :func:`predict` never says less of: pairs alone, which grow by as much with each sequence.

    0 of calls with fewer queries than a tile has keys, which other kernels may run, and of what no kernel is known for.
    """
    table, found = constants(), np.zeros(len(work))
    known = ~arithmetic(device).emulated[work.dtype].astype(bool) & (work.queries > STEP)
    for code in distinct(work.family[known]):
        rows, family = np.flatnonzero(known & (work.family == code)), resolved(FAMILIES[code], device)
        part, c = work.take(rows), _of(table.prefill, family)
        found[rows] = part.flop() / _pair_rate(part, device, c, _reached(family, device), family == "flash1")[1]
    return found


def _reached(family: str, device: Accelerator) -> float:
    """Part of a device's peak that the instructions of a family can reach."""
    return SYNCHRONOUS if family in ("flash1", "flash2") and family_of(device) == "flash3" else 1.0


def prefill(
    work: AttentionCalls, device: Accelerator, c: Prefill, peak: float = 1.0, first: bool = False
) -> KernelPredictions:
    """Seconds of calls that attend with many queries (see the module's docstring); gradients too.

    Args:
        work: the calls.
        device: what runs them.
        c: constants of the family.
        peak: part of the device's peak that the instructions of the family can reach.
        first: whether it is the first version of FlashAttention, with the constants of the second.
    """
    d = device_of(device)
    pair, rate = _pair_rate(work, device, c, peak, first)
    pair = pair / (rate / d.units)
    group = work.heads / work.kv_heads if c.packs else 1.0
    rows = np.ceil(work.queries * group / c.tile)
    blocks = work.batch * work.heads / group * rows
    keys = np.ceil(work.keys / STEP) * STEP
    edge = np.where(work.causal, (c.tile / group + STEP) / 2, 0.0)  # tiles that the diagonal crosses are done whole
    seen = work.seen() if c.skips else work.unlimited().seen()
    seen = np.minimum(np.maximum(seen + edge, STEP), keys)
    window = np.where((work.window > 0) & (c.skips > 0), np.minimum(work.window + STEP, keys), keys)
    compute = np.hypot(blocks * seen / d.units, window) * c.tile * pair
    moved = work.key_bytes() + work.query_bytes()
    moved = np.where(work.backward, 2 * moved, moved)
    slow = d.bytes_s(moved + work.stored_bytes(), work.warm, c)
    memory, store = moved * slow, work.stored_bytes() * slow
    prologue = np.ceil(blocks / d.units) * c.prologue_cycles / d.clock
    body = (compute**c.overlap + memory**c.overlap) ** (1 / c.overlap)
    launch = (c.launch_s + np.where(work.kv_bytes < work.q_bytes, c.cast_s, 0.0)) * CLOCK / d.clock
    beside = work.gradient_bytes() / (c.bandwidth_fraction * d.bandwidth)
    memory = memory + store + beside
    return KernelPredictions(launch + body + prologue + store + beside, _limit(compute + prologue, memory, launch))


def _pair_rate(
    work: AttentionCalls, device: Accelerator, c: Prefill, peak: float, first: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """FLOP of a pair, and FLOP/s of all; arguments as of :func:`prefill`."""
    if c.casts:
        narrow = np.where(work.kv_bytes < work.q_bytes, DTYPE_CODE["float8_e4m3fn"], work.dtype)
        work = replace(work, dtype=narrow.astype(np.int8))
    slower = np.where(work.backward, BACKWARD, 1.0) * (FLASH1 if first else 1.0)
    flop = work.flop() * _padding(work.head) if first else work.flop()
    pair = flop / np.maximum(work.pairs(), 1.0)
    return pair, _rate(work, pair, device, c, peak, slower)


def exponentials(device: Accelerator) -> float:
    """How many exponentials a multiprocessor does in a clock, over the 16 of all others since Pascal.

    Twice as many on Blackwell Ultra (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions",
    compute capability 10.3; NVIDIA, "Inside NVIDIA Blackwell Ultra").
    """
    return 2.0 if device.architecture.startswith("Blackwell Ultra") else 1.0


def _rate(
    work: AttentionCalls, pair: NDArray[np.float64], device: Accelerator, c: Prefill, part: float,
    slower: NDArray[np.float64],
) -> NDArray[np.float64]:  # fmt: skip
    """FLOP/s of each call in its tiles, ``pair`` FLOP each: ``slower`` of what there is with ``part`` of the peak."""
    out, peaks = np.empty(len(work)), _peaks(work, device)
    law = gemm.load().constants["tensor"]
    d = device_of(device)
    for code in distinct(work.dtype):
        at = work.dtype == code
        chip = gemm.silicon(device, DTYPES[code])
        narrow = DTYPE_BYTES[DTYPES[code]] == 1
        converts = narrow & ((work.q_bytes[at] > 1) | work.backward[at])
        cycles = c.softmax_cycles + np.where(converts, c.narrow_cycles, 0.0)
        share = (3 * work.head + 2 * work.head_v)[at] / (work.head + work.head_v)[at]
        more = np.where(work.backward[at], share, 1.0)  # the gradients' elementwise work grows as their products
        softmax = more * cycles / (d.clock * exponentials(device) * d.units)
        products = pair[at] / (c.efficiency * part * peaks[at])
        rate = slower[at] * pair[at] / (np.hypot(products, softmax) if c.beside else products + softmax)
        reference = gemm.REFERENCE_WIDTH[chip.unit]
        if chip.unit != "simt" and not gemm.halved(chip, reference):  # else power does not bind
            narrower = gemm.REFERENCE_WIDTH["tensor"] / reference  # half the bits, half the joules
            joule = gemm.joules(chip, replace(law, joule=narrower * c.joule_per_flop), reference)
            rate = gemm.governed(chip, rate, joule, law)
        out[at] = rate
    return out


def decode(work: AttentionCalls, device: Accelerator, c: Decode) -> KernelPredictions:
    """Seconds of calls that continue sequences by a few positions (see the module's docstring)."""
    d = device_of(device)
    rows = np.ceil(work.queries * work.heads / work.kv_heads / 64)  # a block holds 64 queries that share their keys
    columns = work.batch * work.kv_heads * rows
    keys = np.where(work.window > 0, np.minimum(work.keys, work.window), work.keys)
    most = np.maximum(np.floor(keys / LEAST_SPLIT), 1.0)
    splits = np.clip(np.floor(d.units / columns), 1.0, most)
    blocks = columns * splits
    part = keys / splits
    padded = (part**4 + c.pad_keys**4) ** 0.25 / part
    read = work.key_bytes()
    slow = d.bytes_s(read + work.query_bytes(), work.warm, c)
    memory = (read + work.query_bytes() + work.stored_bytes()) * slow
    wave = waves(blocks / d.units, c.drift)
    stream = wave * (padded * read / blocks) / (c.block_rate * d.clock)
    wide = (work.head + work.head_v) / 256
    block = (c.block_cycles * wide + c.head_cycles * work.heads / work.kv_heads) / 1.8e9
    busy = block * (1 + (wave - 1) * BLOCK_BYTES / d.shared)
    split = c.split_s * -np.expm1(-keys / c.split_keys) + np.where(splits > 1, c.part_s * splits, 0.0)
    launch = d.launch(c.launch_s)
    body = (memory**c.overlap + (stream + busy) ** c.overlap) ** (1 / c.overlap)
    compute = work.flop() / _peaks(work, device)  # many queries over one latent head can be bound by it
    body = np.maximum(body, compute)
    return KernelPredictions(launch + split + body, _limit(compute, np.maximum(memory, stream), launch + split + busy))


def _padding(head: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many times as long the heads are that FlashAttention's first version computes instead."""
    longer = np.searchsorted(FLASH1_HEADS, head)
    return np.where(longer < len(FLASH1_HEADS), np.take(FLASH1_HEADS, longer, mode="clip") / head, 1.0)


def _peaks(work: AttentionCalls, device: Accelerator) -> NDArray[np.float64]:
    return arithmetic(device).flops[work.dtype]


def _limit(compute: NDArray, memory: NDArray, launch: NDArray | float) -> NDArray[np.int8]:
    limit = np.where(compute > memory, Limit.COMPUTE, Limit.MEMORY)
    return np.where(launch > np.maximum(compute, memory), Limit.LAUNCH, limit).astype(np.int8)
