"""What an operator takes beside the static power of its device: joules of its FLOP, of its bytes, and what binds it.

Every byte that an operator reads or writes passes the memory and the caches once.  No operator draws more than the
TDP: where the constants would have it so, the clock fell while it ran, which is in its time already, and with the clock
the voltage (:mod:`triosim.hardware.power`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.energy.device import DeviceEnergy
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.classes import classify
from triosim.kernels.estimate import Estimates, Limit
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class OperatorWork:
    """One row per operator of a trace, for one run of it at the full clock of its device.

    Attributes:
        seconds: what it takes.
        flop_j, cache_j, memory_j: joules at the full voltage.
        dtype: element type that is multiplied, -1 where only bytes matter, int64.
        bound: part of its time that computes and follows the clock.
        voltage: that at which it runs at the full clock: 1, or lower where the TDP binds it.
    """

    seconds: NDArray[np.float64]
    flop_j: NDArray[np.float64]
    cache_j: NDArray[np.float64]
    memory_j: NDArray[np.float64]
    dtype: NDArray[np.int64]
    bound: NDArray[np.float64]
    voltage: NDArray[np.float64]


def operator_work(trace: Trace, device: Accelerator, energy: DeviceEnergy | None, times: Estimates) -> OperatorWork:
    """What the operators of a trace take on a device.

    Args:
        trace: operators with FLOP and bytes counted.
        device: what they run on.
        energy: what it draws; None where that is not known, and then everything takes nothing.
        times: their times at the full clock.
    """
    operators = trace.operators
    flop = np.where(operators.view, 0.0, np.nan_to_num(operators.flop))
    moved = np.where(operators.view, 0.0, np.nan_to_num(operators.bytes))
    return kernel_work(flop, moved, classify(trace, device).dtype.astype(np.int64), device, energy, times)


def kernel_work(
    flop: NDArray[np.float64], moved: NDArray[np.float64], dtype: NDArray[np.int64], device: Accelerator,
    energy: DeviceEnergy | None, times: Estimates,
) -> OperatorWork:  # fmt: skip
    """What kernels take on a device, one row each.

    Args:
        flop, moved: operations, and bytes that are read or written.
        dtype: element type that is multiplied, -1 where only bytes matter.
        device, energy, times: as of :func:`operator_work`.
    """
    seconds = times.seconds
    flop = np.where(dtype >= 0, flop, 0.0)
    bound = _bound(device, times, flop, moved, dtype)
    if times.joules is not None:
        known, one = times.joules, np.ones(len(seconds))
        dtype = np.where((dtype < 0) & (known.compute > 0), DTYPE_CODE["float32"], dtype)  # of the vector unit
        return OperatorWork(seconds, known.compute, known.chip, known.memory, dtype, bound, one)
    if energy is None:
        nothing, one = np.zeros(len(seconds)), np.ones(len(seconds))
        return OperatorWork(seconds, nothing, nothing, nothing, dtype, bound, one)
    flop_j, cache_j = flop * energy.flop_j[dtype], moved * energy.cache_j_per_byte
    room = np.maximum((energy.tdp_w - energy.static_w) * seconds, 0.0)
    memory_j = np.minimum(moved * energy.memory_j_per_byte, room)
    switching, left = flop_j + cache_j, room - memory_j
    squared = np.divide(left, switching, out=np.ones_like(left), where=switching > left)
    return OperatorWork(seconds, flop_j, cache_j, memory_j, dtype, bound, np.sqrt(squared))


def _bound(
    device: Accelerator, times: Estimates, flop: NDArray[np.float64], moved: NDArray[np.float64],
    dtype: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """Part of each operator's time that follows the clock: what binds it, and where nobody says, the roofline."""
    if device.priced and device.memory_bandwidth:
        computes = flop / arithmetic(device).flops[dtype] > moved / device.memory_bandwidth
        unknown = computes.astype(np.float64)
    else:
        unknown = np.ones(len(flop))  # the longest that it can take
    known = times.limit != Limit.UNKNOWN
    return np.where(known, (times.limit == Limit.COMPUTE).astype(np.float64), unknown)
