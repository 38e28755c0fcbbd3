"""Times of the operators of a device under a power cap or a lower clock, and the clock that it then runs at.

One clock holds for a whole iteration, since governors average over more time than a kernel takes.  At a clock ``c``
(over the boost clock) what computes takes longer and draws less, by the law of :mod:`triosim.hardware.power`; what
memory or a launch binds takes as long as before.  Under a cap the clock falls until the mean power of what runs fits;
where even the lowest clock draws too much, because memory does, everything is stretched until it fits.

Everything after the operators follows when the iteration is played with these times: collectives, bubbles, waiting.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.energy.device import DeviceEnergy
from triosim.energy.work import OperatorWork
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator

_STEPS = 50


@dataclass(frozen=True)
class ClockedOperators:
    """Times and energies of operators at a clock, one row each.

    Attributes:
        clock: over the boost clock.
        brake: everything takes so many times longer than at that clock; above 1 only where the lowest is too much.
        seconds: of one run.
        flop_j, cache_j, memory_j: joules of one run.
    """

    clock: float
    brake: float
    seconds: NDArray[np.float64]
    flop_j: NDArray[np.float64]
    cache_j: NDArray[np.float64]
    memory_j: NDArray[np.float64]


def at_clock(work: OperatorWork, clock: float, brake: float = 1.0) -> ClockedOperators:
    """Operators at a clock.

    Args:
        work: the operators at the full clock.
        clock: over the boost clock, above 0.
        brake: see :class:`ClockedOperators`.
    """
    return ClockedOperators(clock, brake, *_taken(work, clock, brake))


def _taken(
    work: OperatorWork, clock: float | NDArray[np.float64], brake: float | NDArray[np.float64] = 1.0
) -> tuple[NDArray[np.float64], ...]:
    """Seconds, and joules of FLOP, caches and memory, at one clock or each at its own."""
    seconds, voltage = work.seconds, work.voltage
    if np.min(clock) < 1.0:  # at the full clock nothing is slower
        law, running = power.constants(), work.running
        seconds = seconds * (1 + work.bound * (np.maximum(running / clock, 1.0) - 1))
        voltage = voltage * np.minimum(law.voltage(clock) / law.voltage(running), 1.0)
    squared = voltage**2
    return seconds * brake, work.flop_j * squared, work.cache_j * squared, work.memory_j


def governed(
    work: OperatorWork, device: Accelerator, energy: DeviceEnergy | None, repeats: NDArray[np.float64]
) -> ClockedOperators:
    """Operators under the power cap and the clock limit of their device, all at one clock.

    Args:
        work: the operators at the full clock.
        device: with its settings.
        energy: what it draws.
        repeats: how often each operator runs in an iteration.

    Raises:
        InputError: the device cannot keep the cap or the clock, or what that takes is not known of it.
    """
    highest, limit = _limits(device)
    if limit is None or energy is None:
        return at_clock(work, highest)

    def drawn(clock: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds, *joules = (float(np.dot(column, repeats)) for column in _taken(work, float(clock[0])))
        return np.array([energy.static_w + (sum(joules) / seconds if seconds else 0.0)])

    clock, brake = _fitting(drawn, np.array([highest]), limit, energy.static_w)
    return at_clock(work, float(clock[0]), float(brake[0]))


def governed_apart(work: OperatorWork, device: Accelerator, energy: DeviceEnergy | None) -> NDArray[np.float64]:
    """Seconds of operators that are each held to the cap and the clock limit of their device by themselves.

    Args:
        work, device, energy: as of :func:`governed`.

    Raises:
        InputError: as of :func:`governed`.
    """
    highest, limit = _limits(device)
    if limit is None or energy is None:
        return _taken(work, highest)[0]

    def drawn(clock: NDArray[np.float64]) -> NDArray[np.float64]:
        seconds, *joules = _taken(work, clock)
        dynamic = np.sum(joules, axis=0)
        return energy.static_w + np.divide(dynamic, seconds, out=np.zeros_like(dynamic), where=seconds > 0)

    clock, brake = _fitting(drawn, np.full(len(work.seconds), highest), limit, energy.static_w)
    return _taken(work, clock, brake)[0]


def _limits(device: Accelerator) -> tuple[float, float | None]:
    """The highest clock over the boost clock, and the mean power that a governor holds.

    That is the cap itself: of 808 epochs on a V100 and an A40 at caps of 125 W and more, 6 drew more on average, at
    most 1.2 % (ml-energy/zeus, as in :mod:`validation.fit.power`).  ``limit`` of the law is for jobs of which only the
    mean power is known, pauses included.
    """
    highest = 1.0 if device.clock_limit_hz is None else power.relative_clock(device, device.clock_limit_hz)
    if device.power_cap_w is None:
        return highest, None
    power.check_cap(device, device.power_cap_w)
    return highest, device.power_cap_w


def _fitting(
    drawn: Callable[[NDArray[np.float64]], NDArray[np.float64]], highest: NDArray[np.float64], limit: float,
    static_w: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """The highest clocks at which what is drawn fits, and what brakes beside where no clock does."""
    low, high = np.full_like(highest, power.LOWEST_CLOCK), highest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = drawn(middle) <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    clock = np.where(drawn(highest) <= limit, highest, low)
    return clock, np.maximum((drawn(clock) - static_w) / (limit - static_w), 1.0)
