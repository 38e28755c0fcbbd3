"""Matrix products on the matrix and the vector units of a GPU.

A product is cut into tiles, one thread block each, of which every compute unit (SM, CU) holds ``r`` at a time: one on
matrix units, as many as the registers have room for on vector units.  For a tile of ``tm x tn`` and ``s`` parts of the
summed dimension (split-K)::

    blocks   u = ceil(m/tm) ceil(n/tn) batch s / units           thread blocks per compute unit
    waves    w = ceil(u) where blocks wait for one another, less where they stream into freed units
    rounds   q = max(w / r, 1)                                   sets of blocks, one after another
    compute  c = 2 tm tn / (sustained / units * eff)             one step along k; eff grows with tm tn / (tm + tn)
    steps    l = (k/s) max(w c, q (c + step))                    what a step waits for is hidden by other blocks only
    memory   d = (operands, again where the cache loses them, + C) / (bandwidth * min(1, concurrency u))
    chain    e = (k/s) latency                                   steps along k follow one another
    seconds    = launch + (l^4 + d^4 + e^4)^(1/4) + q prologue + w epilogue (+ partial sums, where s > 1)

and the library is taken to choose the tile and the split that are fastest, unless it is known which tile it takes by
rows and columns, splits nothing, and that rows beyond the end take time (:class:`TileDispatch`).  Some libraries have
few tiles for products in batches, and split the sum only where few blocks would run otherwise (``split_under``).  Large
products are bound by power, not by the peak: clock and voltage fall by the law of :mod:`triosim.hardware.power` until
the matrix units fit what is left of the TDP::

    watts     = joule reach peak                          at the full clock; joules per FLOP as below
    clock     = law.free_clock((limit TDP - static) / watts)
    sustained = reach peak (1 + clock^-knee)^(-1/knee)    with a knee between the peak and the power

Where fewer blocks run than there are units, only their units draw these watts, and their clock falls less.

Vector units (``scales`` 0) keep their voltage: T4, which runs at half of its clock, is at its lowest.  The energy of an
operation falls with the process and with the operations that a unit does in a cycle, since a wider matrix unit uses an
operand more often and the lanes of a unit share the rest of it, and rises with the clock: ``joule (nm / 7)^process
(flop per cycle and unit / reference)^-width (clock / 1.41 GHz)^growth``; a cycle of elements of 32 bits on matrix units
(TF32) draws what one of 16 bits does, for half of the FLOP.  Generations of matrix units (:func:`generation_of`) have
factors on some constants, drawn towards 1; one that was not measured has none.  A call repeated on the same operands
finds them in a cache that holds them; one of two partitions holds copies, so that half is left (NVIDIA, A100
whitepaper, "L2 cache").  Vector units read operands from a memory of the compute unit that is as wide for 128 lanes as
for 64: what a tile needs to be efficient grows with the lanes to the power ``banks``.

Few constants hold for all devices; everything about a device is from its datasheet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE, DTYPES
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import UNITS, multiplication, unit_of
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import _constants
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.physical.stream import INLINE_ECC, delivered
from triosim.kernels.work.gemm import VECTOR, Gemm, gemm

CHUNK = 8192
"""Rows at a time: what is at work stays in a core's cache."""

CLOCK = 1.8e9
"""Clock in Hz at which the constants in seconds hold; they are cycles in truth."""

TUNED = "tuned"
"""Products of 8 bits as training libraries run them, on the unit ``narrow``."""
ENGINES = (*UNITS, TUNED)
"""What multiplies, :data:`triosim.kernels.arithmetic.UNITS`, and :data:`TUNED`; each has constants of its own."""

Menu = tuple[tuple[int, int], ...]
"""Tiles, rows times columns of C, that a library has."""


@dataclass(frozen=True)
class TileDispatch:
    """Of a library that is known to look at rows and columns alone: which tile it takes, and in which order they run.

    Tiles run one line after another: all of one operand is read for as many lines of the other as run at one time,
    again and again where the cache does not hold it.

    Attributes:
        tiles: each up to so many rows and columns, the first that fits, without split-K.
        down: whether lines run down the rows always, or else along the side that has fewer tiles.
        fills: whether loads fill rows beyond the end of A with zeros, which takes time (``fill_s``).
    """

    tiles: tuple[tuple[float, float, tuple[int, int]], ...]
    down: bool
    fills: bool


