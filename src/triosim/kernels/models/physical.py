"""Physical models of every kind of operator: times from shapes and a datasheet, with few constants that devices share.

An operator's class says which kind prices it (:mod:`triosim.kernels.physical.kinds`): matrix products, convolutions,
attention, mixtures of experts, scans, and everything else by the bytes that it moves.  Equal calls are priced once.

Where there is no physical model - on devices that are not GPUs - the fitted roofline stands in, with its wider
interval, and the estimate says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.base_model import Prediction, bandwidth
from triosim.kernels.classes import (
    ATTENTION,
    ATTENTION_BACKWARD,
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    ELEMENTWISE,
    EXPERTS,
    MATRIX,
    OTHER,
    ROWWISE,
    SCAN,
    OperatorClasses,
    classify,
)
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.physical.kinds import BY_NAME, KernelKind, KernelTimes, shipped
from triosim.kernels.physical.stream import load as stream_constants
from triosim.kernels.work import attention, convolution, gemm, moe, scan, stream
from triosim.trace.calls import unique_calls
from triosim.trace.tables import Trace

BASIS = "physical"


GROUPS: Mapping[str, tuple[int, ...]] = {
    "gemm": (MATRIX,), "convolution": (CONVOLUTION, CONVOLUTION_BACKWARD),
    "attention": (ATTENTION, ATTENTION_BACKWARD), "moe": (EXPERTS,), "scan": (SCAN,),
    "stream": (ROWWISE, ELEMENTWISE, OTHER),
}  # fmt: skip
"""Kinds of kernels and the classes of operators that they price."""


@dataclass(frozen=True)
class PhysicalBaseModel:
    """Physical models as a :class:`~triosim.kernels.base_model.BaseOperatorModel`.

    Attributes:
        priced: prices work of one kind on a device, given the names of its operators; with the shipped constants where
            not given, which say nothing about what is not a GPU.
        notes: sentences on what those constants are.
    """

    priced: Callable[[KernelKind, Any, Accelerator, Sequence[str]], KernelTimes] = shipped
    notes: tuple[str, ...] = ()

    def predict(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Prediction:
        """Times of a trace's operators on ``device``; see the module's docstring.

        Args:
            trace: operators with FLOP and bytes counted.
            device: with the peaks and the memory bandwidth of its datasheet.
            launches: kernels that each operator launches, each at the cost of one; 1 where not given.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        if device.kind not in GPUS and self.priced is shipped:
            from triosim.kernels.models.roofline import RooflineBaseModel

            return RooflineBaseModel().predict(trace, device, launches)
        bandwidth(device)
        count = np.ones(len(trace)) if launches is None else launches.astype(np.float64)
        calls, row = unique_calls(trace, count)
        kernels = np.ones(len(calls))
        kernels[row] = count
        classified = classify(calls, device)
        seconds, spread, usual = (np.zeros(len(calls)) for _ in range(3))
        limit = np.full(len(calls), Limit.UNKNOWN, np.int8)
        for name, at, work, times in works(calls, classified, kernels):
            kind = BY_NAME[name]
            found = self.priced(kind, work, device, [calls.operators.name[call] for call in at.tolist()])
            seconds[at] = found.seconds * times + beside(name, kernels[at], times)
            limit[at], spread[at] = found.limit, found.spread
            usual[at] = np.minimum(found.spread, kind.spread(work, found.limit, None))
        group, engine, dtype = (getattr(classified, name)[row] for name in ("group", "engine", "dtype"))
        return Prediction(
            seconds[row], spread[row], usual[row], limit[row], OperatorClasses(group, engine, dtype), Source.PHYSICAL,
            BASIS, self.notes,
        )  # fmt: skip


class KernelWork(NamedTuple):
    """The operators of a trace that are of one kind.

    Attributes:
        name: of the kind, one of :data:`GROUPS`.
        rows: of the operators.
        work: what each does.
        times: how many times over.
    """

    name: str
    rows: NDArray[np.int64]
    work: Any
    times: NDArray[np.float64]


def works(
    trace: Trace, classified: OperatorClasses, kernels: NDArray[np.float64], among: NDArray[np.bool_] | None = None
) -> Iterator[KernelWork]:
    """What the operators of a trace do, kind by kind; kinds of which there are none are left out.

    Args:
        trace: operators with FLOP and bytes counted.
        classified: their classes.
        kernels: how many kernels each launches.
        among: which operators are looked at; all where not given.
    """
    for name, groups in GROUPS.items():
        there = np.isin(classified.group, groups)
        at = np.flatnonzero(there if among is None else there & among)
        if at.size:
            yield KernelWork(name, at, *work_of(name, trace, at, classified.dtype[at], kernels[at]))


def work_of(
    kind: str, trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8], kernels: NDArray[np.float64]
) -> tuple[Any, NDArray[np.float64]]:
    """What operators of one kind do, and how many times over each does it.

    Args:
        kind: one of :data:`GROUPS`.
        trace: operators with FLOP and bytes counted.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies.
        kernels: how many kernels each of ``rows`` launches.
    """
    once = np.ones(len(rows))
    if kind == "gemm":
        return gemm.of(trace, rows, dtype)
    if kind == "convolution":
        return convolution.of(trace, rows, dtype), once
    if kind == "attention":
        return attention.of(trace, rows, dtype), once
    if kind == "moe":
        return moe.of(trace, rows, dtype), once
    if kind == "scan":
        return scan.of(trace, rows, dtype), once
    return stream.of(trace, rows, kernels), once


def beside(kind: str, kernels: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of the kernels beside the ones that multiply: a launch each."""
    if kind == "stream":  # whose models count their kernels
        return np.zeros(len(kernels))
    return stream_constants()["elementwise"].launch_s * np.maximum(kernels - times, 0.0)


@registered
class Physical(OperatorModel):
    """Every operator from the physical models; a recording is not looked at."""

    def price(self, job: PricingJob) -> Estimates:
        """See :class:`PhysicalBaseModel`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = PhysicalBaseModel().predict(job.trace, job.device)
        source = np.where(found.seconds > 0, found.source, Source.NOTHING).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit, found.notes)
