"""What the models that start from recorded times share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.kernels.anchoring import load
from triosim.kernels.changes import same_device
from triosim.kernels.classes import NOTHING, by_name, group_of_name
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import PricingJob


def recorded_seconds(job: PricingJob, model: str) -> NDArray[np.float64]:
    """Recorded device seconds of every operator, 0 for those that launch nothing.

    Raises:
        InputError: nothing was recorded, an operator has no time, or the device is not that of the recording.
    """
    if job.recorded_on is None:
        raise InputError(
            f"operator times {model!r} need a recorded trace, and {job.recorded.meta.workload!r} has no measured "
            "times: use --operator-times roofline or auto"
        )
    if not same_device(job.device, job.recorded_on):
        ours, theirs = job.device.name or "(unnamed)", job.recorded_on.name or "(unnamed)"
        what = f"{theirs}, not on {ours}" if ours != theirs else f"{theirs} with other figures"
        raise InputError(f"operator times {model!r} hold only on the recorded device {what}: use --operator-times auto")
    return measured_seconds(job)


def measured_seconds(job: PricingJob) -> NDArray[np.float64]:
    """Recorded device seconds of every operator on the device of the recording, 0 for those that launch nothing.

    Raises:
        InputError: an operator has no time.
    """
    operators = job.recorded.operators
    seconds = operators.device_s.copy()
    seconds[nothing(job)] = 0.0
    missing = np.isnan(seconds)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise InputError(
            f"trace {job.recorded.meta.workload!r}: operator {row} ({operators.name[row]}) has no recorded time, the "
            f"first of {int(missing.sum())}: use --operator-times auto"
        )
    return seconds


def nothing(job: PricingJob) -> NDArray[np.bool_]:
    """Operators that launch no kernel: views, allocations, host operators without a measured time."""
    operators = job.recorded.operators
    idle = by_name(operators.name, group_of_name) == NOTHING
    return operators.view | (idle & ~(operators.device_s > 0))


def estimates(job: PricingJob, seconds: NDArray[np.float64], ratio: NDArray[np.float64]) -> Estimates:
    """Recorded where the work is the same (``ratio`` 1), else proportional."""
    operators = job.recorded.operators
    moved = np.abs(np.log(np.maximum(ratio, 1e-12)))  # an operator left without work has the ratio 0
    spread = load().proportional_spread(operators.name, operators.device_s, moved)
    source = np.where(moved > 0, Source.PROPORTIONAL, Source.RECORDED)
    idle = nothing(job)
    source[idle] = Source.NOTHING
    spread[idle] = 0.0
    limit = np.full(len(seconds), Limit.UNKNOWN, np.int8)
    return Estimates(seconds, spread, source.astype(np.int8), limit)
