"""The one law of clock, voltage and power: what a power cap or a lower clock does to a device.

What switches draws power in proportion to the clock and to the square of the voltage, and the voltage falls with the
clock towards a floor.  With ``c`` the clock over that of a device which nothing holds back::

    V(c)^2 = (floor^2 + c^2) / (floor^2 + 1)    voltage, over that at c = 1
    P(c) = static + switching c V(c)^2          power in watts

The rest of the power follows neither.  A governor lowers the clock until the power fits the cap.  What computes then
takes ``1 / c`` times as long; what waits for memory or for a launch does not.

``power.json`` holds the four constants, which ``validation/fit/power.py`` fits to measured epochs of a V100 and an A40
under caps.  A device whose operators are known (:mod:`triosim.energy`) uses ``static_share`` and ``voltage_floor`` of
them.  Where only the mean power of a job is known, ``limit`` says what a cap holds, since pauses are in that mean, and
``growth`` how much of the job computes; the rates of products (:mod:`triosim.kernels`) were fitted with ``limit``.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System

LOWEST_CLOCK = 0.1
"""Lowest clock over the highest that drivers set: 210 of 1,410 to 1,980 MHz on A100 and H100 (``nvidia-smi -q -d
SUPPORTED_CLOCKS``)."""

_STEPS = 60
"""Halvings that find a clock: more than a number has digits."""


@dataclass(frozen=True)
class PowerConstants:
    """What the law holds for all devices.

    Attributes:
        limit: mean power of a job, where nothing else is known of it, from which on a governor holds it, over the cap.
        static_share: power that does not follow the clock, over the TDP, while a device works.
        voltage_floor: ``floor`` of the law above.
        growth: part of a job's time that computes, where nothing else is known of it: this power of its mean power over
            the TDP.
        source: where they are from.
    """

    limit: float
    static_share: float
    voltage_floor: float
    growth: float
    source: str = ""

    def voltage(self, clock: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Voltages at clocks, both over those of a device that nothing holds back."""
        floor = self.voltage_floor**2
        return np.asarray(np.sqrt((floor + np.asarray(clock, np.float64) ** 2) / (floor + 1)))

    def clock_of_voltage(self, voltage: NDArray[np.float64]) -> NDArray[np.float64]:
        """The clock that goes with a voltage, 0 where the voltage is below that of all clocks."""
        floor = self.voltage_floor**2
        return np.sqrt(np.maximum(voltage**2 * (floor + 1) - floor, 0.0))

    def switching(self, clock: float) -> float:
        """Power of what switches at a clock, over that at the full clock: ``c V(c)^2``."""
        return clock * float(self.voltage(clock)) ** 2

    def clock(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """The clock at which what switches draws a share of its power at the full clock; within 0 and 1."""
        share = np.clip(np.asarray(share, np.float64), 0.0, 1.0)
        low, high, floor = np.zeros_like(share), np.ones_like(share), self.voltage_floor**2
        for _ in range(_STEPS):
            middle = (low + high) / 2
            above = middle * (floor + middle**2) / (floor + 1) > share
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.where(share >= 1.0, 1.0, low)

    def free_clock(self, share: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """As :meth:`clock`, of shares of any size: above 1 where the full clock leaves power over.

        The root of ``c (floor^2 + c^2) = share (floor^2 + 1)``.
        """
        third, floor = self.voltage_floor**2 / 3, self.voltage_floor**2
        sine = 0.5 * share * (floor + 1) / third**1.5
        return np.asarray(2.0 * math.sqrt(third) * np.sinh(np.arcsinh(sine) / 3))

    def relative_time(
        self, power_w: NDArray[np.float64], tdp_w: NDArray[np.float64], cap_w: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Time of jobs under a cap over that without, where all that is known of a job is its power without.

        Args:
            power_w: mean power of each job that nothing holds back.
            tdp_w, cap_w: of its device.
        """
        static = self.static_share * tdp_w
        room = np.maximum(power_w - static, 1e-9)
        clock = self.clock(np.maximum((self.limit * cap_w - static) / room, self.switching(LOWEST_CLOCK)))
        bound = np.minimum((power_w / tdp_w) ** self.growth, 1.0)
        return np.where(power_w > self.limit * cap_w, 1 - bound + bound / clock, 1.0)


@functools.cache
def constants() -> PowerConstants:
    """The constants of ``power.json``."""
    found = json.loads((Path(__file__).parent / "power.json").read_text(encoding="utf-8"))
    values = {name: float(value) for name, value in found["constants"].items()}
    return PowerConstants(**values, source=found["source"])


def static_w(device: Accelerator) -> float | None:
    """Watts that a working device draws whatever its clock; None where its TDP is not known."""
    return None if device.tdp_w is None else constants().static_share * device.tdp_w


def lowest_cap(device: Accelerator) -> float | None:
    """The lowest power cap in watts that a device can keep: what it draws at its lowest clock, everything switching.

    None where its TDP is not known.
    """
    if device.tdp_w is None:
        return None
    law = constants()
    return device.tdp_w * (law.static_share + (1 - law.static_share) * law.switching(LOWEST_CLOCK))


def check_cap(device: Accelerator, cap_w: float) -> None:
    """Refuse a power cap that a device cannot keep at any clock.

    Raises:
        InputError: the cap is below the lowest that works, or the device's TDP is not known.
    """
    name, least = device.name or "the device", lowest_cap(device)
    if least is None:
        raise InputError(f"a power cap needs the TDP of {name}, which is not known: give tdp_w in a device file")
    if not cap_w >= least:
        raise InputError(
            f"a power cap of {cap_w:g} W is below what {name} draws at its lowest clock: the lowest that works is "
            f"{np.ceil(least):.0f} W"
        )


def relative_clock(device: Accelerator, clock_hz: float) -> float:
    """A clock over the boost clock of a device.

    Raises:
        InputError: the boost clock is not known, or the clock is not between the lowest and the highest.
    """
    name, top = device.name or "the device", device.clock_hz
    if top is None:
        raise InputError(f"a clock needs the boost clock of {name}, which is not known: give clock_hz in a device file")
    if not LOWEST_CLOCK * top <= clock_hz <= top:
        raise InputError(
            f"a clock of {clock_hz / 1e6:g} MHz is outside those of {name}: use "
            f"{np.ceil(LOWEST_CLOCK * top / 1e6):.0f} to {top / 1e6:.0f} MHz"
        )
    return clock_hz / top


def held_back(system: System, cap_w: float | None = None, clock_hz: float | None = None) -> System:
    """The system with its devices under a power cap, at a highest clock, or both.

    Args:
        system: the machine.
        cap_w: watts that each device may draw; None leaves what it has.
        clock_hz: highest clock of each device; None leaves what it has.

    Raises:
        InputError: a device cannot keep them, or it is not known whether it can.
    """
    models = []
    for device in system.models:
        if cap_w is not None:
            check_cap(device, cap_w)
            device = replace(device, power_cap_w=cap_w)
        if clock_hz is not None:
            relative_clock(device, clock_hz)
            device = replace(device, clock_limit_hz=clock_hz)
        models.append(device)
    return replace(system, models=tuple(models))


def at_most(system: System, clock_hz: float) -> System:
    """The system with no device above a clock: one whose boost clock is lower keeps that.

    Args:
        system: the machine; all boost clocks are known.
        clock_hz: at least the lowest clock of each device.

    Raises:
        InputError: it is below that.
    """
    models = []
    for device in system.models:
        limit = min(clock_hz, device.clock_hz or clock_hz)
        relative_clock(device, limit)
        models.append(replace(device, clock_limit_hz=limit))
    return replace(system, models=tuple(models))
