"""The roofline with measured constants: operator times from shapes and a datasheet, no recording needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import NOTHING, Classified, classify
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import Job, OperatorModel
from triosim.kernels.pack import Pack, join, load
from triosim.registry import registered
from triosim.workload.trace import DTYPES, Trace


@dataclass(frozen=True)
class Modelled:
    """What the roofline says of a trace's operators, one row each.

    Attributes:
        seconds: predicted time; 0 for operators that launch nothing.
        spread: half-width of the 90 % interval, natural logarithm.
        limit: :class:`~triosim.kernels.estimate.Limit` codes.
        row: row of the pack that the constants came from.
        classified: class, engine and element type.
    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    limit: NDArray[np.int8]
    row: NDArray[np.int8]
    classified: Classified


def modelled(trace: Trace, device: Accelerator, pack: Pack, launches: NDArray[np.int64] | None = None) -> Modelled:
    """Times of a trace's operators on ``device`` by the formula of :mod:`triosim.kernels.pack`.

    Args:
        trace: operators with FLOP and bytes counted.
        device: with the peaks and the memory bandwidth of its datasheet.
        pack: constants.
        launches: kernels that each operator launches, each at the cost of one floor; 1 where not given.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    if device.memory_bandwidth is None or not device.peak_flops:
        missing = "compute peak" if not device.peak_flops else "memory bandwidth"
        raise InputError(
            f"device {device.name or '(unnamed)'!r} has no {missing}: name a device of the catalog (triosim devices) "
            "or add it to the device's file"
        )
    operators = trace.operators
    classified = classify(trace, device)
    row = pack.rows(classified)
    compute_s = np.zeros(len(operators))
    for code in np.unique(classified.dtype):
        if code >= 0:
            at = classified.dtype == code
            compute_s[at] = operators.flop[at] / device.peak(DTYPES[code])
    compute_s /= pack.compute[row]
    memory_s = np.nan_to_num(operators.bytes) / (pack.memory[row] * device.memory_bandwidth)
    floor_s = pack.floor_s[row] * (launches if launches is not None else 1)
    seconds = floor_s + join(compute_s, memory_s, pack.overlap[row])
    limit = np.where(compute_s >= memory_s, Limit.COMPUTE, Limit.MEMORY)
    limit[floor_s > np.maximum(compute_s, memory_s)] = Limit.LAUNCH
    idle = classified.group == NOTHING
    seconds[idle] = 0.0
    limit[idle] = Limit.UNKNOWN
    spread = np.where(idle, 0.0, pack.spread_on(device)[row])
    return Modelled(seconds, spread, limit.astype(np.int8), row, classified)


@registered
class Roofline(OperatorModel):
    """Every operator from the pack's constants; a recording is not looked at."""

    def __init__(self, pack: Pack | None = None) -> None:
        self.pack = pack or load()

    def price(self, job: Job) -> Estimates:
        """See :func:`modelled`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = modelled(job.trace, job.device, self.pack)
        source = np.where(found.classified.group == NOTHING, Source.NOTHING, Source.ROOFLINE).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit)
