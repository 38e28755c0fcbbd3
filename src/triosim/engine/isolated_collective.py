"""A collective that shares no link with anything: the times of all its transfers, without playing it.

Each transfer of edge e then lasts as long as it would on its own, ``d[e]`` ticks, and with ``done(e, k)`` for the ticks
from the begin until transfer k of e has been delivered the pattern is a recurrence of sums and maxima in whole numbers:
``done(e, k) = d[e] + max(done(e, k - 1), done(f, k - lag) for all f that e needs)``.  It has a closed form for

* rings, where each edge needs one other with lag 1 and these go in circles.  Unrolled, ``done(e, k)`` is the heaviest
  walk of k moves that ends at e, where each move stays or comes from the edge that is needed.  A walk stays, if
  anywhere, at the slowest edge that it visits: ``done(e, k) = max over i <= k of (sum of d of e and of i edges
  upwards) + (k - i) (the largest of these d)``.
* edges that go on equally often and need any others, each with lag 1 (rings whose members are folded).  Walks weigh the
  same, and one that comes to its slowest edge in a circle could have stayed there as long: of all walks of i moves,
  fewer than there are edges, the heaviest to each edge counts.
* pipelines, where each edge needs at most one other with lag 0.  With ``e0 .. e`` the edges from the first to e,
  ``done(e, k) = d[e0] + ... + d[e] + k max(d[e0], ..., d[e])``.

Anything else is worked out transfer by transfer, which needs no network model and is done once for all collectives that
are the same object.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Protocol

from triosim.engine.graph import BEYOND
from triosim.engine.pattern_state import PatternEdges, PatternState

Done = Callable[[int, int], int]


class IsolatedCollective(Protocol):
    """A collective that shares no link; ticks are counted from its first transfer.

    Attributes:
        last: tick of the last delivery of all, which may be to a place that is no member.
    """

    last: int

    def ends(self) -> list[int]:
        """When each member has finished."""

    def state(self, ticks: int) -> tuple[PatternState, list[tuple[int, int]]]:
        """Where it is after so many ticks, everything delivered that is due by then.

        Returns:
            the state machine, and the edges that have a transfer under way, each with the tick of its start.
        """


def isolated_collective(edges: PatternEdges, lasts: Sequence[int]) -> IsolatedCollective | None:
    """How a collective runs that shares no link, or None if it never ends: edges wait in a circle, or ticks run out.

    Args:
        edges: the pattern.
        lasts: ticks of each transfer of each edge, from its start to its delivery.
    """
    done = _ring(edges, lasts) or _pipeline(edges, lasts) or _in_step(edges, lasts)
    found = ClosedFormCollective(edges, lasts, done) if done is not None else EventDrivenCollective(edges, lasts)
    return found if found.complete and found.last < BEYOND else None


def _ring(edges: PatternEdges, lasts: Sequence[int]) -> Done | None:
    """``done`` where edges need each other in circles with lag 1."""
    if not all(len(needs) == 1 and needs[0][1] == 1 for needs in edges.needs):
        return None
    needed = [needs[0][0] for needs in edges.needs]
    if len(set(needed)) < len(needed) or any(edges.count[e] != edges.count[f] for e, f in enumerate(needed)):
        return None
    walks = _walks(needed, lasts)
    return lambda e, k: max([ticks + (k - i) * slowest for i, ticks, slowest in walks[e] if i <= k])


def _walks(needed: Sequence[int], lasts: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """For each edge the walks that can be heaviest: (edges upwards, their summed ticks, the slowest of them).

    Going further upwards pays only when it reaches a slower edge than all before it.
    """
    top = _slowest_of_circle(needed, lasts)
    walks = []
    for edge, there in enumerate(needed):
        ticks = slowest = lasts[edge]
        found = [(0, ticks, slowest)]
        i = 1
        while slowest < top[edge]:
            ticks += lasts[there]
            if lasts[there] > slowest:
                slowest = lasts[there]
                found.append((i, ticks, slowest))
            there, i = needed[there], i + 1
        walks.append(found)
    return walks


def _slowest_of_circle(needed: Sequence[int], lasts: Sequence[int]) -> list[int]:
    top = [-1] * len(needed)
    for edge in range(len(needed)):
        if top[edge] < 0:
            circle = [edge]
            while needed[circle[-1]] != edge:
                circle.append(needed[circle[-1]])
            slowest = max(lasts[e] for e in circle)
            for e in circle:
                top[e] = slowest
    return top


def _pipeline(edges: PatternEdges, lasts: Sequence[int]) -> Done | None:
    """``done`` where edges follow each other with lag 0."""
    if any(len(needs) > 1 or (needs and needs[0][1] != 0) for needs in edges.needs):
        return None
    if any(edges.count[e] != edges.count[needs[0][0]] for e, needs in enumerate(edges.needs) if needs):
        return None
    upto, slowest = list(lasts), list(lasts)
    ahead = [e for e, needs in enumerate(edges.needs) if not needs]
    for edge in ahead:  # grows while it is walked: each edge comes after the one that it needs
        for other, _ in edges.needed[edge]:
            upto[other] += upto[edge]
            slowest[other] = max(slowest[other], slowest[edge])
            ahead.append(other)
    if len(ahead) < len(lasts):
        return None
    return lambda e, k: upto[e] + k * slowest[e]


def _in_step(edges: PatternEdges, lasts: Sequence[int]) -> Done | None:
    """``done`` where edges need others with lag 1; None also where it is played as fast as all walks are looked at."""
    if len(set(edges.count)) != 1 or any(lag != 1 for needs in edges.needs for _, lag in needs):
        return None
    longest = min(len(lasts), edges.count[0]) - 1
    if longest * sum(map(len, edges.needs)) > edges.count[0] - 1:
        return None
    walks = []
    for edge, ticks in enumerate(lasts):
        walked, found = {edge: ticks}, [(0, ticks, ticks)]
        for i in range(1, longest + 1):
            further: dict[int, int] = {}
            for there, so_far in walked.items():
                for other, _ in edges.needs[there]:
                    further[other] = max(further.get(other, 0), so_far + lasts[other])
            found += [(i, so_far, lasts[there]) for there, so_far in further.items()]
            walked = further
        walks.append(found)
    return lambda e, k: max([ticks + (k - i) * slowest for i, ticks, slowest in walks[e] if i <= k])


class ClosedFormCollective:
    """A collective of which the tick of every delivery is known without working out those before it."""

    def __init__(self, edges: PatternEdges, lasts: Sequence[int], done: Done) -> None:
        self._edges, self._lasts, self._done = edges, lasts, done
        self.complete = True
        self.last = max([done(edge, count - 1) for edge, count in enumerate(edges.count)], default=0)

    def ends(self) -> list[int]:
        """See :meth:`IsolatedCollective.ends`."""
        ends = [0] * self._edges.places
        for edge, positions in enumerate(self._edges.ends):
            last = self._done(edge, self._edges.count[edge] - 1)
            for position in positions:
                ends[position] = max(ends[position], last)
        return ends[: self._edges.members]

    def state(self, ticks: int) -> tuple[PatternState, list[tuple[int, int]]]:
        """See :meth:`IsolatedCollective.state`."""
        delivered = [
            bisect_right(range(count), ticks, key=partial(self._done, edge))
            for edge, count in enumerate(self._edges.count)
        ]
        state = PatternState(self._edges, delivered)
        return state, [(e, self._done(e, delivered[e]) - self._lasts[e]) for e in state.flying()]


class EventDrivenCollective:
    """A collective that is worked out delivery by delivery, again for each question: its memory are its edges."""

    def __init__(self, edges: PatternEdges, lasts: Sequence[int]) -> None:
        self._edges, self._lasts = edges, lasts
        state, _, self._ends, self.last = self._until(None)
        self.complete = state.delivered == edges.count

    def ends(self) -> list[int]:
        """See :meth:`IsolatedCollective.ends`."""
        return self._ends

    def state(self, ticks: int) -> tuple[PatternState, list[tuple[int, int]]]:
        """See :meth:`IsolatedCollective.state`."""
        state, started, _, _ = self._until(ticks)
        return state, list(started.items())

    def _until(self, ticks: int | None) -> tuple[PatternState, dict[int, int], list[int], int]:
        """The state after so many ticks (None: at the end), the transfers under way, the ends of members, and the tick
        of the last delivery."""
        state, lasts = PatternState(self._edges), self._lasts
        started = dict.fromkeys(state.flying(), 0)
        ends = [0] * self._edges.members
        queue = [(lasts[edge], edge) for edge in started]
        heapify(queue)
        now = 0
        while queue and (ticks is None or queue[0][0] <= ticks):
            now, edge = heappop(queue)
            del started[edge]
            starting, finished = state.next(edge)
            for other in starting:
                started[other] = now
                heappush(queue, (now + lasts[other], other))
            for position in finished:
                ends[position] = now
        return state, started, ends, now
