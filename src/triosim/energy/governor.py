"""What a power cap or a lower clock makes of a device's operators.

One clock holds for a whole iteration, since governors average over more time than a kernel takes.  At a clock ``c``
(over the boost clock) what computes takes longer and draws less, by the law of :mod:`triosim.hardware.power`; what
memory or a launch binds takes as long as before.  Under a cap the clock falls until the mean power of what runs fits;
where even the lowest clock draws too much, because memory does, everything is stretched until it fits.

Everything after the operators follows when the iteration is played with these times: collectives, bubbles, waiting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.energy.device import DeviceEnergy
from triosim.energy.work import OperatorWork
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator

_STEPS = 50


@dataclass(frozen=True)
class Clocked:
    """Operators at a clock, one row each.

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

    @property
    def dynamic_j(self) -> NDArray[np.float64]:
        """Joules of one run beside static power."""
        return self.flop_j + self.cache_j + self.memory_j


def at_clock(work: OperatorWork, clock: float, brake: float = 1.0) -> Clocked:
    """Operators at a clock.

    Args:
        work: the operators at the full clock.
        clock: over the boost clock, above 0.
        brake: see :class:`Clocked`.
    """
    law = power.constants()
    voltage = np.minimum(law.voltage(clock), work.voltage)
    sustained = np.clip(law.clock_of_voltage(work.voltage), power.LOWEST_CLOCK, 1.0)
    slower = 1 + work.bound * (np.maximum(sustained / clock, 1.0) - 1)
    squared = voltage**2
    return Clocked(
        clock, brake, work.seconds * slower * brake, work.flop_j * squared, work.cache_j * squared, work.memory_j
    )


def governed(
    work: OperatorWork, device: Accelerator, energy: DeviceEnergy | None, repeats: NDArray[np.float64]
) -> Clocked:
    """Operators under the power cap and the clock limit of their device.

    Args:
        work: the operators at the full clock.
        device: with its settings.
        energy: what it draws.
        repeats: how often each operator runs in an iteration.

    Raises:
        InputError: the device cannot keep the cap or the clock, or what that takes is not known of it.
    """
    highest = 1.0 if device.clock_limit_hz is None else power.relative_clock(device, device.clock_limit_hz)
    cap = device.power_cap_w
    if cap is None:
        return at_clock(work, highest)
    power.check_cap(device, cap)
    limit = power.constants().limit * cap
    if energy is None or _mean_w(at_clock(work, highest), energy, repeats) <= limit:
        return at_clock(work, highest)
    low, high = power.LOWEST_CLOCK, highest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = _mean_w(at_clock(work, middle), energy, repeats) <= limit
        low, high = (middle, high) if fits else (low, middle)
    found = at_clock(work, low)
    drawn = _mean_w(found, energy, repeats)
    brake = max((drawn - energy.static_w) / (limit - energy.static_w), 1.0)
    return at_clock(work, low, brake)


def _mean_w(clocked: Clocked, energy: DeviceEnergy, repeats: NDArray[np.float64]) -> float:
    """Mean power while operators run."""
    seconds = float(np.dot(clocked.seconds, repeats))
    return energy.static_w + (float(np.dot(clocked.dynamic_j, repeats)) / seconds if seconds else 0.0)