@dataclass(frozen=True)
class GemmConstants:
    """Of one engine; see the module's docstring and the units in ``data/physical/gemm.json``.

    ``menus`` are the tiles that libraries have, ``menus_batched`` those for products in batches.  A single menu is that
    of every device.  Of several, ``families`` says which an architecture's library has; where it does not know, the
    library has some of their tiles, and the time is the mean of what each tile gives.  ``host_s`` and
    ``host_batched_s``, time of the host that isolated measurements hold, are left out by :func:`predict`.

    ``generations`` has factors on constants by generation of matrix units (:func:`generation_of`), ``dispatches`` the
    :class:`TileDispatch` of those whose library has one, and ``dispatch`` that of the one in question (:meth:`on`).
    """

    launch_s: float
    pace: float
    prologue_s: float
    reach: float
    joule: float
    process: float
    width: float
    growth: float
    scales: float
    knee: float
    tile: float
    banks: float
    step: float
    resident: float
    memory: float
    concurrency: float
    cache: float
    latency_s: float
    stream: float
    epilogue: float
    fill_s: float
    split_s: float
    split_under: float
    cast_s: float
    cast_rate: float
    host_s: float
    host_batched_s: float
    menus: tuple[Menu, ...]
    menus_batched: tuple[Menu, ...]
    families: tuple[tuple[str, int], ...] = ()
    generations: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    dispatches: tuple[tuple[str, TileDispatch], ...] = ()
    dispatch: TileDispatch | None = None
    boost: float = 1.0

    def on(self, generation: str) -> GemmConstants:
        """The constants of a generation of matrix units, those of all where it was not measured."""
        factors = dict(self.generations).get(generation, ())
        found: dict[str, Any] = {name: getattr(self, name) * factor for name, factor in factors}
        return replace(self, generations=(), dispatch=dict(self.dispatches).get(generation), **found)

    def library(self, family: str, batched: bool) -> tuple[Menu, ...]:
        """Menus that the library of an architecture may have, each as likely as the others."""
        menus = self.menus_batched if batched else self.menus
        if len(menus) == 1:
            return menus
        known = dict(self.families).get(family)
        if known is not None:
            return (menus[known],)
        return tuple((tile,) for tile in sorted({tile for menu in menus for tile in menu}))


@dataclass(frozen=True)
class DeviceParameters:
    """Parameters of a device in the formula, for one element type."""

    units: float
    clock: float
    peak: float
    bandwidth: float
    cache: float
    tdp: float
    nm: float
    family: str = ""
    sparsity: float = 1.0
    part: float = 1.0  # of what products of the type that stands in for an emulated one reach
    unit: str = "tensor"
    partitions: float = 1.0
    wider: float = 1.0  # bits of an element over the 16 that the joules of matrix units are told of
    boosts: bool = False  # whether the clock may go above the datasheet's

    @property
    def peak_clock(self) -> float:
        """Clock in Hz at which the peak holds, since a unit does a power of two of FLOP in a cycle."""
        return self.peak / (self.units * 2.0 ** round(math.log2(self.width)))

    @property
    def width(self) -> float:
        """FLOP that one compute unit does in a cycle."""
        return self.peak / (self.units * self.clock)

    @property
    def at_16_bits(self) -> float:
        """The same of elements of 16 bits on matrix units, whose cycle of wider ones is of as many bits."""
        return self.wider * self.width


_LIKE = {"units": 100.0, "clock": 1.5e9, "tdp": 400.0, "nm": 5.0}
"""Where a datasheet is silent: a data-centre accelerator of the 2020s."""
_CACHE_PER_BANDWIDTH = 1.5e-5
"""Bytes of last-level cache per byte per second of memory bandwidth, where the cache is not known (A100 to B200:
1.6e-5 to 2.0e-5)."""


