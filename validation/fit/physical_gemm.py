"""Fits the constants of matrix products and writes ``src/triosim/kernels/data/physical/gemm.json``.

    python -m validation.fit.physical_gemm [--write]

Inputs, of ``../shared/data``: ``kernels/gemm.parquet`` (bf16, fp8 and nvfp4 for the matrix units at 16,
8 and 4 bits) and ``kernels/fp32_ops.parquet`` (linear and bmm for the vector units).  Nothing else.

The constants (:mod:`triosim.kernels.physical.gemm`) minimise a smooth form of the mean absolute logarithmic
error, equally many rows of each device, and are drawn towards the priors below with the widths given there: power,
reach and tile efficiency can hardly be told apart from small kernels.  The table judges them on devices that were left
out of the fit, and the spreads are conformal quantiles of those errors.  What a few measured kernels of a device bring
is shown by :mod:`validation.judge.calibration`.

Priors are round figures of the architecture manuals and of research on these measurements: the *form* of the model and
its starting point were chosen with all devices in view, the constants that judge a device without any row of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data import squares
from validation.data.kernels import DATA, DEVICES
from validation.fit.roofline import least, quantile

from triosim.core.dtypes import DTYPES
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import rate
from triosim.kernels.estimate import Limit
from triosim.kernels.physical._constants import SCHEMA
from triosim.kernels.physical.gemm import (
    ENGINES,
    GemmConstants,
    Menu,
    TileDispatch,
    family_of,
    generation_of,
    load,
    predict,
)
from triosim.kernels.work.gemm import Gemm, gemm

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "kernels" / "data" / "physical" / "gemm.json"
INPUTS = ("kernels/gemm.parquet", "kernels/fp32_ops.parquet")

ROWS_PER_DEVICE = 400
TEST_ROWS = 4000
PLAUSIBLE = 0.95
"""Rows above this part of the peak, or of the bandwidth where the cache cannot hold what they move, are dropped."""
ABOVE_HOST = 2.0
"""Isolated operators count from this multiple of the shortest times of the operator on the device: what is shorter
measures the host that issues them."""


Without = str | frozenset[str] | None
"""Devices that are left out: none, one or several."""


def names(without: Without) -> frozenset[str]:
    """The devices that are left out."""
    if isinstance(without, frozenset):
        return without
    return frozenset() if without is None else frozenset({without})


@dataclass(frozen=True)
class Rows:
    """Measured products, one row each: catalog name of the device, the work, and seconds."""

    device: NDArray[np.str_]
    work: Gemm
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Rows:
        """These rows only."""
        return Rows(self.device[rows], self.work.take(rows), self.seconds[rows])

    def without(self, device: Without) -> Rows:
        """The rows of all other devices."""
        return self.take(np.flatnonzero(~np.isin(self.device, list(names(device)))))

    def by_device(self) -> dict[str, Rows]:
        """The rows of each device."""
        return {str(d): self.take(np.flatnonzero(self.device == d)) for d in np.unique(self.device)}


def _columns(name: str, *wanted: str) -> dict[str, NDArray]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / "kernels" / f"{name}.parquet", columns=list(wanted))
    return {column: table.column(column).to_numpy(zero_copy_only=False) for column in wanted}


def served(kind: str) -> Rows:
    """Products of serving stacks (CUDA-graph replay on the same tensors): bfloat16, fp8, fp8_block or nvfp4."""
    data = _columns("gemm", "system", "gemm_dtype", "m", "n", "k", "latency")
    rows = np.flatnonzero(data["gemm_dtype"] == kind)
    dtype = {"bfloat16": "bfloat16", "nvfp4": "float4_e2m1"}.get(kind, "float8_e4m3fn")
    m, n, k = (data[c][rows].astype(float) for c in "mnk")
    device = np.array([DEVICES[s] for s in data["system"][rows].astype(str)])
    work = gemm(m, n, k, dtype, warm=True, casts=kind != "bfloat16", tuned=kind == "fp8_block")
    return plausible(Rows(device, work, data["latency"][rows] * 1e-3))


def isolated(*operators: str) -> Rows:
    """Float32 ``linear`` and ``bmm`` of NeuSight, which calls the summed dimension N and the columns of C K."""
    data = _columns("fp32_ops", "gpu", "op", "Latency", "B", "M", "N", "K")
    found = []
    for operator in operators:
        rows = np.flatnonzero(data["op"].astype(str) == operator)
        b, m, k, n = (np.nan_to_num(data[c][rows].astype(float)) for c in "BMNK")
        device = np.array([DEVICES[s] for s in data["gpu"][rows].astype(str)])
        seconds = data["Latency"][rows] * 1e-3
        above = np.zeros(len(rows), bool)
        for one in np.unique(device):
            at = device == one
            above[at] = seconds[at] > ABOVE_HOST * np.quantile(seconds[at], 0.01)
        whole = Rows(device, gemm(m, n, k, "float32", b if operator == "bmm" else 1.0, warm=True), seconds)
        found.append(plausible(whole.take(np.flatnonzero(above))))
    return join(*found)


def join(*parts: Rows) -> Rows:
    """All rows of several."""
    works = [part.work for part in parts]
    columns = {name: np.concatenate([getattr(w, name) for w in works]) for name in Gemm.__dataclass_fields__}
    device, seconds = (np.concatenate([getattr(p, name) for p in parts]) for name in ("device", "seconds"))
    return Rows(device, Gemm(**columns), seconds)


def plausible(rows: Rows) -> Rows:
    """Without rows that are faster than their device can be."""
    keep = np.zeros(len(rows), bool)
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        device, work, seconds = catalog.accelerator(str(name)), rows.work.take(at), rows.seconds[at]
        peaks = np.array([rate(DTYPES[code], device) for code in work.dtype.tolist()])
        moved = work.bytes()
        cached = moved <= float(device.cache_bytes or 0)
        enough = cached | (seconds >= PLAUSIBLE * moved / float(device.memory_bandwidth or np.inf))
        keep[at] = (seconds >= PLAUSIBLE * work.flop() / peaks) & enough
    return rows.take(np.flatnonzero(keep))


def even(rows: Rows, count: int = ROWS_PER_DEVICE, seed: int = 0) -> Rows:
    """At most ``count`` rows of each device: half evenly over the logarithm of their time, half at random."""
    random = np.random.default_rng(seed)
    chosen = []
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        if len(at) > count:
            order = at[np.argsort(rows.seconds[at], kind="stable")]
            key = np.log(rows.seconds[order])
            spaced = np.searchsorted(key, np.linspace(key[0], key[-1], count // 2))
            at = np.union1d(order[np.minimum(spaced, len(at) - 1)], random.choice(at, count // 2, replace=False))
        chosen.append(at)
    return rows.take(np.concatenate(chosen))


_TENSOR_MENU: Menu = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64), (64, 256),
)  # fmt: skip
_ANY = math.inf
_SGLANG: dict[str, TileDispatch] = {
    "sync GDDR": TileDispatch((
        (1, 8192, (16, 64)), (1, _ANY, (32, 64)), (16, 8192, (16, 64)), (16, 16384, (32, 64)), (16, _ANY, (16, 64)),
        (64, 16384, (32, 64)), (64, _ANY, (16, 64)), (128, 16384, (64, 64)), (128, _ANY, (32, 64)),
        (256, 8192, (128, 64)), (256, 16384, (64, 128)), (256, _ANY, (128, 64)), (_ANY, _ANY, (128, 128)),
    ), down=True, fills=False),
    "wgmma": TileDispatch(((256, _ANY, (64, 64)), (_ANY, _ANY, (128, 128))), down=False, fills=True),
    "tcgen05": TileDispatch(
        ((64, _ANY, (64, 64)), (256, _ANY, (64, 128)), (_ANY, _ANY, (128, 128))), down=False, fills=False
    ),
    "sync12 GDDR": TileDispatch(((128, _ANY, (128, 128)), (_ANY, _ANY, (256, 128))), down=False, fills=False),
}  # fmt: skip
"""Tiles that SGLang's kernels for fp8 take by rows and columns (sgl-kernel/csrc/gemm/fp8_gemm_kernel.cu, ``sm89_``,
``sm90_``, ``sm100_`` and ``sm120_fp8_dispatch_shape``), none of which splits the sum.  Above 64 rows those of compute
capability 10 are of two compute units, half of the rows each.  Before Hopper blocks are numbered down the rows
(``GemmIdentityThreadblockSwizzle``), since then persistent ones go along the side of fewer tiles (CUTLASS,
``get_rasterization_order``, with a swizzle of 1).  The same product of Hopper's takes twice as long with 513 rows as
with 512, 1.6 times with 1,025 and 1.4 with 2,049, whatever its other sizes: so long do its loads take to fill the last
tile with zeros.  In a single row of tiles those of four columns share the loads, and nothing of it shows."""
_SIMT_MENU: Menu = ((128, 128), (64, 128), (32, 128), (128, 32), (64, 64), (32, 64), (32, 32))
"""Tiles of float32 kernels of cuBLAS with one operand transposed, as linear layers call them: all that Volta's,
Turing's and Ampere's libraries have."""
_SIMT_BATCHED: dict[str, Menu] = {
    "Pascal": ((64, 128),), "Volta": ((64, 64), (128, 32), (32, 128)), "Turing": ((64, 64), (64, 128), (32, 128)),
    "Ampere": ((128, 128),),
}  # fmt: skip
"""Tiles that float32 products in batches ran with, by architecture: those of at least 5 % of the kernels' names."""
_MAJOR = {"Pascal": 6, "Volta": 7, "Turing": 7, "Ampere": 8, "Ada": 8, "Hopper": 9, "Blackwell": 10}
"""Compute capability, before the point.  Kernels run on all devices of one, so that they share their library."""

