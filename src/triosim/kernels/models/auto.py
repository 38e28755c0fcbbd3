"""The best that is known of each operator: its recorded time, else one anchored to it, else a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.kernels.base_model import BaseOperatorModel
from triosim.kernels.changes import changed, growth, same_device, undecided, work_ratio
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models.physical import PhysicalBaseModel


@registered
class Auto(OperatorModel):
    """Operator by operator, the first of these that applies:

    * its shapes and the device are those of the recording: the recorded time;
    * it was recorded at other shapes, or on another device: *anchored*, recorded time x model(new shapes, new
      device) / model(recorded shapes, recording device), see :func:`triosim.kernels.transfer.anchored`; of several
      recordings each by its certainty, :func:`triosim.kernels.transfer.combined`.  A device without a datasheet cannot
      be priced: there the recorded time is scaled with the work above the recording's floor (:func:`_proportional`);
    * it was not recorded: the model alone.

    On a device that is a design all are of its loop nests (:mod:`triosim.kernels.models.loop_nest`).

    Operators of which it is not known whether they follow the batch get an interval that reaches from "unchanged" to
    "fully scaled".

    Args:
        basis: the model; the physical ones where not given.
    """

    def __init__(self, basis: BaseOperatorModel | None = None) -> None:
        self.basis = basis or PhysicalBaseModel()

    def price(self, job: PricingJob) -> Estimates:
        """Seconds of every operator of ``job.trace`` on ``job.device``.

        Raises:
            InputError: the device has no datasheet figures and is not that of the recording.
        """
        if job.device.design is not None:  # nobody has recorded on it
            from triosim.kernels.models.loop_nest import LoopNestModel  # takes long to load

            return LoopNestModel().price(job)
        here = job.recorded_on is not None and same_device(job.device, job.recorded_on)
        if not here or job.device.priced:
            return self._priced(job)
        return _undecided(job, _proportional(job))

    def _priced(self, job: PricingJob) -> Estimates:
        recordings = job.recordings()
        if not recordings:
            now = self.basis.predict(job.trace, job.device)
            source = np.full(len(job.trace), now.source)
            return _undecided(job, _estimates(now.seconds, now.spread, source, now.limit, now.notes))
        from triosim.kernels.transfer import combined, launches, transferred

        now = self.basis.predict(job.trace, job.device, launches(recordings[0].trace))
        source = np.full(len(job.trace), now.source)
        found = combined([transferred(job.trace, job.device, one, self.basis, now) for one in recordings])
        known = np.isfinite(found.seconds)
        seconds = np.where(known, found.seconds, now.seconds)
        spread = np.where(known, found.spread, now.spread)
        source = np.where(known, found.source, source)
        return _undecided(job, _estimates(seconds, spread, source, now.limit, now.notes))


def _estimates(
    seconds: NDArray, spread: NDArray, source: NDArray, limit: NDArray[np.int8], notes: tuple[str, ...] = ()
) -> Estimates:
    """Columns of an :class:`Estimates`; an operator without time comes from nowhere and is certain."""
    idle = seconds == 0
    source = np.where(idle, Source.NOTHING, source).astype(np.int8)
    return Estimates(seconds, np.where(idle, 0.0, spread), source, limit, notes)


def _proportional(job: PricingJob) -> Estimates:
    """On a device without a datasheet: what is above the recording's floor follows the work.

    The floor is the shortest recorded time of an operator that launches something.

    Raises:
        InputError: an operator was not recorded.
    """
    from triosim.kernels import anchoring
    from triosim.kernels.models._recording import nothing
    from triosim.kernels.transfer import logarithm

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
    spread = constants.proportional_spread(job.recorded.operators.name, measured, logarithm(ratio))
    source = np.where(moved, Source.PROPORTIONAL, Source.RECORDED)
    return _estimates(seconds, spread, source, np.full(len(seconds), Limit.UNKNOWN, np.int8))


def _undecided(job: PricingJob, found: Estimates) -> Estimates:
    """Widen the interval of operators that may or may not follow the batch.

    It reaches from "nothing changed" to "grown with the batch", around the estimate for the shapes that were assumed.
    """
    factor = growth(job.trace, job.recorded)
    if factor == 1:
        return found
    from triosim.kernels.transfer import logarithm

    at = undecided(job.trace) & (found.seconds > 0)
    assumed = work_ratio(job.trace.operators, job.recorded.operators)
    reach = np.maximum(logarithm(assumed), logarithm(factor / np.maximum(assumed, 1e-12)))
    return Estimates(
        found.seconds,
        np.where(at, np.maximum(found.spread, reach), found.spread),
        np.where(at, Source.UNDECIDED, found.source).astype(np.int8),
        found.limit,
        found.notes,
    )