def silicon(device: Accelerator, dtype: str) -> DeviceParameters:
    """The figures of ``device`` for products of ``dtype``; class defaults where its datasheet is silent.

    Args:
        device: with compute peaks and memory bandwidth.
        dtype: name of an element type; the figures are those of what multiplies it
            (:mod:`triosim.kernels.arithmetic`).

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    bandwidth, how = _constants.bandwidth(device), multiplication(device, dtype)
    # Constants of matrix units behind GDDR are of an L40S, whose memory corrects errors inline.
    behind = generation_of(device).endswith("GDDR") and device.memory_type.upper().startswith("GDDR")
    over = delivered(device) / INLINE_ECC if behind and how.unit != "simt" else 1.0
    return DeviceParameters(
        float(device.compute_units or _LIKE["units"]),
        device.clock_hz or _LIKE["clock"],
        device.peak(how.dtype),
        bandwidth * over,
        float(device.cache_bytes or _CACHE_PER_BANDWIDTH * bandwidth),
        device.tdp_w or _LIKE["tdp"],
        device.nm or _LIKE["nm"],
        family_of(device),
        min(max(device.sparsity_factor, 1.0), 2.0),
        how.rate,
        how.unit,
        2.0
        if device.vendor == "NVIDIA" and device.major >= 8 and device.memory_type.upper().startswith("HBM")
        else 1.0,
        (device.peak_flops.get("bfloat16", 0.0) / device.peak(how.dtype) or 1.0) if how.dtype == "tfloat32" else 1.0,
        _plays(device),
    )


def _plays(device: Accelerator) -> bool:
    """Whether a card is for playing or a workstation: GDDR whose datasheet has no error correction."""
    memory = device.memory_type.upper()
    return device.vendor == "NVIDIA" and memory.startswith("GDDR") and "ECC" not in memory


def family_of(device: Accelerator) -> str:
    """First word of an NVIDIA architecture; empty for other vendors, whose libraries are others."""
    return device.architecture.split(" ")[0] if device.vendor == "NVIDIA" else ""


_INSTRUCTIONS = {8: "sync", 9: "wgmma", 10: "tcgen05", 11: "tcgen05", 12: "sync12"}
"""By compute capability before the point, which instructions multiply (NVIDIA, PTX ISA, "Target ISA Notes" of
``mma``, ``wgmma.mma_async`` and ``tcgen05.mma``); those of Volta and Turing have no asynchronous copies beside them."""


def generation_of(device: Accelerator) -> str:
    """Generation of an NVIDIA GPU's matrix units since Ampere, and whether it is a server's or a workstation's.

    A word of ``sync``, ``wgmma`` and ``tcgen05``, ``sync12`` those
    of compute capability 12, with ``GDDR`` behind it on devices without HBM; empty for others.
    """
    found = _INSTRUCTIONS.get(device.major, "") if device.vendor == "NVIDIA" else ""
    return found if not found or device.memory_type.upper().startswith("HBM") else f"{found} GDDR"


REFERENCE_NM = 7.0
REFERENCE_HZ = 1.41e9
"""Clock of the peak at which ``joule`` holds: that of A100."""
HALVED = 0.5
"""Least width of matrix units since Volta, over the reference's: 1,024 FLOP per cycle in 16 bits."""
CYCLE = 3.0
"""How sharply operands of a repeated call leave a cache that is too small for them; used in turn, none stays."""
REFERENCE_WIDTH = {"simt": 128.0, "tensor": 2048.0, "narrow": 4096.0, "fourbit": 8192.0}
"""FLOP per cycle and unit at which ``joule`` holds: one multiply-add per lane of 64, A100's matrix unit in 16 bits."""


def engine(dtype: int) -> str:
    """Which of :data:`ENGINES` multiplies the type of this code where a device has one for it."""
    return unit_of(DTYPES[dtype])


def halved(chip: DeviceParameters, reference: float) -> bool:
    """Whether the device does half of what its matrix units could, as cards of the GeForce kind that sum in 32 bits.

    A compute unit has 1,024 FLOP per cycle in 16 bits since Volta, and twice as many in 8; these have half of it.  What
    feeds the units is as fast as on other cards, and power does not bind: cuBLAS reaches 105 to 115 of the 119.5
    TFLOP/s of an L20, at 275 W (DefTruth/CUDA-Learn-Notes, HGEMM), and 47.0 of the 47.4 of an RTX 5060 Ti, at 180 W
    (QuantumDrizzy/BLACKWALL, README).
    """
    return chip.unit != "simt" and chip.family != "" and chip.at_16_bits < 0.75 * HALVED * reference


def headroom(chip: DeviceParameters, c: GemmConstants, reference: float) -> float:
    """Clock that a card really runs at over the datasheet's, where power leaves it.

    The boost clock of a card for playing is what is typical of it, that of a server's the highest that it has: of cards
    with half of their matrix units, whose power does not bind, the first multiply faster than their peak, the second
    (A10G, L20, L40) do not.
    """
    return c.boost if chip.boosts and halved(chip, reference) else 1.0


