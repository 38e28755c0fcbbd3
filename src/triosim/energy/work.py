"""What an operator takes beside the static power of its device: joules of its FLOP, of its bytes, and what binds it.

Every byte that an operator reads or writes passes the memory and the caches once.  No operator draws more than the
TDP: where the constants would have it so, the clock fell while it ran, which is in its time already, and with the clock
the voltage (:mod:`triosim.hardware.power`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.energy.device import DeviceEnergy
from triosim.hardware import power
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
        voltage: that at which it runs at the full clock: 1, or lower where the TDP binds it.
        find_bound: finds :attr:`bound`, which only clocks below the full one ask for.
        clock: at which it runs at the full clock of its device, where its own power holds it back; None where nobody
            says, so that its voltage tells.
    """

    seconds: NDArray[np.float64]
    flop_j: NDArray[np.float64]
    cache_j: NDArray[np.float64]
    memory_j: NDArray[np.float64]
    dtype: NDArray[np.int64]
    voltage: NDArray[np.float64]
    find_bound: Callable[[], NDArray[np.float64]]
    clock: NDArray[np.float64] | None = None

    @cached_property
    def bound(self) -> NDArray[np.float64]:
        """Part of its time that computes and follows the clock."""
        return self.find_bound()

    @cached_property
    def running(self) -> NDArray[np.float64]:
        """Clock over the full one at which it runs where nothing but its own power holds the device back.

        What it draws is what it draws at this clock: joules of a datasheet's FLOP are less than what long products draw
        at the full one, so that their voltage alone would not tell that these run slower.
        """
        clock = np.clip(power.constants().clock_of_voltage(self.voltage), power.LOWEST_CLOCK, 1.0)
        return clock if self.clock is None else np.minimum(clock, np.maximum(self.clock, power.LOWEST_CLOCK))


def operator_work(trace: Trace, device: Accelerator, energy: DeviceEnergy | None, times: Estimates) -> OperatorWork:
    """What the operators of a trace take on a device.

    Args:
        trace: operators with FLOP and bytes counted.
        device: what they run on.
        energy: what it draws; None where that is not known, and then everything takes nothing.
        times: their times at the full clock.
    """
    operators = trace.operators
    flop, moved = (
        np.where(operators.view | np.isnan(counted), 0.0, counted) for counted in (operators.flop, operators.bytes)
    )
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
    find = functools.partial(_bound, device, times, flop, moved, dtype)
    if times.joules is not None:
        known, one = times.joules, np.ones(len(seconds))
        dtype = np.where((dtype < 0) & (known.compute > 0), DTYPE_CODE["float32"], dtype)  # of the vector unit
        return OperatorWork(seconds, known.compute, known.chip, known.memory, dtype, one, find)
    if energy is None:
        nothing, one = np.zeros(len(seconds)), np.ones(len(seconds))
        return OperatorWork(seconds, nothing, nothing, nothing, dtype, one, find)
    joules = np.append(energy.flop_j, 0.0)  # the last where only bytes matter
    flop_j, cache_j = flop * joules[dtype], moved * energy.cache_j_per_byte
    room = np.maximum((energy.tdp_w - energy.static_w) * seconds, 0.0)
    memory_j = np.minimum(moved * energy.memory_j_per_byte, room)
    switching, left, voltage = flop_j + cache_j, room - memory_j, np.ones(len(room))
    over = np.flatnonzero(switching > left)
    voltage[over] = np.sqrt(left[over] / switching[over])
    return OperatorWork(seconds, flop_j, cache_j, memory_j, dtype, voltage, find, times.clock)


def joined(parts: Sequence[OperatorWork]) -> OperatorWork:
    """The operators of all parts, one after the other."""
    known = any(part.clock is not None for part in parts)
    clocks = [np.ones(len(part.seconds)) if part.clock is None else part.clock for part in parts]
    return OperatorWork(
        seconds=np.concatenate([part.seconds for part in parts]),
        flop_j=np.concatenate([part.flop_j for part in parts]),
        cache_j=np.concatenate([part.cache_j for part in parts]),
        memory_j=np.concatenate([part.memory_j for part in parts]),
        dtype=np.concatenate([part.dtype for part in parts]),
        voltage=np.concatenate([part.voltage for part in parts]),
        find_bound=lambda: np.concatenate([part.bound for part in parts]),
        clock=np.concatenate(clocks) if known else None,
    )


def _bound(
    device: Accelerator, times: Estimates, flop: NDArray[np.float64], moved: NDArray[np.float64],
    dtype: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """Part of each operator's time that follows the clock: what binds it, and where nobody says, the roofline."""
    # As plain numbers: numpy takes longer to learn what a member of an enumeration is than to compare a column with it.
    compute, unknown = int(Limit.COMPUTE), int(Limit.UNKNOWN)
    bound = (times.limit == compute).astype(np.float64)
    rows = np.flatnonzero((times.limit == unknown) & (times.seconds > 0))
    bound[rows] = 1.0  # the longest that it can take
    if rows.size and device.priced and device.memory_bandwidth:
        computes = np.where(dtype[rows] >= 0, flop[rows], 0.0) / arithmetic(device).flops[dtype[rows]]
        bound[rows] = computes > moved[rows] / device.memory_bandwidth
    return bound
