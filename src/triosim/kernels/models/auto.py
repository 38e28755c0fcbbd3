"""The best that is known of each operator: its recorded time, else one anchored to it, else a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.errors import InputError
from triosim.kernels import anchoring
from triosim.kernels.changes import changed, growth, same_device, undecided, work_ratio
from triosim.kernels.classes import BYTES_ONLY, ENGINES, by_name
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import Job, OperatorModel
from triosim.kernels.modelled import Basis, Modelled
from triosim.kernels.models._recording import nothing
from triosim.kernels.models.physical import Physics
from triosim.registry import registered
from triosim.workload.trace import Trace


@registered
class Auto(OperatorModel):
    """Operator by operator, the first of these that applies:

    * its shapes and the device are those of the recording: the recorded time;
    * it was recorded at other shapes, or on another device: *anchored*, recorded time x model(new shapes, new
      device) / model(recorded shapes, recording device), see :func:`_anchored`.  A device without a datasheet cannot
      be priced: there the recorded time is scaled with the work above the recording's floor (:func:`_proportional`);
    * it was not recorded: the model alone.

    Operators of which it is not known whether they follow the batch get an interval that reaches from "unchanged" to
    "fully scaled".

    Args:
        basis: the model; the physical ones where not given.
    """

    def __init__(self, basis: Basis | None = None) -> None:
        self.basis = basis or Physics()

    def price(self, job: Job) -> Estimates:
        """Seconds of every operator of ``job.trace`` on ``job.device``.

        Raises:
            InputError: the device has no datasheet figures and is not that of the recording.
        """
        here = job.recorded_on is not None and same_device(job.device, job.recorded_on)
        if not here or job.device.priced:
            return self._priced(job, here)
        return _undecided(job, _proportional(job))

    def _priced(self, job: Job, here: bool) -> Estimates:
        if job.recorded_on is None:
            found = self.basis.modelled(job.trace, job.device)
            source = np.full(len(job.trace), found.source)
            return _undecided(job, _estimates(found.seconds, found.spread, source, found.limit, found.notes))
        moved = changed(job.trace, job.recorded) | (not here)
        launches = _launches(job.recorded)
        now = self.basis.modelled(job.trace, job.device, launches)
        measured = job.recorded.operators.device_s
        known = np.isfinite(measured) & ~job.trace.operators.view
        kept, rest = known & ~moved, known & moved
        seconds = np.where(kept, measured, now.seconds)
        spread = np.where(kept, anchoring.load().recorded_spread, now.spread)
        source = np.where(kept, Source.RECORDED, now.source)
        if rest.any() and job.recorded_on.priced:
            then = self.basis.modelled(job.recorded, job.recorded_on, launches)
            carried, drifted = _anchored(job, now, then, here)
            seconds = np.where(rest, carried, seconds)
            spread = np.where(rest, drifted, spread)
            source = np.where(rest, Source.ANCHORED, source)
        return _undecided(job, _estimates(seconds, spread, source, now.limit, now.notes))


def _estimates(
    seconds: NDArray, spread: NDArray, source: NDArray, limit: NDArray[np.int8], notes: tuple[str, ...] = ()
) -> Estimates:
    """Columns of an :class:`Estimates`; an operator without time comes from nowhere and is certain."""
    idle = seconds == 0
    source = np.where(idle, Source.NOTHING, source).astype(np.int8)
    return Estimates(seconds, np.where(idle, 0.0, spread), source, limit, notes)


def _launches(recorded: Trace) -> NDArray[np.int64] | None:
    """Kernels that each operator launched, at least 1; None where the recording names no kernels."""
    if not len(recorded.kernels):
        return None
    return np.maximum(np.bincount(recorded.kernels.operator, minlength=len(recorded)), 1)


def _anchored(job: Job, now: Modelled, then: Modelled, here: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recorded time x model(now) / model(then), less what does not last of the model's error; seconds and spread.

    What the model is off by for an operator is ``r = log(recorded / model(then))``.  The mean of a class lasts on the
    device of the recording (:func:`_means`), and so does a part ``persist`` of what an operator differs from it by; the
    rest fades with the distance, ``exp(-d / length)`` of it is there after a change ``d`` of the logarithm of modelled
    time (a stationary process, Ornstein-Uhlenbeck).  Where the modelled time does not move, neither does the recorded
    one: a time that is all launch stays what it was.  More work never takes less time.

    On another device, or another engine of it (half precision instead of float32), only a part ``transfer`` of that is
    carried over: a matrix product that one device runs below the model another may not.  Of what is beyond the
    model's own interval all is: that operator does other work than the model counts, a coarse operator of several
    kernels, and will do it anywhere.

    The spread is ``drift * sqrt(1 - exp(-2 d / length))`` with ``d`` the logarithm of the change of work: the error of
    carrying over such a process by ``d``.
    """
    constants = anchoring.load()
    known = constants.residuals[now.basis]
    measured = job.recorded.operators.device_s
    both = (now.seconds > 0) & (then.seconds > 0) & (measured > 0)
    ratio = np.divide(now.seconds, then.seconds, out=np.ones_like(measured), where=both)
    residual = np.log(np.divide(measured, then.seconds, out=np.ones_like(measured), where=both))
    work = _distance(work_ratio(job.trace.operators, job.recorded.operators))
    strangers = _other_work(now, then)
    other = both & (strangers | (not here))

    within = np.clip(residual, -then.spread, then.spread)
    mean = _means(job.recorded, known, then, within, both)
    persist = known.column("persist", now.classified)
    part = persist + (1 - persist) * np.exp(-np.where(other, work, _distance(ratio)) / known.keep_length)
    # what fades faster than the work grows would make more work take less time
    apart = np.clip(within - mean, -known.keep_length, known.keep_length)
    carried = within - (1 - part) * apart
    carried = np.where(other, known.column("transfer", now.classified) * carried, carried)
    seconds = np.where(both, now.seconds * np.exp(residual - within + carried), measured)

    drift = known.column("drift", now.classified) * np.sqrt(-np.expm1(-2 * work / known.drift_length))
    spread = np.hypot(drift, constants.recorded_spread)
    # wider on families that were not measured, in the measure that the model is; where no pair of devices was
    # measured it is the widest of all already
    paired = known.column("paired", now.classified) > 0
    strange = np.where(paired, now.spread / np.maximum(now.usual, 1e-12), 1.0)
    between = known.column("device_spread", now.classified) * strange
    between = np.where(strangers, now.spread, between)  # nothing was learned of the other engine
    return seconds, np.where(other, np.hypot(spread, between), spread)