def sustained(chip: DeviceParameters, c: GemmConstants, reference: float) -> float:
    """FLOP/s that large products reach in a burst, under the peak and under the power limit."""
    if halved(chip, reference):  # what other units lose beside computing is as much in time, and less of twice as long
        lost = chip.at_16_bits / (HALVED * reference) * (1.0 / c.reach - 1.0)
        return headroom(chip, c, reference) * chip.peak / (1.0 + lost)
    return float(governed(chip, c.reach * chip.peak, joules(chip, c, reference), c))


def joules(chip: DeviceParameters, c: GemmConstants, reference: float) -> float:
    """Joules of a FLOP at the full clock (see the module's docstring)."""
    found = c.joule * (chip.nm / REFERENCE_NM) ** c.process * (chip.at_16_bits / reference) ** -c.width
    found = chip.wider * found
    return float(found * (chip.peak_clock / REFERENCE_HZ) ** c.growth)


Rate = TypeVar("Rate", float, NDArray[np.float64])


def governed(chip: DeviceParameters, rate: Rate, joule: float, c: GemmConstants) -> Rate:
    """What is left of rates of so many joules per FLOP once clock and voltage have come down to the power limit."""
    full = joule * rate  # watts at the full clock and voltage
    law = power.constants()
    clock = law.free_clock((law.limit - law.static_share) * chip.tdp / full) if c.scales else chip.tdp / full
    least = np.minimum(clock, 1.0)  # taken out, so that a sharp knee does not underflow
    parts = least**c.knee + (least / clock) ** c.knee
    found: Any = rate * least * parts ** (-1 / c.knee)
    left: Rate = found
    return left


def engines(device: Accelerator, dtype: str) -> tuple[str, ...]:
    """What may multiply a type on a device, of :data:`ENGINES`: of 8 bits there are two kinds of kernels."""
    unit = silicon(device, dtype).unit
    return (unit, TUNED) if unit == "narrow" else (unit,)


def most(device: Accelerator, dtype: str, engine: str) -> float:
    """FLOP/s of products of a type, none of them sparse, that :func:`predict` never says more of.

    Args:
        device: with its peaks and memory bandwidth.
        dtype: what is multiplied.
        engine: one of :func:`engines`.
    """
    chip = silicon(device, dtype)
    own = load().constants[engine].on(generation_of(device))
    one = _call(gemm(np.ones(1), np.ones(1), np.ones(1), dtype), chip, own, REFERENCE_WIDTH[chip.unit])
    tiles = {tile for batched in (False, True) for menu in own.library(chip.family, batched) for tile in menu}
    tiles |= {tile for _, _, tile in own.dispatch.tiles} if own.dispatch else set()
    return chip.units * max(2.0 * tm * tn / _step(one, own, tm, tn, 1.0) for tm, tn in tiles)


def predict(work: Gemm, device: Accelerator, constants: Mapping[str, GemmConstants]) -> KernelPredictions:
    """Seconds of each product on ``device``.

    Args:
        work: products, any mixture of element types.
        device: with its peaks, memory bandwidth and whatever else its datasheet gives.
        constants: by engine, one of :data:`ENGINES`.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    seconds, limit = np.empty(len(work)), np.empty(len(work), np.int8)
    for kind, at_kind in _kinds(work, device):
        chip = silicon(device, "float32" if kind.loose else DTYPES[kind.dtype])
        own = constants[TUNED if kind.tuned and chip.unit == "narrow" else chip.unit].on(generation_of(device))
        own = replace(own, dispatch=None) if kind.library else own
        rows = np.flatnonzero(at_kind)
        for start in range(0, len(rows), CHUNK):
            at = rows[start : start + CHUNK]
            seconds[at], limit[at] = _seconds(work.take(at), chip, own, REFERENCE_WIDTH[chip.unit], kind.narrow)
    return KernelPredictions(seconds, limit)


NARROW = 570.0
"""FLOP a cycle and compute unit of kernels whose loads are narrower than 16 bytes, if nothing else bound them.