TENSOR = GemmConstants(
    launch_s=2.4e-6, pace=1.0, prologue_s=0.25e-6, reach=0.9, joule=2.4e-12, process=0.7, width=0.4, growth=1.0,
    scales=1.0, knee=6.0, tile=30.0, banks=0.0, step=0.0, resident=0.0, memory=0.82, concurrency=1.17, cache=0.1667,
    latency_s=1.1e-9, stream=1.0, epilogue=1.3, fill_s=0.08e-9, split_s=2e-6, split_under=1.0, cast_s=2e-6,
    cast_rate=0.55, host_s=0.0, host_batched_s=0.0, menus=(_TENSOR_MENU,), menus_batched=(_TENSOR_MENU,),
)  # fmt: skip
"""Where the fit of 16-bit products begins, and what it is drawn towards.

Every measured product runs on six sets of operands in turn (aiconfigurator, collector/sglang/collect_gemm.py,
``outside_loop_count``), hence a sixth of the cache for each.  Voltage rises about as the clock, joules with the square
of the one, hence ``growth``; ``process`` is that of the vector units."""
SIMT = replace(
    TENSOR, prologue_s=0.5e-6, reach=0.9, joule=14e-12, process=0.7, width=0.01, growth=0.0, scales=0.0, knee=16.0,
    tile=8.0, banks=1.0, step=25.0, resident=2.0, memory=0.65, host_s=5e-5, host_batched_s=3e-5, cache=1.0,
    stream=3.0, epilogue=0.8, split_under=0.125, menus=(_SIMT_MENU,),
)  # fmt: skip
"""The same for float32.  A round 14 pJ per operation at 7 nm keeps T4 at its 70 W and V100 near its peak; from one
process to the next it falls less than the logic's energy (16 to 10 to 7 nm by 40 % each, 7 to 5 nm by 30 %, TSMC), as
a part of the power is the memory's.  The knee is sharp: a power limit lowers the clock until it is met.  Registers
hold the sums of two tiles of 128 x 128.  A block alone loses about 25 cycles per step along k to loads from shared
memory and to barriers.  Sizes of these measurements are odd, so that rows are neither loaded nor stored in whole
sectors (``memory``, ``epilogue``).  Ampere's library splits the sum in 97 % of the products of less than a tenth of a
128 x 128 tile per unit, and in 27 % of those of a tenth to a quarter (``split_under``)."""


