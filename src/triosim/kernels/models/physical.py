"""Physical models of every kind of operator: times from shapes and a datasheet, with few constants that devices share.

An operator's class says which kind prices it (:mod:`triosim.kernels.physical.kinds`): matrix products, convolutions,
attention, mixtures of experts, and everything else by the bytes that it moves.  Equal calls are priced once.

Where there is no physical model - on devices that are not GPUs - the fitted roofline stands in, with its wider
interval, and the estimate says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import (
    ATTENTION,
    ATTENTION_BACKWARD,
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    ELEMENTWISE,
    MATRIX,
    OTHER,
    ROWWISE,
    Classified,
    classify,
)
from triosim.kernels.estimate import Estimates, Limit, Source
from triosim.kernels.model import Job, OperatorModel
from triosim.kernels.modelled import Modelled, bandwidth
from triosim.kernels.models.roofline import Rooflines
from triosim.kernels.pack import GPUS
from triosim.kernels.physical.kinds import BY_NAME, Kind, Priced, shipped
from triosim.kernels.physical.stream import load as stream_constants
from triosim.kernels.work import attention, convolution, gemm, stream
from triosim.registry import registered
from triosim.workload.distinct import distinct
from triosim.workload.trace import Trace

BASIS = "physical"


_GROUPS: Mapping[str, tuple[int, ...]] = {
    "gemm": (MATRIX,), "convolution": (CONVOLUTION, CONVOLUTION_BACKWARD),
    "attention": (ATTENTION, ATTENTION_BACKWARD), "stream": (ROWWISE, ELEMENTWISE, OTHER),
}  # fmt: skip
"""Kinds of kernels and the classes of operators that they price."""


@dataclass(frozen=True)
class Physics:
    """Physical models as a :class:`~triosim.kernels.modelled.Basis`.

    Attributes:
        priced: prices work of one kind on a device; with the shipped constants where not given.
        notes: sentences on what those constants are.
    """

    priced: Callable[[Kind, Any, Accelerator], Priced] = shipped
    notes: tuple[str, ...] = ()

    def modelled(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Modelled:
        """Times of a trace's operators on ``device``; see the module's docstring.

        Args:
            trace: operators with FLOP and bytes counted.
            device: with the peaks and the memory bandwidth of its datasheet.
            launches: kernels that each operator launches, each at the cost of one; 1 where not given.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        if device.kind not in GPUS:
            return Rooflines().modelled(trace, device, launches)
        bandwidth(device)
        count = np.ones(len(trace)) if launches is None else launches.astype(np.float64)
        calls, row = distinct(trace, count)
        kernels = np.ones(len(calls))
        kernels[row] = count
        classified = classify(calls, device)
        seconds, spread, usual = (np.zeros(len(calls)) for _ in range(3))
        limit = np.full(len(calls), Limit.UNKNOWN, np.int8)
        for name, groups in _GROUPS.items():
            at = np.flatnonzero(np.isin(classified.group, groups))
            if at.size:
                columns = self._of_kind(BY_NAME[name], calls, at, classified.dtype[at], kernels[at], device)
                seconds[at], limit[at], spread[at], usual[at] = columns
        group, engine, dtype = (getattr(classified, name)[row] for name in ("group", "engine", "dtype"))
        return Modelled(
            seconds[row], spread[row], usual[row], limit[row], Classified(group, engine, dtype), Source.PHYSICAL,
            BASIS, self.notes,
        )  # fmt: skip

    def _of_kind(
        self, kind: Kind, trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8],
        kernels: NDArray[np.float64], device: Accelerator,
    ) -> tuple[NDArray, NDArray, NDArray, NDArray]:  # fmt: skip
        """Seconds, limit, spread and usual spread of operators of one kind."""
        times = np.ones(len(rows))
        work: Any
        if kind.name == "gemm":
            work, times = gemm.of(trace, rows, dtype)
        elif kind.name == "convolution":
            work = convolution.of(trace, rows, dtype)
        elif kind.name == "attention":
            work = attention.of(trace, rows, dtype)
        else:
            work = stream.of(trace, rows, kernels)
        found = self.priced(kind, work, device)
        seconds = found.seconds * times
        if kind.name != "stream":  # kernels beside the one that multiplies cost a launch each
            seconds = seconds + stream_constants()["elementwise"].launch_s * np.maximum(kernels - times, 0.0)
        usual = np.minimum(found.spread, kind.spread(work, found.limit, None))
        return seconds, found.limit, found.spread, usual


@registered
class Physical(OperatorModel):
    """Every operator from the physical models; a recording is not looked at."""

    def price(self, job: Job) -> Estimates:
        """See :class:`Physics`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        found = Physics().modelled(job.trace, job.device)
        source = np.where(found.seconds > 0, found.source, Source.NOTHING).astype(np.int8)
        return Estimates(found.seconds, found.spread, source, found.limit, found.notes)
