"""The highest rate of requests at which a deployment keeps its goals, the fewest replicas, the clock of least energy.

Requests are drawn once; another rate is the same requests with their times stretched, so that the answer depends on the
rate alone.  The rate is doubled or halved until one is kept and the next is not, and the gap between them is halved
until it is below :data:`PRECISION`.  A rate above the found one may be kept again by chance, where goals are met or
missed by single requests.

Replicas are doubled until they keep the goals, and the gap between the last two numbers is halved: more replicas are
taken to be no worse than fewer.

Clocks are those of :mod:`triosim.search.clock_search`, and the energy is that of all nodes for the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import picoseconds
from triosim.hardware.accelerator import Accelerator
from triosim.serving.deployment import Deployment, ServingResult, serve
from triosim.serving.metrics import Slo
from triosim.serving.pool import Pool
from triosim.serving.pool_times import PricedPools, device_of
from triosim.serving.requests import RequestTable

PRECISION = 0.01
"""Relative width of the gap between the highest rate that was kept and the lowest that was not."""
LOWEST, HIGHEST = 2.0**-10, 2.0**10
"""Factors of the first rate between which is looked."""


@dataclass(frozen=True)
class FoundRate:
    """An answer.

    Attributes:
        rate: highest requests per second that keep the goals, 0 where none does.
        result: at that rate; at the lowest that was tried where none is kept.
        tried: each rate and whether it is kept, in the order in which they were tried.
        arriving_s: from the first request to the last that follows no other, at that rate.
    """

    rate: float
    result: ServingResult
    tried: tuple[tuple[float, bool], ...]
    arriving_s: float

    @property
    def lasting(self) -> bool:
        """Whether the rate was there for most of the run: too few requests are over before they fill a fleet."""
        return self.arriving_s > self.result.metrics.duration_s / 2


def highest_rate(
    deployment: Deployment,
    requests: RequestTable,
    slo: Sequence[Slo],
    tpot: str = "standard",
    progress: Callable[[str], None] = lambda words: None,
) -> FoundRate:
    """Find it.

    Args:
        deployment: what serves.
        requests: at the rate with which the search begins; nobody follows anybody.
        slo: goals, at least one.
        tpot: as of :func:`triosim.serving.deployment.serve`.
        progress: told of each rate.

    Raises:
        InputError: there is no goal, no request has a time of its own or all come at once, or as of
            :func:`triosim.serving.deployment.serve`.
    """
    if not slo:
        raise InputError("--find rate looks for the highest rate that keeps the goals: give --slo, as ttft=p99:2s")
    begun = requests.arrived[requests.follows < 0]
    span = int(begun[-1] - begun[0])
    if span <= 0:
        raise InputError(
            "--find rate changes the times between requests, and these have none of their own: give --arrivals "
            "poisson, gamma or constant, or a file with times"
        )
    first = (len(requests) - 1) / (span / 1e12)
    tried: list[tuple[float, bool]] = []
    kept: dict[float, ServingResult] = {}
    priced: PricedPools = {}

    def answer(factor: float, rate: float) -> FoundRate:
        return FoundRate(rate, kept[factor], tuple(tried), span / 1e12 / factor)

    def keeps(factor: float) -> bool:
        progress(f"{first * factor:.4g} requests/s")
        result = serve(deployment, _stretched(requests, factor), slo, tpot, interval=False, priced=priced)
        good = all(met for _, _, met in result.metrics.goals)
        tried.append((first * factor, good))
        kept[factor] = result
        return good

    low, high = 1.0, 1.0
    if keeps(1.0):
        while high < HIGHEST and keeps(high * 2):
            high *= 2
        low, high = high, high * 2
        if low >= HIGHEST:
            return answer(low, first * low)
    else:
        while low > LOWEST and not keeps(low / 2):
            low /= 2
        if low <= LOWEST:
            return answer(low, 0.0)
        low, high = low / 2, low
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return answer(low, first * low)


MOST_REPLICAS = 4096
"""Beyond which nobody looks."""


@dataclass(frozen=True)
class FoundFleet:
    """An answer.

    Attributes:
        replicas: fewest that keep the goals, 0 where no number does.
        result: with so many; with the most that were tried where none does.
        tried: each number and whether it keeps them, in the order in which they were tried.
    """

    replicas: int
    result: ServingResult
    tried: tuple[tuple[int, bool], ...]


def fewest_replicas(
    deployment: Callable[[int], Deployment],
    requests: RequestTable,
    slo: Sequence[Slo],
    tpot: str = "standard",
    progress: Callable[[str], None] = lambda words: None,
) -> FoundFleet:
    """Find them.

    Args:
        deployment: of so many replicas.
        requests: the traffic.
        slo: goals, at least one.
        tpot: as of :func:`triosim.serving.deployment.serve`.
        progress: told of each number.

    Raises:
        InputError: there is no goal, or as of :func:`triosim.serving.deployment.serve`.
    """
    if not slo:
        raise InputError("--find fleet looks for the cheapest fleet that keeps the goals: give --slo, as ttft=p99:2s")
    most = min(MOST_REPLICAS, len(requests))
    tried: list[tuple[int, bool]] = []
    found: dict[int, ServingResult] = {}
    priced: PricedPools = {}
    made = []  # their systems live as long as what is priced by them

    def keeps(replicas: int) -> bool:
        progress(f"{replicas:,} replicas")
        made.append(deployment(replicas))
        found[replicas] = serve(made[-1], requests, slo, tpot, interval=False, priced=priced)
        good = all(met for _, _, met in found[replicas].metrics.goals)
        tried.append((replicas, good))
        return good

    low, high = 0, 1
    while not keeps(high):
        if high == most:
            return FoundFleet(0, found[high], tuple(tried))
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return FoundFleet(high, found[high], tuple(tried))


@dataclass(frozen=True)
class FoundClock:
    """An answer.

    Attributes:
        clock_hz: of least energy among those that keep the goals; the highest where none does.
        kept: whether one does.
        result: at it.
        tried: what came of each clock in hertz, the highest first.
        boost_hz: the boost clock of each device by its name, which stays there at a higher clock.
    """

    clock_hz: float
    kept: bool
    result: ServingResult
    tried: dict[float, ServingResult]
    boost_hz: Mapping[str, float]


def least_energy_clock(
    deployment: Deployment,
    requests: RequestTable,
    slo: Sequence[Slo],
    tpot: str = "standard",
    progress: Callable[[str], None] = lambda words: None,
    constants: Mapping[str, float] | None = None,
) -> FoundClock:
    """Find it: one clock that no device goes above; a pool with a device whose boost clock is lower keeps that.

    Args:
        deployment: what serves.
        requests: the traffic.
        slo: goals, at least one.
        tpot, constants: as of :func:`triosim.serving.deployment.serve`.
        progress: told of each clock.

    Raises:
        InputError: there is no goal, a boost clock or what devices draw is not known, or as of
            :func:`triosim.serving.deployment.serve`.
    """
    from triosim.search.clock_search import NOTHING_DRAWN, clock_range, least_energy

    if not slo:
        raise InputError(
            "--find clock looks for the clock of least energy that keeps the goals: give --slo, as ttft=p99:2s"
        )
    if any(pool.clock_hz is not None for pool in deployment.pools):
        raise InputError("--find clock and a clock of the pools both say it: give only one")
    devices = [_kinds(pool) for pool in deployment.pools]
    top, lowest = clock_range([device for kinds in devices for device in kinds])
    boosts = [min(device.clock_hz or top for device in kinds) for kinds in devices]

    def served(clock: float | None) -> ServingResult:
        progress("the full clock" if clock is None else f"{clock / 1e6:.0f} MHz")
        pools = tuple(
            replace(pool, clock_hz=None if clock is None else min(clock, boost))
            for pool, boost in zip(deployment.pools, boosts, strict=True)
        )
        return serve(replace(deployment, pools=pools), requests, slo, tpot, interval=False, constants=constants)

    def joules(result: ServingResult) -> float:
        if result.energy is None:
            raise InputError(NOTHING_DRAWN)
        return result.energy.node_j

    def keeps(result: ServingResult) -> bool:
        return all(met for _, _, met in result.metrics.goals)

    full = served(None)
    joules(full)
    tried, best = least_energy(served, full, top, lowest, joules, keeps)
    boost = {one.name: one.clock_hz for kinds in devices for one in kinds if one.clock_hz is not None}
    return FoundClock(best, keeps(tried[best]), tried[best], tried, boost)


def _kinds(pool: Pool) -> list[Accelerator]:
    """The device of each replica of a pool."""
    return [device_of(pool, first) for first in range(pool.first, pool.first + pool.devices, pool.size)]


def _stretched(requests: RequestTable, factor: float) -> RequestTable:
    """The same requests, coming so many times as fast; one that follows another comes as long after it as before."""
    arrived, own = requests.arrived.copy(), requests.follows < 0
    begin = arrived[0]
    seconds = (arrived[own] - begin).astype(np.float64) / 1e12 / factor
    arrived[own] = begin + picoseconds(seconds, "a stretched arrival time")
    return replace(requests, arrived=arrived)
