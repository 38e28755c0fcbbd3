"""Transfer of recorded times to other shapes and to other devices."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.accelerator import Accelerator
from triosim.kernels import anchoring
from triosim.kernels.base_model import BaseOperatorModel, Prediction
from triosim.kernels.changes import changed, same_device, work_ratio
from triosim.kernels.classes import BYTES_ONLY, ENGINES, by_name
from triosim.kernels.estimate import Z90, Source
from triosim.kernels.model import MeasuredTrace
from triosim.trace.calls import mixed
from triosim.trace.tables import Trace


class TransferredTimes(NamedTuple):
    """Operators by one recording, one row each; NaN seconds where it says nothing.

    Attributes:
        seconds: recorded, or anchored to what was recorded.
        spread: half-width of the 90 % interval, natural logarithm.
        source: :class:`~triosim.kernels.estimate.Source` codes.
    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.int8]


def transferred(
    asked: Trace, device: Accelerator, recording: MeasuredTrace, basis: BaseOperatorModel, now: Prediction
) -> TransferredTimes:
    """What a recording says of the operators of ``asked`` on ``device``.

    Recorded times where shapes and device are those of the recording; elsewhere *anchored* ones, see
    :func:`anchored`, unless the device of the recording has no datasheet.

    Args:
        asked: operators with the shapes to be priced.
        device: what they run on.
        recording: the same operators, row for row, as they were recorded.
        basis: what carries times over.
        now: what it says of ``asked`` on ``device``.
    """
    here = same_device(device, recording.device)
    measured = recording.trace.operators.device_s
    known = np.isfinite(measured) & ~asked.operators.view
    moved = changed(asked, recording.trace) | (not here)
    kept, rest = known & ~moved, known & moved
    seconds = np.where(kept, measured, np.nan)
    spread = np.full(len(asked), anchoring.load().recorded_spread)
    source = np.full(len(asked), Source.RECORDED, np.int8)
    if rest.any() and recording.device.priced:
        then = basis.predict(recording.trace, recording.device, launches(recording.trace))
        # how far the shapes are apart is measured in modelled time on the device that is priced
        before = then if here else basis.predict(recording.trace, device, launches(recording.trace))
        anchor, drifted = anchored(asked, device, recording, now, then, before.seconds)
        seconds, spread = np.where(rest, anchor, seconds), np.where(rest, drifted, spread)
        source[rest] = Source.ANCHORED
    return TransferredTimes(seconds, spread, source)


def launches(recorded: Trace) -> NDArray[np.int64] | None:
    """Kernels that each operator launched, at least 1; None where the recording names no kernels."""
    if not len(recorded.kernels):
        return None
    return np.maximum(np.bincount(recorded.kernels.operator, minlength=len(recorded)), 1)


