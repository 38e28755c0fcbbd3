"""Models that take turns on the same devices, whose memory has room for the weights of one.

All models are kept in host memory.  One holds the devices.  It keeps them while it has requests, or for a turn if
others have some too; then the weights of that whose first request has waited longest are loaded over the host's links.
What the one before held of a KV cache is lost: requests that it had not ended are computed again when it is back.  It
gives no device back before one of its requests has had a token, so that every turn brings some work forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush

from triosim.core.dataclass import dataclass
from triosim.core.units import MOST_SUM
from triosim.serving.replica import Replica


@dataclass
class SharedDevices:
    """Devices, and the replicas that take turns on them.

    Attributes:
        replicas: of different models; the first one holds the devices when the run begins.
        cold: picoseconds that loading the weights of each takes.
        turn: picoseconds after which one gives way if others have requests.
        holder: place of the one that holds the devices, or whose weights are being loaded.
        loading: whether they are.
        since: when they were, or will have been, loaded.
    """

    replicas: Sequence[Replica]
    cold: Sequence[int]
    turn: int = MOST_SUM
    holder: int = field(init=False, default=0)
    loading: bool = field(init=False, default=False)
    since: int = field(init=False, default=0)

    def waiting(self) -> list[int]:
        """Places of those that have requests and no devices."""
        return [place for place, one in enumerate(self.replicas) if place != self.holder and one.outstanding]

    def over(self, now: int) -> bool:
        """Whether the holder has had its turn."""
        own = self.replicas[self.holder]
        if not own.outstanding:
            return True
        return now - self.since >= self.turn and any(one.last_token > self.since for one in own.policy.running)


class TimeSharing:
    """All seats of a fleet.

    Args:
        seats: of different replicas.

    Attributes:
        swaps: how often weights were loaded.
        loading: picoseconds that took, over all seats.
    """

    def __init__(self, seats: Sequence[SharedDevices]) -> None:
        self.seats = seats
        self.swaps = self.loading = 0
        self._of = {one.number: seat for seat in seats for one in seat.replicas}
        self._due: list[tuple[int, int]] = []  # (when, seat)

    @property
    def next(self) -> int | None:
        """When weights have been loaded next."""
        return self._due[0][0] if self._due else None

    @property
    def saved(self) -> int:
        """Replicas that there are beside one for each seat."""
        return sum(len(seat.replicas) - 1 for seat in self.seats)

    def loaded(self, now: int) -> list[Replica]:
        """Replicas that can begin now."""
        out = []
        while self._due and self._due[0][0] == now:
            seat = self.seats[heappop(self._due)[1]]
            seat.loading = False
            out.append(seat.replicas[seat.holder])
        return out

    def horizon(self) -> int:
        """The tick before which no turn ends."""
        return min((seat.since + seat.turn for seat in self.seats if seat.waiting()), default=MOST_SUM)

    def turn(self, replicas: Sequence[Replica], now: int) -> list[Replica]:
        """Those of these replicas that may begin a step, once devices have changed hands."""
        out = []
        for one in replicas:
            seat = self._of.get(one.number)
            if seat is not None:
                if not seat.loading and seat.waiting() and seat.over(now):
                    if not seat.replicas[seat.holder].in_flight:
                        self._change(seat, now)
                    continue
                if seat.loading or seat.replicas[seat.holder] is not one:
                    continue
            out.append(one)
        return out

    def _change(self, seat: SharedDevices, now: int) -> None:
        own = seat.replicas[seat.holder]
        others = seat.waiting()
        for request in own.lose(now):
            own.arrive(request)
        seat.holder = min(others, key=lambda place: _first(seat.replicas[place]))
        seat.loading, seat.since = True, now + seat.cold[seat.holder]
        self.swaps += 1
        self.loading += seat.cold[seat.holder]
        heappush(self._due, (seat.since, self.seats.index(seat)))


def _first(replica: Replica) -> int:
    """Number of the request that has been there longest."""
    return min(request.number for request in [*replica.policy.waiting, *replica.coming])
