"""Which replicas serve when: they start, fail, are repaired, and are asked for or sent away by an autoscaler.

A replica that fails loses all that it holds, the step that it computes and what its cache could have found.  Its
requests go to others, or wait until one serves, and go on with the output that they have: prompt and output so far are
computed again.  The failed replica is replaced after a while, and then starts cold.

A replica that is sent away gets no more requests, ends those that it has and is off; asked for again it starts cold,
unless it still has some.  Of those that serve the one with the fewest requests goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from heapq import heappop, heappush
from math import inf
from random import Random

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.units import MOST_TICKS, PICOSECONDS_PER_SECOND, parse_time
from triosim.serving.autoscaling import Autoscaler, AutoscalingPlan
from triosim.serving.replica import Replica
from triosim.serving.requests import Request

SHORTEST_S = 1.0
"""Mean time between failures below which hardly a step would end."""


def parse_mtbf(text: str, what: str) -> float:
    """Mean seconds between failures of a device; ``none``: it never fails.

    Raises:
        InputError: it is no time, or too short a one.
    """
    if text == "none":
        return inf
    seconds = parse_time(text, what)
    if seconds < SHORTEST_S:
        raise InputError(f"{what} must be at least a second, got {quoted(text)}: give a time, as 50700h, or none")
    return seconds


class ReplicaState(Enum):
    """State of a replica."""

    OFF = "off"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    DOWN = "down"


_THERE = (ReplicaState.STARTING, ReplicaState.SERVING, ReplicaState.DOWN)
"""What counts as there: it serves or will."""


@dataclass(frozen=True)
class PoolAvailability:
    """How the replicas of one pool come and go.

    Attributes:
        group: of the pool, by its place.
        replicas: of the pool.
        cold: picoseconds that each takes to start.
        autoscaling: None: all of them are there from the beginning.
        mtbf_s: mean seconds between failures of a replica while it serves, exponentially distributed; infinite: none.
        repair: picoseconds from a failure until another begins to start in its place.
        seed: of the failures.
    """

    group: int
    replicas: Sequence[Replica]
    cold: Sequence[int]
    autoscaling: AutoscalingPlan | None = None
    mtbf_s: float = inf
    repair: int = 0
    seed: int = 0


@dataclass(frozen=True)
class FleetHistory:
    """Starts and failures of replicas, and the time for which each is paid.

    Attributes:
        paid: picoseconds that each was there, or being repaired, from the first arrival to the last token.
        starts: that were begun after the first arrival, repairs included.
        failures: of all replicas.
        moved: requests that lost their replica, each time.
    """

    paid: NDArray[np.int64]
    starts: int
    failures: int
    moved: int


@dataclass
class _ReplicaRecord:
    """What is known of one replica.

    Attributes:
        replica: it.
        pool: of it.
        cold: picoseconds that it takes to start.
        draw: of its failures.
        standing: now.
        event: number of what is due next; what else is due of it was called off.
        since: when it was last begun to be paid for.
        paid: picoseconds before that.
    """

    replica: Replica
    pool: PoolAvailability
    cold: int
    draw: Random
    standing: ReplicaState = ReplicaState.OFF
    event: int = -1
    since: int = 0
    paid: int = 0


@dataclass
class Availability:
    """The replicas of a fleet, some of which come and go.

    Args:
        pools: of the fleet, all of them.

    Attributes:
        held: requests of each group that wait for a replica to serve.
        failed: replicas that failed at the last tick that was played.
    """

    pools: Sequence[PoolAvailability]
    held: list[deque[Request]] = field(init=False)
    failed: list[Replica] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.held = [deque() for _ in range(1 + max(pool.group for pool in self.pools))]
        self._of = {
            one.number: _ReplicaRecord(one, pool, cold, Random(f"failures {pool.seed} {one.number}"))
            for pool in self.pools for one, cold in zip(pool.replicas, pool.cold, strict=True)
        }  # fmt: skip
        self._scalers = [
            (pool, Autoscaler(pool.autoscaling, len(pool.replicas)))
            for pool in self.pools if pool.autoscaling is not None
        ]  # fmt: skip
        self._looks: list[tuple[int, int]] = []  # when, and which scaler
        self._due: list[tuple[int, int, int]] = []  # when, number of the event, and whose
        self._events = self._starts = self._failures = self._moved = 0

    def begin(self, now: int) -> None:
        """The first request arrives: those serve that are there from the beginning."""
        for pool in self.pools:
            least = len(pool.replicas) if pool.autoscaling is None else pool.autoscaling.least
            for replica in pool.replicas[:least]:
                one = self._of[replica.number]
                one.since = now
                self._serves(one, now)
        for place, (_, scaler) in enumerate(self._scalers):
            if every := scaler.plan.every_ticks:
                heappush(self._looks, (now + every, place))

    @property
    def next(self) -> int | None:
        """The tick at which something happens next, if anything is due."""
        due = self._due
        while due and self._of[due[0][2]].event != due[0][1]:
            heappop(due)
        return min([heap[0][0] for heap in (due, self._looks) if heap], default=None)

    @property
    def holds(self) -> bool:
        """Whether requests wait for a replica to serve."""
        return any(self.held)

    def at(self, now: int) -> list[tuple[int, Request]]:
        """All that is due at this tick.

        Returns:
            Requests that need a replica, each with its group; in order of their arrival.
        """
        self.failed = []
        again: list[tuple[int, Request]] = []
        while (later := self.next) is not None and later == now:
            if not self._due or self._due[0][0] != now:
                _, place = heappop(self._looks)
                pool, scaler = self._scalers[place]
                self._scale(pool, scaler, now)
                heappush(self._looks, (now + scaler.plan.every_ticks, place))
                continue
            one = self._of[heappop(self._due)[2]]
            if one.standing in (ReplicaState.SERVING, ReplicaState.DRAINING):
                again += self._fails(one, now)
            elif one.standing is ReplicaState.DOWN:
                self._start(one, now)
            else:
                self._serves(one, now)
        for pool in self.pools:
            if self.held[pool.group] and self.serving(pool.replicas):
                again += [(pool.group, request) for request in self.held[pool.group]]
                self.held[pool.group].clear()
        return sorted(again, key=lambda one: one[1].number)

    def serving(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Those that take requests."""
        return [one for one in replicas if self._of[one.number].standing is ReplicaState.SERVING]

    def open_to(self, request: Request, group: int, replicas: Sequence[Replica], now: int) -> list[Replica]:
        """Replicas to which a request can go; where there is none it is held."""
        self.held[group].append(request)
        for pool, scaler in self._scalers:
            if pool.group == group and (not scaler.plan.every_ticks or not self._there(pool)):
                self._scale(pool, scaler, now)
        found = self.serving(replicas)
        if found:
            self.held[group].pop()
        return found

    def ended(self, replica: Replica, now: int) -> None:
        """A step of a replica is over: if it was sent away it may be done."""
        one = self._of[replica.number]
        if one.standing is ReplicaState.DRAINING and not replica.outstanding:
            self._off(one, now)

    def history(self, end: int) -> FleetHistory:
        """Of the whole run, which ends at a tick."""
        paid = [
            one.paid + (end - one.since if one.standing is not ReplicaState.OFF else 0) for one in self._of.values()
        ]
        return FleetHistory(np.array(paid, np.int64), self._starts, self._failures, self._moved)

    # --- one replica -------------------------------------------------------------------------------------------------

    def _due_at(self, one: _ReplicaRecord, when: int) -> None:
        self._events += 1
        one.event = self._events
        if when <= MOST_TICKS:
            heappush(self._due, (when, one.event, one.replica.number))

    def _start(self, one: _ReplicaRecord, now: int) -> None:
        """It begins to load its weights; the request that asked for it may go there at once if that takes no time."""
        self._starts += 1
        if one.cold:
            one.standing = ReplicaState.STARTING
            self._due_at(one, now + one.cold)
        else:
            self._serves(one, now)

    def _serves(self, one: _ReplicaRecord, now: int) -> None:
        one.standing, one.event = ReplicaState.SERVING, -1
        if one.pool.mtbf_s < inf:
            up = one.draw.expovariate(1.0 / one.pool.mtbf_s) * PICOSECONDS_PER_SECOND
            self._due_at(one, now + max(round(min(up, 2.0 * MOST_TICKS)), 1))

    def _fails(self, one: _ReplicaRecord, now: int) -> list[tuple[int, Request]]:
        self._failures += 1
        lost = one.replica.lose(now)
        self._moved += len(lost)
        self.failed.append(one.replica)
        if one.standing is ReplicaState.DRAINING:
            self._off(one, now)
        else:
            one.standing = ReplicaState.DOWN
            self._due_at(one, now + one.pool.repair)
        return [(one.pool.group, request) for request in lost]

    def _off(self, one: _ReplicaRecord, now: int) -> None:
        one.standing, one.event = ReplicaState.OFF, -1
        one.paid += now - one.since
        one.replica.forget()

    # --- as many as there should be ----------------------------------------------------------------------------------

    def _there(self, pool: PoolAvailability) -> list[_ReplicaRecord]:
        return [one for one in self._all(pool) if one.standing in _THERE]

    def _all(self, pool: PoolAvailability) -> list[_ReplicaRecord]:
        return [self._of[replica.number] for replica in pool.replicas]

    def _scale(self, pool: PoolAvailability, scaler: Autoscaler, now: int) -> None:
        there = self._there(pool)
        outstanding = sum(one.outstanding for one in pool.replicas) + len(self.held[pool.group])
        wanted = scaler.wanted(now, outstanding, len(there))
        if wanted > len(there):
            spare = [one for one in self._all(pool) if one.standing not in _THERE]
            spare.sort(key=lambda one: one.standing is not ReplicaState.DRAINING)
            for one in spare[: wanted - len(there)]:
                if one.standing is ReplicaState.DRAINING:
                    one.standing = ReplicaState.SERVING  # what fails of it is due already
                else:
                    one.since = now
                    self._start(one, now)
            return
        there.sort(key=lambda one: (one.standing is ReplicaState.SERVING, one.replica.outstanding, -one.replica.number))
        for one in there[: len(there) - wanted]:
            if one.standing is ReplicaState.SERVING and one.replica.outstanding:
                one.standing = ReplicaState.DRAINING
            else:
                self._off(one, now)
