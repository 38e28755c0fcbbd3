"""Which way a transfer goes through a System, and the System as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, Wires
from triosim.errors import InputError
from triosim.hardware.system import System, Tier
from triosim.units import PICOSECONDS_PER_SECOND

# The cost of a route is one whole number, so that it is added and compared at once.  From its lowest bit: hops (20
# bits), latency in picoseconds (64 bits), edges of tier SCALE_OUT (20 bits), edges of tier HOST.
_HOP, _PICOSECOND, _SCALE_OUT, _HOST = 1, 1 << 20, 1 << 84, 1 << 104


class Router:
    """Shortest routes between the nodes of a System, devices, hosts and the pool alike.

    A route has as few edges of tier HOST as can be, of those as few of tier SCALE_OUT (see :class:`Tier`), of those the
    least latency, of those the fewest hops; where routes are still equal, it goes on from each node to the
    lowest-numbered node, over the lowest-numbered edge.  Bandwidth plays no part: a slow link is not driven around.

    Dijkstra's algorithm, from both ends until they meet: the way between two servers of a large cluster is found
    without looking at the others.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._latency = _picoseconds(system.latency)
        self._overhead = _picoseconds(system.overhead)
        self._source: list[int] = system.edge_source.tolist()
        self._target: list[int] = system.edge_target.tolist()
        self._leaving = _edges_of(system.edge_source, system.nodes)
        self._entering = _edges_of(system.edge_target, system.nodes)
        tiers = {Tier.SCALE_UP: _HOP, Tier.SCALE_OUT: _HOP + _SCALE_OUT, Tier.HOST: _HOP + _HOST}
        edges = zip(self._latency.tolist(), system.edge_tier.tolist(), strict=True)
        self._cost = [tiers[tier] + latency * _PICOSECOND for latency, tier in edges]
        self._from: dict[int, _Search] = {}
        self._to: dict[int, _Search] = {}

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Edge ids from one node to another, in order; empty where both are the same.

        Raises:
            InputError: no links lead there.
        """
        if source not in self._from:
            self._from[source] = _Search(source, self._leaving, self._target, self._cost)
        if target not in self._to:
            self._to[target] = _Search(target, self._entering, self._source, self._cost)
        onward = self._onward(self._from[source], self._to[target])
        if onward is None:
            names = self.system.node_names
            raise InputError(
                f"system {self.system.name!r}: no links lead from {names[source]!r} to {names[target]!r}: add a link"
            )
        route, node = [], source
        while node != target:
            _, edge = min((self._target[edge], edge) for edge in onward[node])
            route.append(edge)
            node = self._target[edge]
        return tuple(route)

    def _onward(self, there: _Search, back: _Search) -> dict[int, list[int]] | None:
        """For each node on a best route, the edges by which best routes go on from it; None if there is no route.

        The searches from both ends go on until their next nodes are together as far away as the best route is long.
        Then every best route has a node that both have reached, with all nodes before it settled by the one and all
        after it by the other.
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
        onward: dict[int, list[int]] = {}
        small, large = sorted((there, back), key=lambda search: len(search.cost))
        meet = [node for node, cost in small.cost.items() if node in large.cost and cost + large.cost[node] == best]
        for search, ends in ((there, self._source), (back, self._target)):
            nodes, seen = list(meet), set(meet)
            while nodes:
                node = nodes.pop()
                for edge in search.by[node]:
                    onward.setdefault(self._source[edge], []).append(edge)
                    if ends[edge] not in seen:
                        seen.add(ends[edge])
                        nodes.append(ends[edge])
        return onward

    def wires(self, pairs: Iterable[tuple[int, int]]) -> Wires:
        """The network for transfers between these pairs of nodes: links are the edges of the System, route i is that
        of pair i.

        Raises:
            InputError: no links lead from one to the other, or a link has a bandwidth that cannot be counted.
        """
        routes = Ragged.of([self.route(a, b) for a, b in pairs], np.int32)
        return Wires(self._capacity(), routes, _row_sums(routes, self._latency))

    def overhead(self, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
        """Software cost of a transfer between each of these pairs, in picoseconds: the largest among its links."""
        return np.array([self._overhead[list(self.route(a, b))].max(initial=0) for a, b in pairs], np.int64)

    def _capacity(self) -> NDArray[np.int64]:
        """Bandwidth of each edge in the unit of the engine, rounded down."""
        system = self.system
        limited = np.isfinite(system.bandwidth)
        capacity = np.floor(np.where(limited, system.bandwidth, 1.0) * CAPACITY_PER_BYTE)
        for wrong, cure in (
            (capacity < 1, "the least is 1 B/s"),
            (capacity >= 2.0**63, "use inf for a link that never limits"),
        ):
            if wrong.any():
                edge = int(np.argmax(wrong))
                ends = [system.node_names[node] for node in (system.edge_source[edge], system.edge_target[edge])]
                raise InputError(
                    f"system {system.name!r}: the link from {ends[0]!r} to {ends[1]!r} has a bandwidth of "
                    f"{system.bandwidth[edge]:g} B/s: {cure}"
                )
        return np.where(limited, capacity, UNLIMITED).astype(np.int64)


class _Search:
    """Dijkstra's algorithm from one node, carried on only as far as asked.

    Attributes:
        cost: of the best way found to each node reached.
        by: the last edges of all ways of that cost.
        ahead: nodes reached but not settled, nearest first.
    """

    def __init__(self, start: int, edges: list[list[int]], ends: list[int], costs: list[int]) -> None:
        self._edges, self._ends, self._costs = edges, ends, costs
        self.cost = {start: 0}
        self.by: dict[int, list[int]] = {start: []}
        self.ahead = [(0, start)]

    def settle(self) -> list[int]:
        """Settle the nearest node that is not settled; the nodes to which it opens a way as good as any before."""
        cost, node = heappop(self.ahead)
        opened = []
        for edge in self._edges[node]:
            there, further = self._ends[edge], cost + self._costs[edge]
            known = self.cost.get(there)
            if known is None or further < known:
                self.cost[there] = further
                self.by[there] = [edge]
                heappush(self.ahead, (further, there))
                opened.append(there)
            elif further == known:
                self.by[there].append(edge)
        while self.ahead and self.ahead[0][0] > self.cost[self.ahead[0][1]]:
            heappop(self.ahead)  # a better way was found since
        return opened


def _edges_of(ends: NDArray[np.int32], nodes: int) -> list[list[int]]:
    """For each node the edges that have it at this end."""
    order = np.argsort(ends, kind="stable")
    return Ragged(order, np.searchsorted(ends[order], np.arange(nodes + 1))).lists()


def _picoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * PICOSECONDS_PER_SECOND).astype(np.int64)


def _row_sums(rows: Ragged, of: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, rows.rows(), of[rows.values])
    return sums
