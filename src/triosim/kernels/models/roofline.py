"""The roofline with measured constants: operator times from shapes and a datasheet, no recording needed."""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.base_model import Prediction, bandwidth
from triosim.kernels.classes import NOTHING, classify
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.pack import Pack, join, load
from triosim.trace.tables import Trace

BASIS = "roofline"


def predict(trace: Trace, device: Accelerator, pack: Pack, launches: NDArray[np.int64] | None = None) -> Prediction:
    """Times of a trace's operators on ``device`` by the formula of :mod:`triosim.kernels.pack`.

    Args:
        trace: operators with FLOP and bytes counted.
        device: with the peaks and the memory bandwidth of its datasheet.
        pack: constants.
        launches: kernels that each operator launches, each at the cost of one floor; 1 where not given.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    rate = bandwidth(device)
    operators = trace.operators
    classified = classify(trace, device)
    row = pack.rows(classified)
    compute_s = np.zeros(len(operators))
    types, counted = arithmetic(device), classified.dtype >= 0
    codes = classified.dtype[counted]
    compute_s[counted] = operators.flop[counted] / types.flops[codes]
    compute_s /= pack.compute_on(device)[row]
    memory_s = np.nan_to_num(operators.bytes) / (pack.memory[row] * rate)
    floor_s = pack.floor_s[row] * (launches if launches is not None else 1)
    seconds = floor_s + join(compute_s, memory_s, pack.overlap[row])
    limit = np.where(compute_s >= memory_s, Limit.COMPUTE, Limit.MEMORY)
    limit[floor_s > np.maximum(compute_s, memory_s)] = Limit.LAUNCH
    idle = classified.group == NOTHING
    seconds[idle] = 0.0
    limit[idle] = Limit.UNKNOWN
    spread = pack.spread_on(device)[row]
    spread[counted] = np.hypot(spread[counted], types.spread[codes])
    spread[idle] = 0.0
    usual = np.where(idle, 0.0, pack.spread[row])
    return Prediction(seconds, spread, usual, limit.astype(np.int8), classified, Source.ROOFLINE, BASIS)


@dataclass(frozen=True)
class Rooflines:
    """The roofline as a :class:`~triosim.kernels.base_model.BaseOperatorModel`, with a pack's constants."""

    pack: Pack = field(default_factory=load)

    def predict(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Prediction:
        """See :func:`predict`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        return predict(trace, device, self.pack, launches)


@registered
class Roofline(OperatorModel):
    """Every operator from the pack's constants; a recording is not looked at."""

    def __init__(self, pack: Pack | None = None) -> None:
        self.pack = pack or load()

    def price(self, job: PricingJob) -> Estimates:
        """See :func:`predict`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = predict(job.trace, job.device, self.pack)
        source = np.where(found.classified.group == NOTHING, Source.NOTHING, Source.ROOFLINE).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit)
