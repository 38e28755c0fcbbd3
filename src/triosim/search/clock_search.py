"""The clock at which an iteration takes least energy without taking much longer.

Energy over the clock is a U: below its lowest point the static power of a longer iteration costs more than the lower
voltage saves.  It is looked for on a grid of clocks and then between the best one's neighbours.  A clock is one limit
for all devices: of a mixed machine those whose boost clock is lower stay at theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System
from triosim.prediction.result import Result

T = TypeVar("T")

STEP_HZ = 15e6
"""Clocks that are looked at are multiples of it, as drivers have them."""
COARSE, FINE = 10, 4
"""Clocks of the grid, and on each side of the best of them."""


@dataclass(frozen=True)
class ClockPoint:
    """One clock: megahertz, seconds and joules of an iteration, and whether that is quick enough."""

    clock_mhz: float
    iteration_time_s: float
    node_j: float
    allowed: bool


@dataclass(frozen=True)
class BestClock:
    """The clock of least energy, and predictions at it and around it.

    Attributes:
        clock_hz: the clock of least energy among those that are quick enough.
        result: the prediction at it.
        full: the prediction at the full clock.
        points: all clocks that were looked at, the highest first.
        boost_hz: the boost clock of each device by its name, which stays there at a higher clock.
    """

    clock_hz: float
    result: Result
    full: Result
    points: tuple[ClockPoint, ...]
    boost_hz: Mapping[str, float]


def best_clock(predict: Callable[[System], Result], system: System, slowdown: float = 0.05) -> BestClock:
    """The clock of least energy of all nodes.

    Args:
        predict: the prediction on a system.
        system: the machine at its full clock.
        slowdown: how much longer an iteration may take than at the full clock, as a part of it.

    Raises:
        InputError: the slowdown is negative, a boost clock or what devices draw is not known.
    """
    if not slowdown >= 0:
        raise InputError(f"a slowdown must be at least 0, got {slowdown:g}")
    top, lowest = clock_range(system.models)
    full = predict(system)
    if full.energy is None:
        raise InputError(NOTHING_DRAWN)
    most = full.iteration_time_s * (1 + slowdown)
    found, chosen = least_energy(
        lambda clock: predict(power.at_most(system, clock)), full, top, lowest, _node_j,
        lambda result: result.iteration_time_s <= most,
    )  # fmt: skip
    points = tuple(
        ClockPoint(clock / 1e6, result.iteration_time_s, _node_j(result), result.iteration_time_s <= most)
        for clock, result in found.items()
    )
    boost = {device.name: device.clock_hz for device in system.models if device.clock_hz is not None}
    return BestClock(chosen, found[chosen], full, points, boost)


NOTHING_DRAWN = "finding a clock needs what devices draw: name a device of the catalog, or give tdp_w"


def clock_range(devices: Sequence[Accelerator]) -> tuple[float, float]:
    """The highest boost clock of some devices, above which none goes, and the lowest that all of them have, in hertz.

    Raises:
        InputError: a boost clock is not known.
    """
    tops = [device.clock_hz for device in devices]
    known = [clock for clock in tops if clock is not None]
    if len(known) < len(tops):
        raise InputError("finding a clock needs the boost clock of each device: give clock_hz in a device file")
    return max(known), power.LOWEST_CLOCK * max(known)


def least_energy(
    predict: Callable[[float], T], full: T, top: float, lowest: float, joules: Callable[[T], float],
    allowed: Callable[[T], bool],
) -> tuple[dict[float, T], float]:  # fmt: skip
    """Look for the clock of least energy among those that are allowed.

    Args:
        predict: what comes of a clock in hertz.
        full: of the highest, which is taken where nothing is allowed.
        top, lowest: the highest and the lowest.
        joules, allowed: of what came.

    Returns:
        What came of each clock that was looked at, the highest first, and the best.
    """
    found = {top: full}

    def look(clocks: np.ndarray) -> None:
        for clock in clocks.tolist():
            if clock not in found and lowest <= clock <= top:
                found[clock] = predict(clock)

    def best() -> float:
        kept = [clock for clock, one in found.items() if allowed(one)]
        return min(kept, key=lambda clock: (joules(found[clock]), -clock), default=top)

    grid = np.linspace(0.3, 1.0, COARSE)
    look(np.round(top * grid / STEP_HZ) * STEP_HZ)
    for width in (0.7 / (COARSE - 1), 0.7 / (COARSE - 1) / FINE):
        steps = np.arange(-FINE, FINE + 1) / FINE * width
        look(np.round((best() + top * steps) / STEP_HZ) * STEP_HZ)
    return dict(sorted(found.items(), reverse=True)), best()


def _node_j(result: Result) -> float:
    assert result.energy is not None
    return result.energy.node_j
