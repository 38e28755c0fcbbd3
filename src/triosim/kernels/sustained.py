"""What a device sustains for minutes, where its benchmarks run for milliseconds.

Measured kernels, and the models fitted to them, are bursts: a few repetitions that are over before the governor of the
power has seen them.  A training, or a server, runs for minutes.  Then the matrix units draw what they switch, and the
clock falls until that fits the TDP, by the one law of clock, voltage and power (:mod:`triosim.hardware.power`)::

    joule  = joule_0 (clock_of_peak / 1.41 GHz)^growth      of a 16-bit FLOP at the full clock and voltage
    watts  = joule x FLOP/s that the operator reaches at the full clock, in 16-bit FLOP
    clock  = law.clock((limit TDP - static) / watts)        over the full one
    time   = burst time x (clock in the burst) / clock      where that is longer

A FLOP of 8 bits moves half the bits and multiplies a quarter of the digits: it takes ``2^-narrowing`` of the joules of
one of 16, where a device multiplies twice as many in a cycle; a generation of matrix units may have an exponent of its
own.  A FLOP of attention takes ``attention`` of a product's joules.  A higher clock needs a higher voltage, therefore
``growth``.  ``data/physical/sustained.json`` has the constants: ``validation/fit/sustained.py`` fits joule and growth
to products of published long-running measurements on an A100 PCIe and a B200, and chooses the others by published
trainings.

Only what is reckoned by the physical models is moved, and of that products and attention that their arithmetic binds:
recorded and calibrated times are what ran, and the convolutions' constants were fitted to a training step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS, multiplication
from triosim.kernels.classes import ATTENTION, ATTENTION_BACKWARD, EXPERTS, MATRIX, classify
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.physical import _constants, gemm
from triosim.kernels.work.gemm import Gemm, scaled_by_rows
from triosim.kernels.work.moe import ExpertCalls
from triosim.trace.tables import Trace

REFERENCE_HZ = 1.41e9
"""Clock at which ``joule`` holds: that of the A100."""
_PRODUCTS = (MATRIX, EXPERTS)
_MOVED = (*_PRODUCTS, ATTENTION, ATTENTION_BACKWARD)


@dataclass(frozen=True)
class SustainedConstants:
    """Of the law above.

    Attributes:
        joule: of a 16-bit FLOP on matrix units at :data:`REFERENCE_HZ`.
        growth: exponent of the clock.
        narrowing: exponent of the rate of 16 bits over that of narrower types.
        generations: the same of generations of matrix units that have another one.
        attention: joules of a FLOP of attention over those of a product.
    """

    joule: float
    growth: float
    narrowing: float = 1.0
    attention: float = 1.0
    generations: tuple[tuple[str, float], ...] = ()

    def narrowing_of(self, generation: str) -> float:
        """The exponent of a generation of matrix units (:func:`~triosim.kernels.physical.gemm.generation_of`)."""
        return dict(self.generations).get(generation, self.narrowing)


@functools.cache
def load() -> SustainedConstants:
    """The constants that come with the program."""
    found = _constants.document("sustained")
    generations = tuple(sorted((name, float(value)) for name, value in found["generations"].items()))
    values = {name: float(row["value"]) for name, row in found["constants"].items()}
    return SustainedConstants(**values, generations=generations)


def clock_of_peak(device: Accelerator) -> float:
    """Clock in Hz at which the datasheet's peak holds; boards that boost higher keep the peak of that clock.

    A matrix unit does a power of two of FLOP in a cycle, so that peak and units tell the clock.
    """
    chip = gemm.silicon(device, _half(device))
    return chip.peak / (chip.units * 2.0 ** round(math.log2(chip.width)))


def _half(device: Accelerator) -> str:
    """The 16-bit type of a device's matrix units."""
    return "bfloat16" if "bfloat16" in device.peak_flops else "float16"


def slowdown(
    device: Accelerator, dtype: str, rate: NDArray[np.float64] | float, burst: float = 1.0, part: float = 1.0
) -> NDArray[np.float64]:
    """How much longer than in a burst operators take that multiply for minutes, 1 or more each.

    Args:
        device: with its TDP and peaks.
        dtype: what is multiplied.
        rate: FLOP/s of each at the full clock, any shape.
        burst: clock over the full one at which it runs in a burst.
        part: joules of its FLOP over those of a product.
    """
    static, chip = power.static_w(device), gemm.silicon(device, dtype)
    if static is None or device.tdp_w is None or gemm.halved(chip, gemm.REFERENCE_WIDTH[chip.unit]):
        return np.ones_like(rate)
    c, law = load(), power.constants()
    joule = c.joule * (clock_of_peak(device) / REFERENCE_HZ) ** c.growth
    narrower = device.peak(_half(device)) / device.peak(dtype)
    watts = part * joule * rate * narrower ** c.narrowing_of(gemm.generation_of(device))
    room = law.limit * device.tdp_w - static
    clock = law.clock(room / np.where(watts > 0, watts, np.inf))
    return np.where(watts > 0, np.maximum(burst / clock, 1.0), 1.0)


