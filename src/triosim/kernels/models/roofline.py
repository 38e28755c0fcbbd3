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
from triosim.kernels.classes import (
    ATTENTION,
    ATTENTION_BACKWARD,
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    ELEMENTWISE,
    EXPERTS,
    MATRIX,
    NOTHING,
    ROWWISE,
    SCAN,
    OperatorClasses,
    classify,
    engines,
)
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.pack import RooflinePack, join, load
from triosim.kernels.physical.kinds import Work
from triosim.kernels.systolic_arrays import filled, with_idle_parts
from triosim.kernels.work.attention import AttentionCalls
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import Gemm
from triosim.kernels.work.moe import ExpertCalls
from triosim.kernels.work.scan import ScanCalls
from triosim.kernels.work.stream import Stream
from triosim.trace.tables import Trace

BASIS = "roofline"


def predict(
    trace: Trace, device: Accelerator, pack: RooflinePack, launches: NDArray[np.int64] | None = None
) -> Prediction:
    """Times of a trace's operators on ``device`` by the formula of :mod:`triosim.kernels.pack`.

    Args:
        trace: operators with FLOP and bytes counted.
        device: with the peaks and the memory bandwidth of its datasheet.
        pack: constants.
        launches: kernels that each operator launches, each at the cost of one floor; 1 where not given.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    operators = trace.operators
    classified = classify(trace, device)
    flop = with_idle_parts(operators.flop, trace, classified, device)
    found = _seconds(flop, np.nan_to_num(operators.bytes), launches, classified, device, pack)
    return Prediction(*found, classified, Source.ROOFLINE, BASIS)


def of_work(work: Work, device: Accelerator, pack: RooflinePack | None = None) -> Estimates:
    """Times of kernels given by their sizes, by the same formula.

    Args:
        work: what is done, any number of rows of one kind.
        device: with the peaks and the memory bandwidth of its datasheet.
        pack: constants; those that come with the program if None.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    if isinstance(work, Stream):
        group, kernels = np.where(work.row_bytes > 0, ROWWISE, ELEMENTWISE), work.kernels
        dtype, engine = np.full(len(work), -1, np.int8), np.zeros(len(work), np.int8)
    else:
        group, kernels = np.full(len(work), _GROUPS[type(work)]), np.ones(len(work))
        if isinstance(work, AttentionCalls):
            group[work.backward] = ATTENTION_BACKWARD
        elif isinstance(work, ConvolutionCalls):
            group[~work.forward] = CONVOLUTION_BACKWARD
        dtype = work.dtype
        engine = engines(device)[dtype]
    classified = OperatorClasses(group.astype(np.int8), engine, dtype)
    flop = work.flop()
    if isinstance(work, AttentionCalls):
        flop = flop / filled(work.head, device)
    seconds, spread, _, limit = _seconds(flop, work.bytes(), kernels, classified, device, pack or load())
    return Estimates(seconds, spread, np.full(len(work), Source.ROOFLINE, np.int8), limit)


_GROUPS = {
    Gemm: MATRIX, ConvolutionCalls: CONVOLUTION, AttentionCalls: ATTENTION, ExpertCalls: EXPERTS, ScanCalls: SCAN,
}  # fmt: skip
"""Classes by what a table of work is of."""


def _seconds(
    flop: NDArray[np.float64], moved: NDArray[np.float64], kernels: NDArray | None, classified: OperatorClasses,
    device: Accelerator, pack: RooflinePack,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]:  # fmt: skip
    """Seconds, spread, usual spread and limit of operators with so many FLOP, bytes and kernels (None: one each)."""
    rate = bandwidth(device)
    row = pack.rows(classified)
    compute_s = np.zeros(len(flop))
    types, counted = arithmetic(device), classified.dtype >= 0
    codes = classified.dtype[counted]
    compute_s[counted] = flop[counted] / types.flops[codes]
    compute_s /= pack.compute_on(device)[row]
    memory_s = moved / (pack.memory[row] * rate)
    floor_s = pack.floor_s[row] * (kernels if kernels is not None else 1)
    seconds = floor_s + join(compute_s, memory_s, pack.overlap[row])
    limit = np.where(compute_s >= memory_s, Limit.COMPUTE, Limit.MEMORY)
    limit[floor_s > np.maximum(compute_s, memory_s)] = Limit.LAUNCH
    idle = classified.group == NOTHING
    seconds[idle] = 0.0
    limit[idle] = Limit.UNKNOWN
    spread = pack.spread_on(device)[row]
    spread[counted] = np.hypot(spread[counted], types.spread[codes])
    spread[idle] = 0.0
    return seconds, spread, np.where(idle, 0.0, pack.spread[row]), limit.astype(np.int8)


@dataclass(frozen=True)
class RooflineBaseModel:
    """The roofline as a :class:`~triosim.kernels.base_model.BaseOperatorModel`, with a pack's constants."""

    pack: RooflinePack = field(default_factory=load)

    def predict(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Prediction:
        """See :func:`predict`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        return predict(trace, device, self.pack, launches)


@registered
class Roofline(OperatorModel):
    """Every operator from the pack's constants; a recording is not looked at."""

    def __init__(self, pack: RooflinePack | None = None) -> None:
        self.pack = pack or load()

    def price(self, job: PricingJob) -> Estimates:
        """See :func:`predict`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = predict(job.trace, job.device, self.pack)
        source = np.where(found.classified.group == NOTHING, Source.NOTHING, Source.ROOFLINE).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit)