def anchored(
    asked: Trace,
    device: Accelerator,
    recording: MeasuredTrace,
    now: Prediction,
    then: Prediction,
    before: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recorded time x model(now) / model(then), less what does not last of the model's error; seconds and spread.

    What the model is off by for an operator is ``r = log(recorded / model(then))``.  The mean of a class lasts on the
    device of the recording (:func:`_means`), and so does a part ``persist`` of what an operator differs from it by; the
    rest fades with the distance, ``exp(-d / length)`` of it is there after a change ``d`` of the logarithm of modelled
    time, ``before`` being that of the recorded shapes (a stationary process, Ornstein-Uhlenbeck).  Where the modelled
    time does not move, neither does the recorded one: a time that is all launch stays what it was.  Nothing that the
    model says takes longer takes less time.

    On another device only the part ``exp(-D / device_length)`` of that is carried over, ``D`` being how different the
    two are (:func:`triosim.kernels.device_distance.distance`): a matrix product that one device runs below the model
    another may not.  So it is for another engine of the same device (half precision instead of float32), of which a
    recording says nothing.  Of what is beyond the model's own interval all is carried over: that operator does other
    work than the model counts, a coarse operator of several kernels, and will do it anywhere.

    The spread is ``drift * sqrt(1 - exp(-2 d / length))`` with ``d`` the logarithm of the change of work, the error of
    carrying over such a process by ``d``; and in the same way ``device_spread`` with ``D``.
    """
    constants = anchoring.load()
    known = constants.residuals[now.basis]
    measured = recording.trace.operators.device_s
    both = (now.seconds > 0) & (then.seconds > 0) & (measured > 0)
    moved = logarithm(np.divide(now.seconds, before, out=np.ones_like(measured), where=both & (before > 0)))
    residual = np.log(np.divide(measured, then.seconds, out=np.ones_like(measured), where=both))
    work = logarithm(work_ratio(asked.operators, recording.trace.operators))
    apart = 0.0 if same_device(device, recording.device) else distance(device, recording.device)
    other_work = _other_work(now, then)
    elsewhere = other_work | (not same_device(device, recording.device))

    bounded = np.clip(residual, -then.spread, then.spread)
    mean = _means(recording.trace, known, then, bounded, both)
    persistent_share = known.column("persist", now.classified)
    part = persistent_share + (1 - persistent_share) * np.exp(-moved / known.keep_length)
    # what fades faster than the work grows would make more work take less time
    deviation = np.clip(bounded - mean, -known.keep_length, known.keep_length)
    shared = np.where(other_work, 0.0, np.exp(-apart / known.column("device_length", now.classified)))
    kept = shared * (bounded - (1 - part) * deviation)
    seconds = np.where(both, now.seconds * np.exp(residual - bounded + kept), measured)

    drift = known.column("drift", now.classified) * np.sqrt(-np.expm1(-2 * work / known.drift_length))
    # wider on families that were not measured, in the measure that the model is; where no pair of devices was
    # measured it is the widest of all already
    paired = known.column("paired", now.classified) > 0
    strange = np.where(paired, now.spread / np.maximum(now.usual, 1e-12), 1.0)
    between = known.column("device_spread", now.classified) * strange * np.sqrt(1 - shared**2)
    between = np.where(other_work, now.spread, between)
    spread = np.hypot(np.hypot(drift, constants.recorded_spread), np.where(elsewhere & both, between, 0.0))
    return seconds, spread


def _means(
    trace: Trace, known: anchoring.Residuals, then: Prediction, bounded: NDArray[np.float64], both: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean residual of each operator's class on the device of the recording.

    Operators that are bound by bytes are of one class where they have the same name: each is a kernel of its own.
    Operators of the same modelled time count once: a layer that is repeated says no more than one.  Each weighs what
    it takes, since short kernels vary more.  Few say little: ``n`` count ``n / (n + few)``, the rest being what is
    known without any, 0; of unequal weights ``n`` are ``(sum w)^2 / sum w^2`` (Kish's effective sample size).
    """
    at = np.flatnonzero(both)
    out = np.zeros(len(bounded))
    if not at.size:
        return out
    names = {name: code for code, name in enumerate(dict.fromkeys(trace.operators.name))}
    code = by_name(trace.operators.name, names.__getitem__)[at]
    engine = then.classified.engine[at].astype(np.int64)
    kernel = np.where(engine == BYTES_ONLY, code, 0)
    classes = (then.classified.group[at] * len(ENGINES) + engine) * len(names) + kernel
    same = mixed(then.seconds[at].view(np.uint64) ^ mixed(classes.astype(np.uint64)))
    _, first, row = np.unique(same, return_index=True, return_inverse=True)
    each = np.bincount(row.ravel(), bounded[at]) / np.bincount(row.ravel())
    of, weight = classes[first], then.seconds[at][first]
    total, square = np.bincount(of, weight), np.bincount(of, weight**2)
    some = np.where(total > 0, total, 1.0)
    mean, count = np.bincount(of, weight * each) / some, total**2 / np.where(square > 0, square, 1.0)
    few = known.column("few", then.classified)[at]
    out[at] = mean[classes] * count[classes] / (count[classes] + few)
    return out


def _other_work(now: Prediction, then: Prediction) -> NDArray[np.bool_]:
    """Whether the two are of different classes, engines or models, so that residuals of one say little of the other."""
    a, b = now.classified, then.classified
    return (a.group != b.group) | (a.engine != b.engine) | (now.basis != then.basis)


def logarithm(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm of a change, without its sign; an operator left without work (ratio 0) is very far."""
    return np.asarray(np.abs(np.log(np.maximum(ratio, 1e-12))))


def combined(several: list[TransferredTimes]) -> TransferredTimes:
    """What several recordings say, operator by operator.

    Times are averaged as logarithms, each with the inverse square of its spread.  Their errors are taken to go
    together, as all have that of the device that is priced: the spread is the mean of theirs, and what they differ by
    on top.  A time that was recorded as it is asked for stays what it is.
    """
    if len(several) == 1:
        return several[0]
    seconds, spread, source = (np.stack(columns) for columns in zip(*several, strict=True))
    finite = np.isfinite(seconds)
    exact = finite & (source == Source.RECORDED)
    finite = np.where(exact.any(0), exact, finite)
    nothing = finite & (seconds <= 0)
    weight = np.where(finite, 1 / np.maximum(spread, 1e-6) ** 2, 0.0)
    total = weight.sum(0)
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    log = np.log(np.where(finite & (seconds > 0), seconds, 1.0))
    middle = (share * log).sum(0)
    differ = Z90 * np.sqrt((share * (log - middle) ** 2).sum(0))
    alone = np.where(finite, seconds, 0.0).sum(0)  # of the one that tells, to the last bit
    found = np.where(nothing.any(0), 0.0, np.where(finite.sum(0) == 1, alone, np.exp(middle)))
    best = np.take_along_axis(source, np.argmax(share, 0)[None], 0)[0]
    return TransferredTimes(
        np.where(total > 0, found, np.nan), np.hypot((share * np.nan_to_num(spread)).sum(0), differ), best
    )


# --- how different two devices are ------------------------------------------------------------------------------------

FIGURES = ("memory_bandwidth", "cache_bytes", "compute_units", "clock_hz")
PEAKS = ("float32", "bfloat16")
"""Peaks that are compared: those of the vector units and of the matrix units."""

STRANGE = math.log(2.0)
"""What a figure counts that only one of the two datasheets gives: as much as a factor of two."""
OTHER_FAMILY = 1.0
"""What another architecture counts, besides its figures: as much as a factor of e.  Chosen, as is :data:`STRANGE`: the
lengths over which likeness fades are fitted in these units (``validation/fit/anchoring.py``)."""


def distance(a: Accelerator, b: Accelerator) -> float:
    """Root of the summed squares of the logarithms of the ratios of the figures, and more between architectures.

    0 for the same device, 0.36 between H100 and H200 (bandwidth alone), 2.8 between A100 and H100.  Symmetric.
    """
    square = 0.0
    for name in FIGURES:
        square += _apart(getattr(a, name), getattr(b, name)) ** 2
    for dtype in PEAKS:
        square += _apart(a.peak_flops.get(dtype), b.peak_flops.get(dtype)) ** 2
    family = (a.vendor, a.architecture.split(" ")[0]) != (b.vendor, b.architecture.split(" ")[0])
    return math.sqrt(square) + OTHER_FAMILY * family


def _apart(x: float | None, y: float | None) -> float:
    if not x and not y:
        return 0.0
    return math.log(x / y) if x and y else STRANGE
