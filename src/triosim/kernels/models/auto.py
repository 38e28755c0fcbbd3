"""The best that is known of each operator: its recorded time, else one anchored to it, else the roofline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.errors import InputError
from triosim.kernels import anchoring
from triosim.kernels.changes import changed, growth, same_device, undecided, work_ratio
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import Job, OperatorModel
from triosim.kernels.models._recording import nothing
from triosim.kernels.models.roofline import Modelled, modelled
from triosim.kernels.pack import Pack, load
from triosim.registry import registered
from triosim.workload.trace import Trace


@registered
class Auto(OperatorModel):
    """Operator by operator, the first of these that applies:

    * its shapes and the device are those of the recording: the recorded time;
    * it was recorded at other shapes, or on another device: *anchored*, recorded time x roofline(new shapes, new
      device) / roofline(recorded shapes, recording device), see :func:`_anchored`.  A device without a datasheet cannot
      be priced: there the recorded time is scaled with the work above the recording's floor (:func:`_proportional`);
    * it was not recorded: the roofline.

    Operators of which it is not known whether they follow the batch get an interval that reaches from "unchanged" to
    "fully scaled".
    """

    def __init__(self, pack: Pack | None = None) -> None:
        self.pack = pack or load()

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
            found = modelled(job.trace, job.device, self.pack)
            source = np.full(len(job.trace), Source.ROOFLINE)
            return _undecided(job, _estimates(found.seconds, found.spread, source, found.limit))
        moved = changed(job.trace, job.recorded) | (not here)
        launches = _launches(job.recorded)
        now = modelled(job.trace, job.device, self.pack, launches)
        measured = job.recorded.operators.device_s
        known = np.isfinite(measured) & ~job.trace.operators.view
        kept, rest = known & ~moved, known & moved
        seconds = np.where(kept, measured, now.seconds)
        spread = np.where(kept, anchoring.load().recorded_spread, now.spread)
        source = np.where(kept, Source.RECORDED, Source.ROOFLINE)
        if rest.any() and job.recorded_on.priced:
            then = modelled(job.recorded, job.recorded_on, self.pack, launches)
            carried, drifted = _anchored(self.pack, job, now, then, here)
            seconds = np.where(rest, carried, seconds)
            spread = np.where(rest, drifted, spread)
            source = np.where(rest, Source.ANCHORED, source)
        return _undecided(job, _estimates(seconds, spread, source, now.limit))


def _estimates(seconds: NDArray, spread: NDArray, source: NDArray, limit: NDArray[np.int8]) -> Estimates:
    """Columns of an :class:`Estimates`; an operator without time comes from nowhere and is certain."""
    idle = seconds == 0
    source = np.where(idle, Source.NOTHING, source).astype(np.int8)
    return Estimates(seconds, np.where(idle, 0.0, spread), source, limit)


def _launches(recorded: Trace) -> NDArray[np.int64] | None:
    """Kernels that each operator launched, at least 1; None where the recording names no kernels."""
    if not len(recorded.kernels):
        return None
    return np.maximum(np.bincount(recorded.kernels.operator, minlength=len(recorded)), 1)


def _anchored(
    pack: Pack, job: Job, now: Modelled, then: Modelled, here: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recorded time x roofline(now) / roofline(then); seconds and spread.

    What the roofline is off by for an operator cancels: ``r = log(recorded / roofline(then))`` is carried over whole on
    the device of the recording.  Where the modelled time does not move, neither does the recorded one: a time that is
    all launch stays what it was.  More work never takes less time.

    On another device, or another engine of it (half precision instead of float32), only a part ``transfer`` of ``r`` is
    carried over: a matrix product that one device runs below the roofline another may not.  Of what is beyond the
    roofline's own interval all is: that operator does other work than the roofline counts, a coarse operator of several
    kernels, and will do it anywhere.

    The spread is ``drift * sqrt(1 - exp(-2 d / length))`` with ``d`` the logarithm of the change of work: the error of
    carrying over a stationary process of the logarithm of the size (Ornstein-Uhlenbeck) by ``d``.
    """
    constants = anchoring.load()
    measured, row = job.recorded.operators.device_s, now.row
    both = (now.seconds > 0) & (then.seconds > 0) & (measured > 0)
    ratio = np.divide(now.seconds, then.seconds, out=np.ones_like(measured), where=both)
    seconds = np.where(both, measured * ratio, measured)
    work = _distance(work_ratio(job.trace.operators, job.recorded.operators))
    drift = constants.column("drift", pack.keys)[row] * np.sqrt(-np.expm1(-2 * work / constants.drift_length))
    spread = np.hypot(drift, constants.recorded_spread)
    other = both & ((now.row != then.row) | (not here))
    if other.any():
        residual = np.log(np.divide(measured, then.seconds, out=np.ones_like(measured), where=both))
        within = np.clip(residual, -then.spread, then.spread)
        transfer = constants.column("transfer", pack.keys)[row]
        seconds = np.where(other, seconds * np.exp((transfer - 1) * within), seconds)
        # wider on families that were not measured, in the measure that the roofline is; where no pair of devices was
        # measured it is the widest of all already
        strange = np.where(
            constants.column("paired", pack.keys)[row] > 0, now.spread / np.maximum(pack.spread[row], 1e-12), 1.0
        )
        between = constants.column("device_spread", pack.keys)[row] * strange
        between = np.where(now.row != then.row, now.spread, between)  # nothing was learned of the other engine
        spread = np.where(other, np.hypot(spread, between), spread)
    return seconds, spread


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
    )
