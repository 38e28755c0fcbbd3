"""State machine of a collective that moves through its pattern, whatever the algorithm.

The state grows with the edges, not with the transfers: for each edge how many of its transfers have been delivered,
and how many of the edges that it needs have not come far enough for the next.  An edge whose next transfer waits for
nothing has it under way, so nothing else need be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.engine.graph import ALL, Pattern


@dataclass(frozen=True)
class PatternEdges:
    """A pattern as the state machine walks it.

    Attributes:
        members, places: as in :class:`Pattern`.
        ends: the two positions of each edge.
        count: transfers of each edge.
        needs: for each edge the edges it needs, with the lag.
        needed: for each edge the edges that need it, with the lag.
    """

    members: int
    places: int
    ends: list[tuple[int, int]]
    count: list[int]
    needs: list[list[tuple[int, int]]]
    needed: list[list[tuple[int, int]]]

    @staticmethod
    def of(pattern: Pattern) -> PatternEdges:
        """The edges of a pattern."""
        needs: list[list[tuple[int, int]]] = [[] for _ in range(len(pattern))]
        needed: list[list[tuple[int, int]]] = [[] for _ in range(len(pattern))]
        rows = pattern.needs.rows().tolist()
        for edge, other, lag in zip(rows, pattern.needs.values.tolist(), pattern.lag.tolist(), strict=True):
            needs[edge].append((other, lag))
            needed[other].append((edge, lag))
        ends = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
        return PatternEdges(pattern.members, pattern.places, ends, pattern.count.tolist(), needs, needed)


def required_transfers(transfer: int, lag: int, count: int) -> int:
    """How many transfers of an edge with ``count`` must have been delivered before ``transfer`` of one that needs it
    may start."""
    return count if lag == ALL else min(max(transfer - lag + 1, 0), count)


class PatternState:
    """Where each edge of one running collective is.

    Args:
        edges: the pattern.
        delivered: transfers of each edge that have been delivered; none if not given.

    Attributes:
        delivered: transfers of each edge that have been delivered.
        missing: how many of the edges that an edge needs have not come far enough for its next transfer.
        open: for each position the edges from and to it on which not everything has been delivered.
    """

    def __init__(self, edges: PatternEdges, delivered: Sequence[int] = ()) -> None:
        self.edges = edges
        self.delivered = list(delivered) or [0] * len(edges.count)
        self.missing = [self._missing(edge) for edge in range(len(edges.count))]
        self.open = [0] * edges.places
        for (source, target), count, done in zip(edges.ends, edges.count, self.delivered, strict=True):
            self.open[source] += done < count
            self.open[target] += done < count

    def flying(self) -> list[int]:
        """The edges that have a transfer under way."""
        return [e for e, m in enumerate(self.missing) if not m and self.delivered[e] < self.edges.count[e]]

    def finished(self) -> list[int]:
        """The members that have sent and received everything."""
        return [position for position in range(self.edges.members) if not self.open[position]]

    def next(self, edge: int) -> tuple[list[int], list[int]]:
        """The transfer that an edge has under way has been delivered.

        Returns:
            what follows at the same instant: the edges whose next transfer starts, and the members that have finished.
        """
        count = self.edges.count
        self.delivered[edge] += 1
        done = self.delivered[edge]
        starting: list[int] = []
        finished: list[int] = []
        for other, lag in self.edges.needed[edge]:
            waits = other != edge and self.delivered[other] < count[other]
            if waits and done == required_transfers(self.delivered[other], lag, count[edge]):
                self.missing[other] -= 1
                if not self.missing[other]:
                    starting.append(other)
        if done < count[edge]:
            self.missing[edge] = self._missing(edge)
            if not self.missing[edge]:
                starting.append(edge)
            return starting, finished
        for position in self.edges.ends[edge]:
            self.open[position] -= 1
            if not self.open[position] and position < self.edges.members:
                finished.append(position)
        return starting, finished

    def _missing(self, edge: int) -> int:
        delivered, count, transfer = self.delivered, self.edges.count, self.delivered[edge]
        return sum(
            [
                delivered[other] < required_transfers(transfer, lag, count[other])
                for other, lag in self.edges.needs[edge]
            ]
        )