def simt(devices: Sequence[str]) -> GemmConstants:
    """:data:`SIMT` with the libraries that these devices have shown.

    A device's own architecture counts first, then one of the same compute capability.
    """
    known = [name for name in _SIMT_BATCHED if name in {family_of(catalog.accelerator(d)) for d in devices}]
    families = {}
    for family, major in _MAJOR.items():
        near = [name for name in known if name == family] or [name for name in known if _MAJOR[name] == major]
        if near:
            families[family] = known.index(near[0])
    batched = tuple(_SIMT_BATCHED[name] for name in known)
    return replace(SIMT, menus_batched=batched, families=tuple(families.items()))


WIDTHS = {
    "launch_s": 0.5, "prologue_s": 0.7, "reach": 0.03, "joule": 0.2, "width": 0.1, "tile": 0.7, "memory": 0.1,
    "concurrency": 0.5, "cache": 0.7, "latency_s": 0.5, "stream": 0.7, "epilogue": 0.7, "fill_s": 0.7, "split_s": 0.7,
    "cast_s": 0.7, "cast_rate": 0.7, "host_s": 0.5, "host_batched_s": 0.5,
}  # fmt: skip
"""Standard deviation of a constant's logarithm about its prior."""
NARROW_WIDTH = 0.7
SIMT_WIDTH = 0.1
"""Parts of the widths: 8-bit products stay near the 16-bit constants, float32 ones near their priors, and only
three of them are free: four devices with four libraries of kernels tell a library's quirks, not the physics."""
HALF = 0.5
"""Joules of a FLOP over those of one of twice the bits, where a fit begins: half the bits are moved."""
STRENGTH = 0.005
"""Weight of the priors: one deviation costs as much as this logarithmic error in every row."""