def burst_clock(device: Accelerator, dtype: str, engine: str = "") -> float:
    """Clock over the full one at which long products run in a burst, as the model of products has it.

    Args:
        device: with its TDP and peaks.
        dtype: what is multiplied.
        engine: one of :func:`~triosim.kernels.physical.gemm.engines`, ``""`` for the unit's own.
    """
    chip = gemm.silicon(device, dtype)
    own = gemm.load().constants[engine or chip.unit].on(gemm.generation_of(device))
    return gemm.sustained(chip, own, gemm.REFERENCE_WIDTH[chip.unit]) / (own.reach * chip.peak)


def burst_clocks(work: Gemm | ExpertCalls, device: Accelerator) -> NDArray[np.float64]:
    """The same of each product, 1 where nothing holds it back.

    Args:
        work: products, or calls of experts.
        device: what they run on.
    """
    out = np.ones(len(work))
    if device.kind not in GPUS or device.tdp_w is None:
        return out
    for code in distinct(work.dtype).tolist():
        how = multiplication(device, DTYPES[code])
        if how.unit == "simt":
            continue
        rows = work.dtype == code
        out[rows] = burst_clock(device, how.dtype)
        if isinstance(work, Gemm) and gemm.TUNED in gemm.engines(device, how.dtype):
            out[rows & work.tuned] = burst_clock(device, how.dtype, gemm.TUNED)
    return out


def sustained(trace: Trace, device: Accelerator, times: Estimates) -> Estimates:
    """Operator times as they are when the device has run for minutes.

    Args:
        trace: the operators, with their FLOP.
        device: what they run on.
        times: of a burst.
    """
    if device.kind not in GPUS or device.tdp_w is None or not device.priced:
        return times
    classified = classify(trace, device)
    moved = np.isin(classified.group, _MOVED) & (times.source == Source.PHYSICAL) & (times.limit == Limit.COMPUTE)
    moved &= (classified.dtype >= 0) & (times.seconds > 0)
    seconds, clock = times.seconds.copy(), np.ones(len(times))
    flop = np.nan_to_num(trace.operators.flop)
    for code in distinct(classified.dtype[moved]).tolist():
        how = multiplication(device, DTYPES[code])
        if how.unit == "simt":
            continue
        for group in _MOVED:
            rows = np.flatnonzero(moved & (classified.dtype == code) & (classified.group == group))
            for engine, some in _by_engine(trace, device, how.dtype, group, rows):
                burst = burst_clock(device, how.dtype, engine) if group in _PRODUCTS else 1.0
                part = 1.0 if group in _PRODUCTS else load().attention
                rates = np.round(flop[some] / seconds[some] / burst, -9)
                found, back = np.unique(rates, return_inverse=True)
                slow = slowdown(device, how.dtype, found, burst, part)[back.ravel()]
                seconds[some] *= slow
                clock[some] = burst / slow
    return replace(times, seconds=seconds, clock=clock)


def _by_engine(
    trace: Trace, device: Accelerator, dtype: str, group: int, rows: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Operators of a group by what multiplies them: its kernels have a clock of their own in a burst."""
    if group != MATRIX or gemm.TUNED not in gemm.engines(device, dtype):
        yield "", rows
        return
    other = scaled_by_rows(trace, rows)
    yield "", rows[other]
    yield gemm.TUNED, rows[~other]


def most(device: Accelerator, dtype: str) -> float:
    """FLOP/s of products of a type that the models of products never say more of, in minutes.

    A step along the summed dimension takes its FLOP at the rate of the best tile at least.  A product that its
    arithmetic binds falls to the clock that is sustained; of one that its memory binds, which takes as long by itself,
    the two together take ``2^(1/4)`` times as long.
    """
    peak = device.peak(dtype)
    how = multiplication(device, dtype)
    if device.kind not in GPUS or device.design is not None or how.unit != "tensor" or how.rate != 1:
        return peak
    found, chip = 0.0, gemm.silicon(device, how.dtype)
    for engine in gemm.engines(device, how.dtype):
        reached, full = gemm.most(device, how.dtype, engine), burst_clock(device, how.dtype, engine)
        slow = float(slowdown(device, how.dtype, np.array(reached / full), full))
        found = max(found, reached / slow, reached / 2**0.25)
    own = gemm.load().constants[chip.unit]
    return min(found, peak * gemm.headroom(chip, own, gemm.REFERENCE_WIDTH[chip.unit]))