def _means(
    trace: Trace, known: anchoring.Residuals, then: Modelled, within: NDArray[np.float64], both: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean residual of each operator's class on the device of the recording.

    Operators that are bound by bytes are of one class where they have the same name: each is a kernel of its own.
    Operators of the same modelled time count once: a layer that is repeated says no more than one.  Each weighs what
    it takes, since short kernels vary more.  Few say little: ``n`` count ``n / (n + few)``, the rest being what is
    known without any, 0; of unequal weights ``n`` are ``(sum w)^2 / sum w^2`` (Kish's effective sample size).
    """
    at = np.flatnonzero(both)
    out = np.zeros(len(within))
    if not at.size:
        return out
    names = {name: code for code, name in enumerate(dict.fromkeys(trace.operators.name))}
    code = by_name(trace.operators.name, names.__getitem__)[at]
    engine = then.classified.engine[at].astype(np.int64)
    kernel = np.where(engine == BYTES_ONLY, code, 0)
    classes = (then.classified.group[at] * len(ENGINES) + engine) * len(names) + kernel
    classes = np.unique(classes, return_inverse=True)[1].ravel()
    _, first, row = np.unique(np.stack([classes, then.seconds[at]]), axis=1, return_index=True, return_inverse=True)
    each = np.bincount(row.ravel(), within[at]) / np.bincount(row.ravel())
    of, weight = classes[first], then.seconds[at][first]
    total, square = np.bincount(of, weight), np.bincount(of, weight**2)
    mean, count = np.bincount(of, weight * each) / total, total**2 / square
    few = known.column("few", then.classified)[at]
    out[at] = mean[classes] * count[classes] / (count[classes] + few)
    return out


def _other_work(now: Modelled, then: Modelled) -> NDArray[np.bool_]:
    """Whether the two are of different classes, engines or models, so that residuals of one say little of the other."""
    a, b = now.classified, then.classified
    return (a.group != b.group) | (a.engine != b.engine) | (now.basis != then.basis)


def _proportional(job: Job) -> Estimates:
    """On a device without a datasheet: what is above the recording's floor follows the work.

    The floor is the shortest recorded time of an operator that launches something.

    Raises:
        InputError: an operator was not recorded.
    """
    constants = anchoring.load()
    measured = np.where(nothing(job), 0.0, job.recorded.operators.device_s)
    missing = np.isnan(measured)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise InputError(
            f"trace {job.recorded.meta.workload!r}: operator {row} ({job.recorded.operators.name[row]}) has no "
            f"recorded time, the first of {int(missing.sum())}, and the device is not known: name it with --device"
        )
    moved = changed(job.trace, job.recorded)
    floor = np.minimum(measured, measured.min(where=measured > 0, initial=np.inf))
    ratio = np.where(moved, work_ratio(job.trace.operators, job.recorded.operators), 1.0)
    seconds = np.where(ratio == 1, measured, floor + (measured - floor) * ratio)
    spread = constants.proportional_spread(job.recorded.operators.name, measured, _distance(ratio))
    source = np.where(moved, Source.PROPORTIONAL, Source.RECORDED)
    return _estimates(seconds, spread, source, np.full(len(seconds), Limit.UNKNOWN, np.int8))


def _distance(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithm of a change, without its sign; an operator left without work (ratio 0) is very far."""
    return np.abs(np.log(np.maximum(ratio, 1e-12)))


def _undecided(job: Job, found: Estimates) -> Estimates:
    """Widen the interval of operators that may or may not follow the batch.

    It reaches from "nothing changed" to "grown with the batch", around the estimate for the shapes that were assumed.
    """
    factor = growth(job.trace, job.recorded)
    if factor == 1:
        return found
    at = undecided(job.trace) & (found.seconds > 0)
    assumed = work_ratio(job.trace.operators, job.recorded.operators)
    reach = np.maximum(_distance(assumed), _distance(factor / np.maximum(assumed, 1e-12)))
    return Estimates(
        found.seconds,
        np.where(at, np.maximum(found.spread, reach), found.spread),
        np.where(at, Source.UNDECIDED, found.source).astype(np.int8),
        found.limit,
        found.notes,
    )