Between two that were published: 588 columns instead of 592 take an H100 at 1,200 MHz from 347 to 98 TFLOP/s
(m87-labs/kestrel, pull request 143), sizes that are odd an RTX 4090 from 156 to some 112 (pytorch/pytorch, issue
181718).  With the square law of :func:`_call` these are 647 and 500, of which this is the geometric mean."""
NARROW_SPREAD = 0.26
"""Natural logarithm of the one over the other."""


def misaligned(work: Gemm, device: Accelerator) -> NDArray[np.bool_]:
    """Products in batches of 16 bits that run on the vector units, since their rows do not begin where a load may.

    cuBLAS's kernels for matrix units load 16 bytes at once (NVIDIA, Matrix Multiplication Background User's Guide,
    "Tensor Core Requirements").  The products of an attention whose heads are no multiple of 8 wide do not allow it:
    BigScience's chronicle of BLOOM (train/tr11-176B-ml/chronicles-prequel.md) has iterations of 104 to 110 s with heads
    of 216 and 144 and of 147 to 154 s with heads of 108, all else equal.
    """
    return _halves(work, device) & (work.batch > 1) & (work.aligned < VECTOR)


def narrowly_loaded(work: Gemm, device: Accelerator) -> NDArray[np.bool_]:
    """Single products of 16 bits whose rows do not begin where a wide load may, as with a vocabulary of 50,257.

    Since cuBLAS 11 they run on matrix units all the same, in kernels that load fewer bytes at a time (``align1``,
    ``align2`` in their names), of which those since Hopper have none that use its own instructions.  Asynchronous
    copies, which kernels of Ampere and of workstations since load by, take 8 bytes as well as 16.
    """
    least = VECTOR / 2 if generation_of(device).startswith("sync") else VECTOR
    return _halves(work, device) & (work.batch == 1) & (work.aligned < least)


def _halves(work: Gemm, device: Accelerator) -> NDArray[np.bool_]:
    """Products of 16 bits by NVIDIA's libraries."""
    if device.vendor != "NVIDIA":
        return np.zeros(len(work), bool)
    return np.isin(work.dtype, [DTYPE_CODE["float16"], DTYPE_CODE["bfloat16"]])


class _Kind(NamedTuple):
    """Products that run in the same kernels: element type, whether misaligned, narrowly loaded, tuned, a library's."""

    dtype: int
    loose: bool
    narrow: bool
    tuned: bool
    library: bool


def _kinds(work: Gemm, device: Accelerator) -> Iterator[tuple[_Kind, NDArray[np.bool_]]]:
    """Each kind that there is, and which products are of it."""
    columns = (work.dtype, misaligned(work, device), narrowly_loaded(work, device), work.tuned, work.library)
    for kind in sorted(set(zip(*(column.tolist() for column in columns), strict=True))):
        yield _Kind(*kind), np.all([column == value for column, value in zip(columns, kind, strict=True)], axis=0)


def _seconds(
    work: Gemm, chip: DeviceParameters, c: GemmConstants, reference: float, narrow: bool
) -> tuple[NDArray, NDArray]:
    """Time of each product, and what binds it."""
    call = _call(work, chip, c, reference, narrow)
    single, many = (c.library(chip.family, batched) for batched in (False, True))
    if c.dispatch:
        single = many = (tuple(sorted({tile for _, _, tile in c.dispatch.tiles})),)
    best, compute, memory = _over_menus(work, chip, c, call, single)
    batched = work.batch > 1
    if batched.any() and many != single:
        others = _over_menus(work, chip, c, call, many)
        best, compute, memory = (np.where(batched, y, x) for x, y in zip((best, compute, memory), others, strict=True))
    speed = (CLOCK / chip.clock) ** c.pace
    seconds = best + c.launch_s * speed
    if work.casts.any():
        moved = (2.0 + work.a_bytes) * work.batch * work.m * work.k
        missed = np.where(work.tuned, 1.0, call.miss)  # scales by block are found and applied in separate passes
        seconds = seconds + work.casts * (c.cast_s * speed + missed * moved / (c.cast_rate * chip.bandwidth))
    limit = np.where(compute >= memory, Limit.COMPUTE, Limit.MEMORY)
    limit[seconds > 2 * np.maximum(compute, memory)] = Limit.LAUNCH
    return seconds, limit.astype(np.int8)


