"""The best routes of a System, by Dijkstra's algorithm from both ends until they meet.

A route has as few edges of tiers HOST and NVME as can be, of those as few of tier SCALE_OUT (see :class:`Tier`), of
those the fewest hops.  Bandwidth and latency play no part: a slow link is not driven around, and a figure that changes
a little changes no route.

Routes that are equal in all this are ordered from their first step on: by the next node, then by the edge.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.hardware.system import System, Tier

# The cost of a route is one whole number, so that it is added and compared at once.  From its lowest bit: hops, edges
# of tier SCALE_OUT, edges of tier HOST, 20 bits each.
_HOP, _SCALE_OUT, _HOST = 1, 1 << 20, 1 << 40
_COST = {Tier.SCALE_UP: _HOP, Tier.SCALE_OUT: _HOP + _SCALE_OUT, Tier.HOST: _HOP + _HOST, Tier.NVME: _HOP + _HOST}

Onward = dict[int, list[tuple[int, int]]]
"""For each node the ``(next node, edge)`` by which best routes go on from it, lowest first."""


class RouteSearch:
    """The best routes of a System.

    Args:
        system: the machine.
        without: tier whose edges are not used.
    """

    def __init__(self, system: System, without: Tier | None = None) -> None:
        self._forth = _AdjacencyLists(system.leaving, system.edge_target, system.edge_tier, without)
        self._back = _AdjacencyLists(system.entering, system.edge_source, system.edge_tier, without)
        self._from: dict[int, _Dijkstra] = {}
        self._to: dict[int, _Dijkstra] = {}

    def onward(self, source: int, target: int) -> Onward | None:
        """All best routes from one node to another; None if there is none."""
        if source not in self._from:
            self._from[source] = _Dijkstra(source, self._forth)
        if target not in self._to:
            self._to[target] = _Dijkstra(target, self._back)
        return _meet(self._from[source], self._to[target])


class _AdjacencyLists:
    """The edges at each node as ``(edge, node at its other end, cost)``, looked up when first asked for."""

    def __init__(
        self,
        edges: Ragged,
        ends: NDArray[np.int32],
        tiers: NDArray[np.int8],
        without: Tier | None,
    ) -> None:
        self._edges, self._ends, self._tiers, self._without = edges, ends, tiers, without
        self._known: dict[int, list[tuple[int, int, int]]] = {}

    def at(self, node: int) -> list[tuple[int, int, int]]:
        if node not in self._known:
            edges = self._edges[node]
            columns = (edges, self._ends[edges], self._tiers[edges])
            self._known[node] = [
                (edge, end, _COST[Tier(tier)])
                for edge, end, tier in zip(*(column.tolist() for column in columns), strict=True)
                if tier != self._without
            ]
        return self._known[node]


class _Dijkstra:
    """Dijkstra's algorithm from one node, carried on only as far as asked.

    Attributes:
        cost: of the best way found to each node reached.
        by: the last steps of all ways of that cost, ``(node before, edge)``.
        ahead: nodes reached but not settled, nearest first.
    """

    def __init__(self, start: int, ways: _AdjacencyLists) -> None:
        self._ways = ways
        self.cost = {start: 0}
        self.by: dict[int, list[tuple[int, int]]] = {start: []}
        self.ahead = [(0, start)]

    def settle(self) -> list[int]:
        """Settle the nearest node that is not settled; the nodes to which it opens a way as good as any before."""
        cost, node = heappop(self.ahead)
        opened = []
        for edge, there, more in self._ways.at(node):
            further = cost + more
            known = self.cost.get(there)
            if known is None or further < known:
                self.cost[there] = further
                self.by[there] = [(node, edge)]
                heappush(self.ahead, (further, there))
                opened.append(there)
            elif further == known:
                self.by[there].append((node, edge))
        while self.ahead and self.ahead[0][0] > self.cost[self.ahead[0][1]]:
            heappop(self.ahead)  # a better way was found since
        return opened


def _meet(there: _Dijkstra, back: _Dijkstra) -> Onward | None:
    """All best routes between the starts of two searches.

    The searches go on until their next nodes are together as far away as the best route is long.  Then every best
    route has a node that both have reached, with all nodes before it settled by the one and all after it by the other.
    """
    small, large = sorted((there, back), key=lambda search: len(search.cost))
    best = min((cost + large.cost[node] for node, cost in small.cost.items() if node in large.cost), default=None)
    while there.ahead and back.ahead and (best is None or there.ahead[0][0] + back.ahead[0][0] < best):
        near, far = (there, back) if there.ahead[0][0] <= back.ahead[0][0] else (back, there)
        for node in near.settle():
            if node in far.cost and (best is None or near.cost[node] + far.cost[node] < best):
                best = near.cost[node] + far.cost[node]
    if best is None:
        return None
    small, large = sorted((there, back), key=lambda search: len(search.cost))
    meet = [node for node, cost in small.cost.items() if node in large.cost and cost + large.cost[node] == best]
    onward: dict[int, set[tuple[int, int]]] = {}
    for search in (there, back):
        nodes, seen = list(meet), set(meet)
        while nodes:
            node = nodes.pop()
            for other, edge in search.by[node]:
                start, end = (other, node) if search is there else (node, other)
                onward.setdefault(start, set()).add((end, edge))
                if other not in seen:
                    seen.add(other)
                    nodes.append(other)
    return {node: sorted(steps) for node, steps in onward.items()}


def numbers(onward: Onward, source: int, target: int) -> dict[int, int]:
    """How many best routes lead to the target from each node on one of them."""
    found = {target: 1}
    ahead = [source]
    while ahead:
        node = ahead[-1]
        unknown = [there for there, _ in onward.get(node, ()) if there not in found]
        if unknown and node not in found:
            ahead += unknown
            continue
        found.setdefault(node, sum(found[there] for there, _ in onward.get(node, ())))
        ahead.pop()
    return found


def lowest(onward: Onward, source: int, target: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The first of the best routes: its edges, and the nodes that were compared to find it."""
    edges, forks, node = [], [], source
    while node != target:
        steps = onward[node]
        forks += [(steps[0][0], other) for other, _ in steps if other != steps[0][0]]
        node, edge = steps[0]
        edges.append(edge)
    return edges, forks


def numbered(onward: Onward, source: int, target: int, which: int) -> tuple[list[int], list[tuple[int, int]]]:
    """One of the best routes by its number: its edges, and the nodes that were compared to put all in order."""
    count = numbers(onward, source, target)
    edges, node = [], source
    while node != target:
        steps = iter(onward[node])
        node, edge = next(steps)
        while which >= count[node]:
            which -= count[node]
            node, edge = next(steps)
        edges.append(edge)
    choices = (onward.get(node, []) for node in count)
    return edges, [(a, b) for some in choices for (a, _), (b, _) in pairwise(some) if a != b]