FREE = {
    "tensor": tuple(n for n in WIDTHS if n not in ("fill_s", "cast_s", "cast_rate", "host_s", "host_batched_s")),
    "narrow": tuple(n for n in WIDTHS if n not in ("host_s", "host_batched_s")),
    "tuned": tuple(n for n in WIDTHS if n not in ("fill_s", "host_s", "host_batched_s")),
    "fourbit": tuple(n for n in WIDTHS if n not in ("fill_s", "host_s", "host_batched_s", "width")),
    "simt": ("memory", "host_s", "host_batched_s"),
}


APART: dict[str, tuple[float, tuple[str, ...]]] = {
    "tensor": (0.15, ("launch_s", "prologue_s", "latency_s", "tile", "joule", "memory")),
    "narrow": (0.15, ("launch_s", "prologue_s", "latency_s", "tile", "joule", "memory", "cast_s", "cast_rate")),
    "tuned": (0.7, ("launch_s", "latency_s", "tile", "joule", "memory", "cast_s", "cast_rate")),
}
"""Constants that each generation of matrix units has a factor for, and the standard deviation of its logarithm about 1.
Of products with scales by block the generations run other libraries and casts, hence a wide one."""

LANES = np.arange(0.0, 0.81, 0.01)
"""Exponents that are tried."""

BURST, SETTLED_S = 1.4, 3e-3
"""Isolated measurements are the best of a few repetitions.  Short kernels draw this much more than the power limit
before it takes effect; kernels of SETTLED_S run half like that."""


def predicted(rows: Rows, constants: GemmConstants) -> NDArray[np.float64]:
    """Seconds of each row as measured on its device, host included; all rows must be of one engine."""
    out = np.empty(len(rows))
    every = dict.fromkeys(ENGINES, constants)
    run = in_a_burst if constants.host_s > 0 else _in_a_row
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        out[at] = run(rows.work.take(at), catalog.accelerator(str(name)), every)
    return out + np.where(rows.work.batch > 1, constants.host_batched_s, constants.host_s)


def _in_a_row(work: Gemm, device: Accelerator, constants: Mapping[str, GemmConstants]) -> NDArray[np.float64]:
    return predict(work, device, constants).seconds


def in_a_burst(work: Gemm, device: Accelerator, constants: Mapping[str, GemmConstants]) -> NDArray[np.float64]:
    """Seconds of products of which a few run one after the other, on a device that was idle before (:data:`BURST`)."""
    long = predict(work, device, constants).seconds
    if not device.tdp_w:
        return long
    burst = predict(work, replace(device, tdp_w=BURST * device.tdp_w), constants).seconds
    square = (long / SETTLED_S) ** 2
    return np.asarray(burst * (long / burst) ** (square / (1 + square)))


def errors(rows: Rows, constants: GemmConstants) -> NDArray[np.float64]:
    """log(measured / predicted)."""
    return np.log(rows.seconds / predicted(rows, constants))


def fit_constants(
    rows: Rows, prior: GemmConstants, names: Sequence[str], part: float = 1.0, engine: str = ""
) -> GemmConstants:
    """Constants ``names`` that predict ``rows`` best, the others as in ``prior``; all as in it where there are no rows.

    Those of :data:`APART` have a factor for each generation of matrix units beside, drawn towards 1.
    """
    if not len(rows):
        return prior
    loose, apart = APART.get(engine, (1.0, ()))
    devices = rows.by_device()
    rows = join(*devices.values())
    generations = sorted({generation_of(catalog.accelerator(name)) for name in devices}) if apart else []
    extra = [(generation, name) for generation in generations for name in apart]
    start = np.concatenate([np.log([getattr(prior, name) for name in names]), np.zeros(len(extra))])
    widths = np.array([*(part * WIDTHS[name] for name in names), *(loose for _ in extra)])
    weight = STRENGTH * math.sqrt(len(rows))

    def constants(x: NDArray) -> GemmConstants:
        values = np.exp(x).tolist()
        found = dict(zip(names, values, strict=False))
        factors = dict(zip(extra, values[len(names) :], strict=True))
        each = tuple((one, tuple((name, factors[one, name]) for name in apart)) for one in generations)
        return replace(prior, generations=each, **found)

    def residuals(x: NDArray) -> NDArray:
        return np.concatenate([-errors(rows, constants(x)), weight * (x - start) / widths])

    return constants(least(residuals, start, start - 2.5, start + 2.5, 1e-7))