def _over_menus(
    work: Gemm, chip: DeviceParameters, c: GemmConstants, call: _Call, menus: tuple[Menu, ...]
) -> tuple[NDArray, NDArray, NDArray]:
    """Seconds, compute and memory of the fastest choice, mean over the menus."""
    chosen = [_fastest(work, chip, c, call, menu) for menu in menus]
    if len(chosen) == 1:
        return chosen[0]
    total, compute, memory = (np.mean(np.stack(x), axis=0) for x in zip(*chosen, strict=True))
    return total, compute, memory


def _fastest(
    work: Gemm, chip: DeviceParameters, c: GemmConstants, call: _Call, menu: Menu
) -> tuple[NDArray, NDArray, NDArray]:
    """Seconds without the launch, compute and memory alone, of the fastest tile and split."""
    best = np.full(len(work), np.inf)
    compute, memory = np.empty(len(work)), np.empty(len(work))
    taken = _taken(work, c.dispatch, menu) if c.dispatch else None
    for at, tile in enumerate(menu):
        for total, of_compute, of_memory in _tile(work, chip, c, call, *tile):
            better = total < best
            if taken is not None:
                better &= taken == at
            np.copyto(best, total, where=better)
            np.copyto(compute, of_compute, where=better)
            np.copyto(memory, of_memory, where=better)
    return best, compute, memory


def _taken(work: Gemm, dispatch: TileDispatch, menu: Menu) -> NDArray[np.int8]:
    """Which tile of a menu a library takes of each product."""
    found = np.full(len(work), -1, np.int8)
    for rows, columns, tile in reversed(dispatch.tiles):
        found[(work.m <= rows) & (work.n <= columns)] = menu.index(tile)
    return found


@dataclass(frozen=True)
class _Call:
    """What does not depend on the tile."""

    rate: float  # FLOP/s of one unit where all work
    apart: NDArray  # time of a step over that, where parts of the units work (_PARTS)
    tile: float  # tm tn / (tm + tn) at which a tile reaches half
    best: float  # what a tile can reach at best
    sparsity: float  # how much faster products are of which two elements in four are left out
    a: NDArray
    b: NDArray
    c: NDArray
    miss: NDArray  # part of the compulsory traffic that the cache does not serve
    lose_a: NDArray  # part of A that is gone when it is read again
    lose_b: NDArray


def _call(work: Gemm, chip: DeviceParameters, c: GemmConstants, reference: float, narrow: bool = False) -> _Call:
    a = work.batch * work.m * work.k * work.a_bytes
    b = work.batch * work.k * work.n * np.where(work.sparse & (chip.sparsity > 1), _kept(work.b_bytes), work.b_bytes)
    out = work.batch * work.m * work.n * work.c_bytes
    kept = c.cache * chip.cache / chip.partitions
    miss = np.where(work.warm, _gone(((a + b + out) / kept) ** CYCLE), 1.0)
    miss = miss + (1.0 - miss) / _CACHE_OVER_MEMORY
    rate = sustained(chip, c, reference) * chip.part / chip.units
    if narrow:
        rate = (rate**-2.0 + (NARROW * chip.clock) ** -2.0) ** -0.5
    tile = c.tile * float(np.clip(chip.width / reference, 1.0, _WIDEST)) ** c.banks
    best = _SATURATED
    if halved(chip, reference):
        tile, best = tile * chip.at_16_bits / (HALVED * reference), 1.0
    lose_a, lose_b = _gone(a / (work.batch * chip.cache)), _gone(b / (work.batch * chip.cache))
    return _Call(rate, _apart(chip, c, reference), tile, best, chip.sparsity, a, b, out, miss, lose_a, lose_b)


_PARTS = np.geomspace(1 / 256, 1.0, 33)
"""Parts of a device's units that work."""


def _apart(chip: DeviceParameters, c: GemmConstants, reference: float) -> NDArray[np.float64]:
    """Time of a step where a part of the units works (:data:`_PARTS`), over that where all do: power binds less."""
    if halved(chip, reference):
        return np.ones(len(_PARTS))
    rates = governed(chip, c.reach * chip.peak * _PARTS, joules(chip, c, reference), c)
    return rates[-1] * _PARTS / rates


def _kept(item: NDArray) -> NDArray:
    """Bytes per element of which two in four are stored, each with its place among the four in two bits."""
    return (item + 0.25) / 2.0


def _gone(x: NDArray) -> NDArray:
    """Part that a cache loses of what is ``x`` times its size: 0 well below 1, 1 well above."""
    square = x * x
    return square / (1.0 + square)


