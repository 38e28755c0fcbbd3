"""Which way a transfer goes through a System, and the System as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.units import MOST_TICKS, picoseconds, whole_ticks
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, EngineNetwork
from triosim.hardware.system import System, Tier
from triosim.network.direct_links import DirectLinks
from triosim.network.route_batch import RouteBatch
from triosim.network.routing import Routing, routing_of
from triosim.network.search import Onward, RouteSearch, lowest, numbered, numbers
from triosim.network.system_parts import SystemDecomposition, levels

_FEW = 16
"""Up to so many routes are found faster one by one than by looking for pairs that are alike."""

_KEPT = 65_536
"""Routes that are remembered, of those that were searched one by one."""

_Chosen = tuple[list[int], list[tuple[int, int]]]
"""Edges of a route, and the forks on the way."""

_MOST = 2**61
"""More equal routes are counted as so many."""


@kept(2)
def router_of(system: System) -> Router:
    """The Router of a System by its own routing, with all that it has found for others."""
    return Router(system)


Shortcut = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], RouteBatch]]


class Router:
    """Routes between the nodes of a System, devices, hosts and the pool alike.

    What the best routes are is said in :mod:`triosim.network.search`; which of them is taken, by the routing.  Of many
    pairs only those are searched that are not alike (see :mod:`triosim.network.system_parts`).

    Args:
        system: the machine.
        routing: that of the system if None.

    Raises:
        InputError: the system asks for a routing that does not exist.
    """

    def __init__(self, system: System, routing: Routing | None = None) -> None:
        self.system = system
        self.routing = routing or routing_of(system)
        self._given = self.routing.given(system)
        self._latency = picoseconds(system.latency, lambda edge: f"{self._link(edge)}: its latency")
        self._overhead = picoseconds(system.overhead, lambda edge: f"{self._link(edge)}: its overhead")
        self._network = RouteSearch(system)
        self._known: dict[tuple[int, int, int], _Chosen] = {}
        self.capacity = self._capacity()

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Edge ids from one node to another, in order; empty where both are the same.

        Raises:
            InputError: no links lead there.
        """
        return tuple(self.routes([source], [target]).values.tolist())

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
        which = np.zeros(len(source), np.int64)
        if self.routing.spreads:
            which = self.routing.which(source, target, self._counts(source, target))
        found = self._walks(source, target, which).edges
        return self._with_given(source, target, found) if self._given else found

    def _walks(self, source: NDArray, target: NDArray, which: NDArray, level: int = 0) -> RouteBatch:
        """The best routes by their number among those that are equal."""
        if len(source) <= _FEW or level == len(self._levels):
            return self._searched(source, target, which)
        parts = self._levels[level]
        first, sort = parts.alike(source, target, 2 * which + self._apart(source, target))
        walks = self._walks(source[first], target[first], which[first], level + 1)
        alone = np.flatnonzero(~parts.hold(walks)[sort])
        if len(alone):
            sort[alone] = len(first) + np.arange(len(alone))
            walks = RouteBatch.joined([walks, self._walks(source[alone], target[alone], which[alone], level + 1)])
        return parts.carried(walks, sort, source, target)

    def _counts(self, source: NDArray, target: NDArray, level: int = 0) -> NDArray[np.int64]:
        """How many best routes each pair has."""
        if len(source) <= _FEW or level == len(self._levels):
            pairs = zip(source.tolist(), target.tolist(), strict=True)
            return np.array([min(numbers(self._onward(a, b), a, b)[a], _MOST) for a, b in pairs], np.int64)
        first, sort = self._levels[level].alike(source, target, self._apart(source, target))
        return self._counts(source[first], target[first], level + 1)[sort]

    def _searched(self, source: NDArray, target: NDArray, which: NDArray) -> RouteBatch:
        """Walks between pairs of which none is known to be like another."""
        if len(source) <= _FEW or self.routing.spreads:  # who chooses among equal routes needs all of them
            return self._one_by_one(source, target, which)
        left = np.flatnonzero(self._apart(source, target) == 0)
        rows, found = [], []
        for find in self._shortcuts:
            done, walks = find(source[left], target[left])
            rows.append(left[done])
            found.append(walks)
            left = np.delete(left, done)
        rest = np.setdiff1d(np.arange(len(source)), np.concatenate(rows))
        found.append(self._one_by_one(source[rest], target[rest], which[rest]))
        return RouteBatch.joined(found).take(np.argsort(np.concatenate([*rows, rest])))

    def _one_by_one(self, source: NDArray, target: NDArray, which: NDArray) -> RouteBatch:
        pairs = zip(source.tolist(), target.tolist(), which.tolist(), strict=True)
        found = [self._chosen(*pair) for pair in pairs]
        forks = Ragged.of([[lower for lower, _ in forks] for _, forks in found])
        others = np.array([higher for _, forks in found for _, higher in forks], np.int64)
        return RouteBatch(source, target, Ragged.of([edges for edges, _ in found], np.int32), forks, others)

    def _chosen(self, source: int, target: int, which: int) -> _Chosen:
        key = (source, target, which)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            onward = self._onward(source, target)
            spreads = self.routing.spreads
            self._known[key] = (
                numbered(onward, source, target, which) if spreads else lowest(onward, source, target)
            )  # fmt: skip
        return self._known[key]

    def _onward(self, source: int, target: int) -> Onward:
        onward = None
        if not self.routing.pxn and self._apart(np.array([source]), np.array([target]))[0]:
            onward = self._outside.onward(source, target)
        if onward is None:
            onward = self._network.onward(source, target)
        if onward is None:
            names = self.system.node_names
            raise InputError(
                f"system {self.system.name!r}: no links lead from {names[source]!r} to {names[target]!r}: add a link"
            )
        return onward

    def _apart(self, source: NDArray, target: NDArray) -> NDArray[np.int64]:
        """1 where the nodes are devices of different servers and that makes a difference, else 0."""
        if self.routing.pxn:
            return np.zeros(len(source), np.int64)
        devices = (source < self.system.devices) & (target < self.system.devices)
        server = np.append(self.system.device_server, -1)
        ends = (server[np.where(devices, nodes, -1)] for nodes in (source, target))
        return np.not_equal(*ends).astype(np.int64)

    def _with_given(self, source: NDArray, target: NDArray, found: Ragged) -> Ragged:
        """Routes, replaced by those that the routing lays down."""
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        laid = {row: pair for row, pair in enumerate(pairs) if pair in self._given}
        rows = np.arange(len(found))
        rows[list(laid)] = len(found) + np.arange(len(laid))
        return Ragged.stacked([found, Ragged.of([self._given[pair] for pair in laid.values()], np.int32)]).take(rows)

    @cached_property
    def _levels(self) -> list[SystemDecomposition]:
        return levels(self.system, self.system.edge_tier)

    @cached_property
    def _shortcuts(self) -> list[Shortcut]:
        """Ways to find the routes of some pairs together: rows of these pairs, and the walks between them."""
        from triosim.network.scale_up_routes import ScaleUpRoutes

        hops = ScaleUpRoutes.of(self.system)
        return [DirectLinks(self.system).walks, *([hops.walks] if hops else [])]

    @cached_property
    def _outside(self) -> RouteSearch:
        """The network without what joins the devices of a server."""
        return RouteSearch(self.system, without=Tier.SCALE_UP)

    def wires(self, pairs: Iterable[tuple[int, int]]) -> EngineNetwork:
        """The network for transfers between these pairs of nodes: links are the edges of the System, route i is that
        of pair i.

        Raises:
            InputError: no links lead from one to the other, or a link has a bandwidth that cannot be counted.
        """
        routes = self.routes(*_columns(pairs))
        return EngineNetwork(self.capacity, routes, self.latency(routes))

    def latency(self, routes: Ragged) -> NDArray[np.int64]:
        """Latency of each route in picoseconds: the sum over its links.

        Raises:
            InputError: it is too long to be counted.
        """
        own = self._latency[routes.values]
        if int(own.max(initial=0)) * int(routes.lengths().max(initial=0)) > MOST_TICKS:
            whole_ticks(
                np.bincount(routes.rows(), own.astype(np.float64), len(routes)).astype(float), "latency of a route"
            )
        sums = np.zeros(len(routes), np.int64)
        np.add.at(sums, routes.rows(), own)
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
        """Bandwidth of each edge in the unit of the engine, rounded down.

        Raises:
            InputError: a link has a bandwidth that cannot be counted.
        """
        system = self.system
        limited = np.isfinite(system.bandwidth)
        capacity = np.floor(np.where(limited, system.bandwidth, 1.0) * CAPACITY_PER_BYTE)
        for wrong, cure in (
            (capacity < 1, "the least is 1 B/s"),
            (capacity >= 2.0**63, "use inf for a link that never limits"),
        ):
            if wrong.any():
                edge = int(np.argmax(wrong))
                raise InputError(f"{self._link(edge)} has a bandwidth of {system.bandwidth[edge]:g} B/s: {cure}")
        return np.where(limited, capacity, UNLIMITED).astype(np.int64)

    def _link(self, edge: int) -> str:
        """What an edge is, for messages."""
        system = self.system
        ends = (system.node_names[node] for node in (system.edge_source[edge], system.edge_target[edge]))
        return "system {!r}: the link from {!r} to {!r}".format(system.name, *ends)


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.array(list(pairs), np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]