@dataclass(frozen=True)
class Data:
    """Measurements by engine."""

    tensor: Rows
    narrow: Rows
    tuned: Rows
    fourbit: Rows
    simt: Rows


def measured(count: int = ROWS_PER_DEVICE, seed: int = 0) -> Data:
    """Rows for fitting (or, with another seed, for judging), evenly chosen."""
    floats = [even(isolated(op), count, seed) for op in ("linear", "bmm")]
    kinds = ("bfloat16", "fp8", "fp8_block", "nvfp4")
    sixteen, eight, blocks, four = (even(served(kind), count, seed) for kind in kinds)
    return Data(sixteen, eight, blocks, four, join(*floats))


PUBLISHED = ("RTX-PRO-6000-Server", 4096.0, 399.93e12)
"""FLOP/s of ``torch.mm`` of square matrices in bfloat16 (zzc0721/torch-performance-test-data, issue 162), all there is
of workstations of compute capability 12, whose matrix units draw less than those of L40S."""


def newer(found: dict[str, GemmConstants]) -> dict[str, GemmConstants]:
    """With ``sync12 GDDR``: the factors of ``sync GDDR``, and the joules with which :data:`PUBLISHED` comes out."""
    name, side, flops = PUBLISHED
    device, work = catalog.accelerator(name), gemm(side, side, side, "bfloat16")

    def having(engine: str, ratio: float) -> GemmConstants:
        own = dict(found[engine].generations)
        factors = dict(own["sync GDDR"]) if "sync GDDR" in own else {}
        factors["joule"] = factors.get("joule", 1.0) * ratio
        own["sync12 GDDR"] = tuple(factors.items())
        return replace(found[engine], generations=tuple(own.items()))

    low, high = 0.1, 1.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        seconds = predict(work, device, {"tensor": having("tensor", middle)}).seconds
        low, high = (middle, high) if float(work.flop()[0] / seconds[0]) > flops else (low, middle)
    each = {engine: having(engine, low) for engine in ("tensor", "narrow", "tuned", "fourbit")}
    above = _round(boost())
    return {**found, **{engine: replace(one, boost=above) for engine, one in each.items()}}


def fit(data: Data, without: Without = None) -> dict[str, GemmConstants]:
    """Constants of every engine from the rows of all devices but ``without``."""
    return {"simt": fit_vector(data, without), **fit_matrix(data, without)}


def fit_vector(data: Data, without: Without = None) -> GemmConstants:
    """Constants of the vector units."""
    rows = data.simt.without(without)
    return fit_constants(rows, vector(np.unique(rows.device).tolist(), without), FREE["simt"], SIMT_WIDTH)


def vector(devices: Sequence[str], without: Without = None) -> GemmConstants:
    """:func:`simt` with the exponent of the lanes that published squares of other cards show."""
    return replace(simt(devices), width=lanes(simt(devices), names(without)))


@functools.cache
def lanes(constants: GemmConstants, without: frozenset[str]) -> float:
    """The exponent of the lanes in the joules of vector units with which published squares come out best.

    Made as small as it gets is the mean over the devices of the median over the rows of ``|ln(predicted / measured)|``.
    All of NeuSight's devices have 64 lanes, so that they say nothing of it.

    Args:
        constants: all others.
        without: devices that say nothing either.
    """
    known = squares.read("float32").without(without)

    def off(width: float) -> float:
        own = {"simt": replace(constants, width=width)}
        return float(np.mean([np.median(np.abs(np.log(in_a_burst(work, device, own) / seconds)))
                              for device, work, seconds in known.by_device()]))  # fmt: skip

    return min((float(width) for width in LANES), key=off)


def between() -> float:
    """90 % of what cards differ by in float32: of the medians of published squares, each card left out in turn."""
    own, medians = load().constants["simt"], []
    for device, work, seconds in squares.read("float32").by_device():
        constants = {"simt": replace(own, width=lanes(simt(list(DEVICES.values())), frozenset({device.name})))}
        medians.append(float(np.median(np.log(in_a_burst(work, device, constants) / seconds))))
    return quantile(np.array(medians))


def boost() -> float:
    """Clock over the datasheet's of cards for playing: the median over those of :mod:`validation.data.squares`.

    None of them is in the catalog.
    """
    constants = load().constants
    ratios = []
    for device, work, seconds in squares.read("bfloat16").by_device():
        plain = predict(work, device, {"tensor": replace(constants["tensor"], boost=1.0)}).seconds
        ratios.append(float(np.median(plain / seconds)))
    return float(np.median(ratios))