_SUM_BYTES = 4.0
"""Bytes of a partial sum."""
_CACHE_OVER_MEMORY = 4.0
"""Partial sums pass through the last-level cache, which is about this much faster than the memory."""
_SATURATED = 1.2
"""How much better than a 128 x 128 tile any larger one can be."""
_WIDEST = 2.0
"""Compute units of GPUs have 64 or 128 lanes."""
_BLOCK = 128.0 * 128.0
"""Elements of the tile that ``resident`` counts."""


def _tile(
    work: Gemm, chip: DeviceParameters, c: GemmConstants, call: _Call, tm: int, tn: int
) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Seconds without the launch, and compute and memory alone, of one tile: unsplit, then with split-K."""
    speed = (CLOCK / chip.clock) ** c.pace
    down, across = np.ceil(work.m / tm), np.ceil(work.n / tn)
    blocks = np.maximum(down * across * work.batch, 1.0)  # an empty product is a block that finds nothing to do
    of_tile: float | NDArray = _step(call, c, tm, tn, 1.0)
    if call.sparsity > 1 and work.sparse.any():
        of_tile = np.where(work.sparse, _step(call, c, tm, tn, call.sparsity), of_tile)
    if c.dispatch and c.dispatch.fills:
        beyond = np.where(down > 1, down * tm - work.m, 0.0) * (c.fill_s * speed)
        of_tile = of_tile + np.maximum(beyond - of_tile, 0.0) / np.maximum(down, 1.0)
    held = max(math.floor(c.resident * _BLOCK / (tm * tn)), 1)
    again_a, again_b = _again(down, across, chip.units, tm, tn, c.dispatch)
    again = call.a * call.lose_a * again_a + call.b * call.lose_b * again_b
    traffic = call.miss * (call.a + call.b + call.c) + again
    stores = tm * tn * work.c_bytes / (c.epilogue * 64.0 * chip.clock)
    room = max(c.resident, 1.0) * chip.units / blocks
    parts = np.exp2(np.floor(np.log2(np.clip(np.minimum(room, work.k / 64.0), 1.0, 32.0))))
    parts = np.where(blocks < c.split_under * chip.units, parts, 1.0)
    for split in (None,) if c.dispatch else (None, parts):
        if split is None:
            u, k = blocks / chip.units, work.k
        else:
            u, k = blocks * split / chip.units, work.k / split
        whole = np.ceil(u)
        waves = np.where(u > held, (whole + c.stream * u) / (1.0 + c.stream), whole)
        rounds = np.maximum(waves / held, 1.0)
        step = of_tile if u.min() >= 1 else of_tile * np.interp(u, _PARTS, call.apart)
        compute = k * np.maximum(waves * step, rounds * (step + c.step / chip.clock))
        memory = traffic / (c.memory * chip.bandwidth * np.minimum(1.0, c.concurrency * u))
        chain = k * (c.latency_s * speed)
        joined = np.sqrt(np.sqrt((compute * compute) ** 2 + (memory * memory) ** 2 + (chain * chain) ** 2))
        total = joined + rounds * (c.prologue_s * speed) + waves * stores
        if split is not None:
            sums = 2.0 * split * _SUM_BYTES * call.c / work.c_bytes  # written, then read
            sums = sums / (_CACHE_OVER_MEMORY * c.memory * chip.bandwidth)
            total = np.where(split > 1.0, total + c.split_s * speed + sums, np.inf)
        yield total, compute, memory


def _again(
    down: NDArray, across: NDArray, units: float, tm: int, tn: int, dispatch: TileDispatch | None
) -> tuple[NDArray, NDArray]:
    """How often A and B are read again: tiles that run at one time are a square, or lines (:class:`TileDispatch`)."""
    if dispatch is None:
        group = max(np.sqrt(units * tn / tm), 1.0)  # tiles down
        return np.maximum(np.ceil(across * group / units) - 1, 0), np.maximum(np.ceil(down / group) - 1, 0)
    columns = (across > down) | dispatch.down
    a = np.ceil(across * np.minimum(down, units) / units) - 1
    b = np.ceil(down * np.minimum(across, units) / units) - 1
    return np.where(columns, np.maximum(a, 0), 0.0), np.where(columns, 0.0, np.maximum(b, 0))


def _step(call: _Call, c: GemmConstants, tm: int, tn: int, faster: float) -> float:
    """Seconds of one step along k.  A rate that is ``faster`` asks for operands so much faster."""
    intensity = tm * tn / (tm + tn)
    eff = intensity / (intensity + faster * call.tile) * (64.0 + c.tile) / 64.0
    return 2.0 * tm * tn / (faster * call.rate * min(eff, call.best))


@dataclass(frozen=True)
class SpreadConstants:
    """Half-widths of 90 % intervals, natural logarithm, by :class:`~triosim.kernels.estimate.Limit` code.

    Attributes:
        seen: on devices of ``families``.
        unseen: on any other device.
        families: first words of the architectures that were fitted, and of those whose library is known.
    """

    seen: NDArray[np.float64]
    unseen: NDArray[np.float64]
    families: tuple[str, ...]


@dataclass(frozen=True)
class FittedGemm:
    """Constants and spreads by engine, and the data that they were fitted to."""

    constants: Mapping[str, GemmConstants]
    spread: Mapping[str, SpreadConstants]
    provenance: Mapping[str, Any]


@functools.cache
def load() -> FittedGemm:
    """The constants that come with the program, ``kernels/data/physical/gemm.json``.

    Raises:
        RuntimeError: the file has another schema.
    """
    found = _constants.document("gemm")
    constants = {
        name: constants_of(
            row, found["menus"][name], found["generations"].get(name, {}), found["dispatches"].get(name, {})
        )
        for name, row in found["constants"].items()
    }
    spread = {
        name: SpreadConstants(_by_limit(row["seen"]), _by_limit(row["unseen"]), tuple(row["families"]))
        for name, row in found["spread"].items()
    }
    return FittedGemm(constants, spread, found["provenance"])


def constants_of(
    row: Mapping[str, float],
    menus: Mapping[str, Any],
    generations: Mapping[str, Mapping[str, float]],
    dispatches: Mapping[str, Mapping[str, Any]],
) -> GemmConstants:
    """Constants from their rows in the file."""
    numbers: dict[str, Any] = {f.name: float(row[f.name]) for f in fields(GemmConstants) if f.name in row}
    one, many = (tuple(tuple((int(m), int(n)) for m, n in menu) for menu in menus[k]) for k in ("single", "batched"))
    families = tuple((str(name), int(at)) for name, at in menus["families"].items())
    factors = tuple((str(name), tuple(sorted(each.items()))) for name, each in generations.items())
    known = tuple((str(name), _dispatch(each)) for name, each in dispatches.items())
    return GemmConstants(
        **numbers, menus=one, menus_batched=many, families=families, generations=factors, dispatches=known
    )


def _dispatch(row: Mapping[str, Any]) -> TileDispatch:
    tiles = tuple((_bound(rows), _bound(columns), (int(tm), int(tn))) for rows, columns, (tm, tn) in row["tiles"])
    return TileDispatch(tiles, bool(row["down"]), bool(row["fills"]))


def _bound(size: float | None) -> float:
    return math.inf if size is None else float(size)


def _by_limit(row: Mapping[str, float]) -> NDArray[np.float64]:
    widest = max(row.values())
    return np.array([row.get(limit.name.lower(), widest) for limit in Limit])


_SPARSE = math.log(2.0) / 2.0
"""What sparsity may bring lies between nothing and a factor of two; no measurements of it are at hand."""


def spread(work: Gemm, limit: NDArray[np.int8], device: Accelerator, fitted: FittedGemm) -> NDArray[np.float64]:
    """Half-width of the 90 % interval (natural logarithm) of each prediction.

    Args:
        work: what was predicted.
        limit: what binds, from :func:`predict`.
        device: it was predicted for.
        fitted: the constants it was predicted with.
    """
    out = np.empty(len(work))
    family, generation = family_of(device), generation_of(device)
    for kind, at in _kinds(work, device):
        unit = multiplication(device, "float32" if kind.loose else DTYPES[kind.dtype]).unit
        of = fitted.spread[TUNED if kind.tuned and unit == "narrow" else unit]
        known = family if unit == "simt" else generation
        out[at] = (of.seen if known in of.families else of.unseen)[limit[at]]
        if kind.narrow:
            out[at] = np.hypot(out[at], NARROW_SPREAD)
    return np.where(work.sparse & (device.sparsity_factor > 1), np.hypot(out, _SPARSE), out)
