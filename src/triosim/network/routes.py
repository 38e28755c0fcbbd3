"""Which way a transfer goes through a System, and the System as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, Wires
from triosim.errors import InputError
from triosim.hardware.system import System, Tier
from triosim.network.alike import Parts, Walk, parts_of
from triosim.network.search import Network
from triosim.units import PICOSECONDS_PER_SECOND

_FEW = 16
"""Up to so many routes are found faster one by one than by looking for pairs that are alike."""


class Router:
    """Shortest routes between the nodes of a System, devices, hosts and the pool alike.

    A route has as few edges of tier HOST as can be, of those as few of tier SCALE_OUT (see :class:`Tier`), of those the
    least latency, of those the fewest hops; where routes are still equal, it goes on from each node to the
    lowest-numbered node, over the lowest-numbered edge.  Bandwidth plays no part: a slow link is not driven around.

    Of many pairs only those are searched that are not alike (see :mod:`triosim.network.alike`).
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._latency = _picoseconds(system.latency)
        self._overhead = _picoseconds(system.overhead)
        self._network = Network(system, self._latency)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Edge ids from one node to another, in order; empty where both are the same.

        Raises:
            InputError: no links lead there.
        """
        return self._walk(source, target).edges

    def routes(self, source: ArrayLike, target: ArrayLike) -> Ragged:
        """The routes of many pairs of nodes, each the one that :meth:`route` finds.

        Args:
            source, target: nodes, shape ``(pairs,)``.

        Returns:
            edge ids, int32, a row for each pair.

        Raises:
            InputError: no links lead from one to the other.
        """
        source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
        if len(source) <= _FEW:  # faster one by one
            return Ragged.of([self.route(a, b) for a, b in _pairs(source, target)], np.int32)
        parts = self._parts
        first, model = parts.alike(source, target)
        walks = [self._walk(a, b) for a, b in _pairs(source[first], target[first])]
        holds = [parts.hold_for_alike(walk) for walk in walks]
        alone = np.flatnonzero(~np.array(holds, np.bool_)[model])
        model[alone] = len(first) + np.arange(len(alone))
        first = np.concatenate([first, alone])
        walks += [self._walk(a, b) for a, b in _pairs(source[alone], target[alone])]
        found = Ragged.of([walk.edges for walk in walks], np.int32)
        return parts.carried(found.take(model), (source[first[model]], target[first[model]]), (source, target))

    @cached_property
    def capacity(self) -> NDArray[np.int64]:
        """Bandwidth of each edge in the unit of the engine, rounded down.

        Raises:
            InputError: a link has a bandwidth that cannot be counted.
        """
        return self._capacity()

    @cached_property
    def _parts(self) -> Parts:
        return parts_of(self.system, self._latency * len(Tier) + self.system.edge_tier)

    def _walk(self, source: int, target: int) -> Walk:
        onward = self._network.onward(source, target)
        if onward is None:
            names = self.system.node_names
            raise InputError(
                f"system {self.system.name!r}: no links lead from {names[source]!r} to {names[target]!r}: add a link"
            )
        edges, forks, node = [], [], source
        while node != target:
            steps = onward[node]
            forks += [(steps[0][0], other) for other, _ in steps if other != steps[0][0]]
            node, edge = steps[0]
            edges.append(edge)
        return Walk(source, target, tuple(edges), tuple(forks))

    def wires(self, pairs: Iterable[tuple[int, int]]) -> Wires:
        """The network for transfers between these pairs of nodes: links are the edges of the System, route i is that
        of pair i.

        Raises:
            InputError: no links lead from one to the other, or a link has a bandwidth that cannot be counted.
        """
        routes = self.routes(*_columns(pairs))
        return Wires(self._capacity(), routes, self.latency(routes))

    def latency(self, routes: Ragged) -> NDArray[np.int64]:
        """Latency of each route in picoseconds: the sum over its links."""
        sums = np.zeros(len(routes), np.int64)
        np.add.at(sums, routes.rows(), self._latency[routes.values])
        return sums

    def overhead(self, routes: Ragged | Iterable[tuple[int, int]]) -> NDArray[np.int64]:
        """Software cost of a transfer over each route, in picoseconds: the largest among its links.

        Args:
            routes: edge ids, or pairs of nodes for the routes between them.
        """
        found = routes if isinstance(routes, Ragged) else self.routes(*_columns(routes))
        largest = np.zeros(len(found), np.int64)
        np.maximum.at(largest, found.rows(), self._overhead[found.values])
        return largest

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


def _pairs(source: NDArray[np.int64], target: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    return zip(source.tolist(), target.tolist(), strict=True)


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.array(list(pairs), np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _picoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * PICOSECONDS_PER_SECOND).astype(np.int64)