def begin(engine: str, wider: GemmConstants) -> GemmConstants:
    """Where the fit of a narrower engine begins, and what it is drawn towards: the constants of ``wider``."""
    joule = wider.joule * (1.0 if engine == "tuned" else HALF)
    known = tuple(_SGLANG.items()) if engine == "narrow" else ()
    return replace(wider, joule=joule, generations=(), dispatches=known)


def how(engine: str) -> dict[str, Any]:
    """The further arguments of :func:`fit_constants` for an engine on matrix units."""
    part = NARROW_WIDTH if engine in ("narrow", "fourbit") else 1.0
    return {"names": FREE[engine], "part": part, "engine": engine}


def fit_matrix(data: Data, without: Without = None) -> dict[str, GemmConstants]:
    """Constants of the engines on matrix units; a fit of narrower types begins with the wider one's."""
    tensor = fit_constants(data.tensor.without(without), TENSOR, **how("tensor"))
    narrow = fit_constants(data.narrow.without(without), begin("narrow", tensor), **how("narrow"))
    tuned = fit_constants(data.tuned.without(without), begin("tuned", narrow), **how("tuned"))
    fourbit = fit_constants(data.fourbit.without(without), begin("fourbit", narrow), **how("fourbit"))
    return {"tensor": tensor, "narrow": narrow, "tuned": tuned, "fourbit": fourbit}


def mape(e: NDArray[np.float64]) -> float:
    """Mean of |predicted - measured| / measured."""
    return float(np.mean(np.abs(np.exp(-e) - 1)))


@dataclass(frozen=True)
class Judged:
    """Measured rows of one device and log(measured / predicted) from constants that saw none of them."""

    rows: Rows
    errors: NDArray[np.float64]
    limit: NDArray[np.int8]
    constants: GemmConstants


FOLDS = 4
"""Parts of the shapes left out in turn where an engine was measured on fewer than three devices."""
FOLDED = ("tuned", "fourbit")


def judge(data: Data, test: Data) -> dict[str, dict[str, Judged]]:
    """Each engine on each device, from constants fitted without the device.

    Those with scales by block were measured on two devices and four-bit ones on one: there it is a part of the shapes
    (n, k) that is left out.
    """
    found: dict[str, dict[str, Judged]] = {engine: {} for engine in FREE}
    for name, rows in test.simt.by_device().items():
        found["simt"][name] = _judged(rows, fit_vector(data, name))
    for name in sorted({*test.tensor.device.tolist(), *test.narrow.device.tolist()}):
        fitted = fit_matrix(data, name)
        for engine in ("tensor", "narrow"):
            rows = getattr(test, engine).by_device().get(name)
            if rows is not None:
                found[engine][name] = _judged(rows, fitted[engine])
    narrow = fit_matrix(data)["narrow"]
    for engine in FOLDED:
        found[engine] = _by_shapes(engine, getattr(data, engine), getattr(test, engine), narrow)
    return found


def _by_shapes(engine: str, known: Rows, test: Rows, narrow: GemmConstants) -> dict[str, Judged]:
    """A part of the shapes left out in turn, on each device."""
    first = begin(engine, narrow)
    parts: dict[str, list[Judged]] = {}
    for fold in range(FOLDS):
        constants = fit_constants(known.take(np.flatnonzero(_fold(known) != fold)), first, **how(engine))
        for name, rows in test.take(np.flatnonzero(_fold(test) == fold)).by_device().items():
            parts.setdefault(name, []).append(_judged(rows, constants))
    return {
        name: Judged(
            join(*(one.rows for one in each)), np.concatenate([one.errors for one in each]),
            np.concatenate([one.limit for one in each]), first,
        )
        for name, each in parts.items()
    }  # fmt: skip


def _fold(rows: Rows) -> NDArray[np.int64]:
    return (np.log2(rows.work.n) * 7 + np.log2(rows.work.k) * 13).round().astype(np.int64) % FOLDS


def _judged(rows: Rows, constants: GemmConstants) -> Judged:
    limit = np.empty(len(rows), np.int8)
    every = dict.fromkeys(ENGINES, constants)
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        limit[at] = predict(rows.work.take(at), catalog.accelerator(str(name)), every).limit
    return Judged(rows, errors(rows, constants), limit, constants)


FEWEST = 50
MARGIN = {"tensor": 1.35, "simt": 1.35}
"""The largest quantile of a few devices is exceeded by the next device about as often as not; with this factor the
intervals that three devices give cover 85 % on each fourth one in bf16 and in float32.  8 bits hold an odd device
already (L40S), whose quantile makes the intervals on ordinary devices too wide as it is."""
LIMITS = (Limit.COMPUTE, Limit.MEMORY, Limit.LAUNCH)


def spreads(judged: Sequence[Judged], unseen: bool, margin: float = 1.0) -> dict[str, float]:
    """90 % of |errors| by what binds: pooled over the devices, or the largest of one device.

    A class with fewer than FEWEST rows on a device has the quantile of all its rows there.
    """
    groups = [(one.errors, one.limit) for one in judged]
    if not unseen:
        errors, limits = zip(*groups, strict=True)
        groups = [(np.concatenate(errors), np.concatenate(limits))]
    found = {}
    for limit in LIMITS:
        widths = [quantile(e[at] if (at := of == limit).sum() >= FEWEST else e) for e, of in groups]
        found[limit.name.lower()] = max(widths) * (margin if unseen else 1.0)
    return found


def covered(name: str, devices: dict[str, Judged], margin: float) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether the interval that the other devices give holds each row of device ``name``, and its half-width.

    A device whose library they have shown is as one that was seen.
    """
    others = [one for device, one in devices.items() if device != name] or list(devices.values())
    known = family_of(catalog.accelerator(name)) in dict(devices[name].constants.families)
    width = spreads(others, not known, margin)
    half = np.array([width.get(limit.name.lower(), max(width.values())) for limit in Limit])[devices[name].limit]
    return np.abs(devices[name].errors) <= half, half


def table(judged: dict[str, dict[str, Judged]]) -> str:
    """Accuracy on devices left out; coverage and factor of the intervals that the other devices give."""
    lines = [f"{'engine':9s}{'type':15s}{'left out':18s}  rows   MAPE median   bias    90 %  >50us  covered   factor"]
    for engine, devices in judged.items():
        for name, one in devices.items():
            rows, e = one.rows, one.errors
            holds, half = covered(name, devices, MARGIN.get(engine, 1.0))
            kinds = [(DTYPES[rows.work.dtype[0]], np.ones(len(rows), bool))]
            if engine == "simt":
                kinds += [("  linear", rows.work.batch == 1), ("  bmm", rows.work.batch > 1)]
            for kind, at in kinds:
                long = at & (rows.seconds > 50e-6)
                lines.append(
                    f"{engine:9s}{kind:15s}{name:18s}{at.sum():6d}{100 * mape(e[at]):7.1f}"
                    f"{100 * float(np.median(np.abs(e[at]))):7.1f}{float(np.median(e[at])):7.2f}{quantile(e[at]):8.2f}"
                    f"{100 * mape(e[long]):7.1f}{100 * holds[at].mean():9.1f}"
                    f"{math.exp(float(np.median(half[at]))):9.2f}"
                )
        lines.append(f"{engine:9s}mean {100 * np.mean([mape(one.errors) for one in devices.values()]):.1f}")
    return "\n".join(lines)


def _bound(size: float) -> float | None:
    return None if math.isinf(size) else size


def _round(x: float) -> float:
    return float(f"{x:.4g}")


def as_written(constants: GemmConstants) -> GemmConstants:
    """With the digits that the file keeps, so that what is worked out from them fits those that are used."""
    rounded: dict[str, Any] = {name: _round(getattr(constants, name)) for name in MEANING}
    generations = tuple(
        (one, tuple(sorted((name, _round(factor)) for name, factor in factors)))
        for one, factors in constants.generations
    )
    return replace(constants, generations=generations, **rounded)


MEANING = {
    "launch_s": ("s at 1.8 GHz", "shortest kernel"),
    "pace": ("1", "exponent of the clock in the constants in seconds"),
    "prologue_s": ("s at 1.8 GHz", "start of one wave of tiles"),
    "reach": ("1", "part of the peak that large tiles reach where power does not bind"),
    "joule": ("J/FLOP", "energy of an operation at 7 nm and the engine's reference width"),
    "process": ("1", "exponent of (nm / 7)"),
    "growth": ("1", "exponent of the clock of the peak over 1.41 GHz"),
    "scales": ("0 or 1", "whether the voltage falls with the clock"),
    "width": ("1", "exponent of the operations per cycle and unit, over the engine's reference"),
    "knee": ("1", "exponent that joins the peak and the power limit: how sharp the limit is"),
    "tile": ("rows", "tm tn / (tm + tn) at which a tile reaches half of what an infinite one would"),
    "banks": ("1", "exponent by which tile grows with the operations per cycle and unit"),
    "step": ("cycles", "what a block loses at every step along the summed dimension unless others run beside it"),
    "resident": ("tiles of 128 x 128", "blocks that a unit holds at one time; one block where it is 0"),
    "memory": ("1", "part of the memory bandwidth that is reached"),
    "concurrency": ("1", "bandwidth grows with this times the blocks per unit until it is full"),
    "cache": ("1", "part of the last-level cache in which operands of a repeated call stay"),
    "latency_s": ("s at 1.8 GHz", "one step along the summed dimension"),
    "stream": ("1", "how far blocks stream into freed units: 0 whole waves, infinite no waves"),
    "epilogue": ("1", "stores of C, times 64 bytes per cycle and unit"),
    "fill_s": ("s at 1.8 GHz", "fill of a row beyond the end of A, for each term of the sum"),
    "split_s": ("s at 1.8 GHz", "kernel that adds the partial sums of split-K"),
    "split_under": ("1", "blocks per unit below which libraries split the sum"),
    "cast_s": ("s at 1.8 GHz", "kernel that casts A"),
    "cast_rate": ("1", "part of the memory bandwidth that the kernel that casts A reaches"),
    "host_s": ("s", "time of the host inside isolated measurements; not of the kernel"),
    "host_batched_s": ("s", "the same of products in batches"),
    "boost": ("1", "clock over the datasheet's of cards with half of their matrix units and memory without ECC"),
}


def document(constants: dict[str, GemmConstants], judged: dict[str, dict[str, Judged]]) -> dict[str, Any]:
    """The file of constants."""
    spread = {}
    for engine, devices in judged.items():
        ones = list(devices.values())
        of = family_of if engine == "simt" else generation_of
        families = sorted({of(catalog.accelerator(d)) for d in devices} | set(dict(constants[engine].families)))
        unseen = spreads(ones, True, MARGIN.get(engine, 1.0))
        if engine in FOLDED:  # nothing is known of other devices: no narrower than eight bits
            wider = spreads(list(judged["narrow"].values()), True)
            unseen = {name: max(value, wider[name]) for name, value in unseen.items()}
        seen = spreads(ones, False)
        if engine == "simt":  # four devices, one of them odd; what a new one differs by is known from more
            name = Limit.COMPUTE.name.lower()
            unseen[name] = min(unseen[name], math.hypot(seen[name], between()))
        spread[engine] = {
            "seen": {name: _round(min(value, unseen[name])) for name, value in seen.items()},
            "unseen": {name: _round(value) for name, value in unseen.items()},
            "families": families,
        }
    return {
        "schema": SCHEMA,
        "kind": "gemm",
        "units": {name: {"unit": unit, "meaning": meaning} for name, (unit, meaning) in MEANING.items()},
        "constants": {
            engine: {name: _round(getattr(constants[engine], name)) for name in MEANING} for engine in ENGINES
        },
        "menus": {engine: {"single": constants[engine].menus, "batched": constants[engine].menus_batched,
                           "families": dict(constants[engine].families)} for engine in ENGINES},
        "generations": {
            engine: {one: {name: _round(factor) for name, factor in factors}
                     for one, factors in constants[engine].generations}
            for engine in ENGINES if constants[engine].generations
        },
        "dispatches": {
            engine: {one: {"tiles": [[_bound(rows), _bound(columns), tile] for rows, columns, tile in known.tiles],
                           "down": known.down, "fills": known.fills}
                     for one, known in constants[engine].dispatches}
            for engine in ENGINES if constants[engine].dispatches
        },
        "spread": spread,
        "provenance": {
            "script": "validation/fit/physical_gemm.py",
            "inputs": list(INPUTS),
            "sources": "matrix units: aiconfigurator GEMM tables, SGLang 0.5.10 (Apache-2.0); vector units: NeuSight "
            "float32 linear and bmm, PyTorch 2.1 (MIT)",
            "form": "the formulas, the priors and the energy exponents were chosen with all devices in view, as were "
            "all constants of simt but width, memory and the two of the host; figures below come from constants fitted "
            "without the device named (tuned and fourbit: without the shapes)",
            "left_out": {
                engine: {name: {"rows": len(one.rows), "mape": _round(mape(one.errors)),
                                "covered": _round(float(covered(name, devices, MARGIN.get(engine, 1.0))[0].mean()))}
                         for name, one in devices.items()}
                for engine, devices in judged.items()
            },
        },
    }  # fmt: skip


def main() -> None:
    """Fit, print the table, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    data = measured()
    judged = judge(data, measured(TEST_ROWS, 1))
    print(table(judged))
    constants = newer({engine: as_written(found) for engine, found in fit(data).items()})
    for engine, c in constants.items():
        print(f"{engine:9s}" + " ".join(f"{name} {getattr(c, name):.3g}" for name in MEANING))
        for generation, factors in c.generations:
            print(f"  {generation:12s} " + " ".join(f"{name} x {factor:.3g}" for name, factor in factors))
    if arguments.write:
        TARGET.write_text(json.dumps(document(constants, judged), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
