"""Traffic: which ranks of a job can send to which, and over what: the routes, before any of them is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.engine.graph import Pattern
from triosim.hardware.system import System, Tier
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.rank_classes import Traffic, alike
from triosim.network.routes import Router
from triosim.schedule.program import COLLECTIVES, Op, Program


class RoutedCollective(NamedTuple):
    """A collective ready to be played.

    Attributes:
        pattern: who sends how much to whom, and what waits for what.
        order: which member of the group sits at each position of the pattern, shape ``(members,)``.
        delay: ticks from the arrival of the last member to the first transfer.
        places: for each position that is no member: the member whose server's switch it is.
        algorithm, protocol: their names, for people.
        source: where its costs are from, in words; ``""`` where it has none but the links'.
    """

    pattern: Pattern
    order: Sequence[int]
    delay: int = 0
    places: Sequence[int] = ()
    algorithm: str = ""
    protocol: str = ""
    source: str = ""


class CommunicationModel(Protocol):
    """How collectives and transfers are done, and what software adds to what the links take.

    Models that are equal and have the same hash give equal answers: what was found with the one is used for the other.
    """

    def collective(self, kind: str, devices: NDArray[np.int64], size: int, root: int) -> RoutedCollective:
        """How a collective is done.

        Args:
            kind: one of :data:`triosim.schedule.program.COLLECTIVES`.
            devices: of the members, in the order of the axis.
            size: bytes of the full buffer.
            root: member that has or gets the full buffer.
        """

    def transfer(self, source: int, target: int, size: int) -> int:
        """Ticks that software adds to one transfer from device to device."""


@dataclass(frozen=True)
class PatternRoutes:
    """What the collectives of a group have in common that use the same routes.

    Attributes:
        pattern: one of them.
        order, places: as of :class:`RoutedCollective`.
        routes: routes of each group, shape ``(groups, edges)``.
    """

    pattern: Pattern
    order: NDArray[np.int64]
    routes: NDArray[np.int64]


@dataclass(frozen=True)
class GroupClass:
    """Groups along one axis that lie alike on servers and whose members run the same programs.

    Attributes:
        axis: row of the names of the mesh's axes.
        number: of each group among all groups, shape ``(groups,)``.
        ranks: members of each group, shape ``(groups, members)``.
        scheduled: the distinct collectives, ascending by kind, bytes and root.
        row: for each of them its row in ``routed``.
        routed: the distinct ways to send.
    """

    axis: int
    number: NDArray[np.int64]
    ranks: NDArray[np.int64]
    scheduled: tuple[RoutedCollective, ...]
    row: tuple[int, ...]
    routed: tuple[PatternRoutes, ...]


@dataclass(frozen=True)
class Routes:
    """The routes of a job and where to find them.

    Attributes:
        traffic: the routes.
        latency: ticks that pass before a transfer on each route shares its links: latency, and what software adds to
            one that is no part of a collective, shape ``(routes,)``.
        sorts: the groups.
        groups: number of groups.
        sends: (program, peer stage, bytes) -> route of each of its ranks, shape ``(ranks of the program,)``.
        fetches: (program, row of its places, whether it is a STORE) -> the same.
        sources: where the costs of the collectives are from, in words, in the order in which they were first used.
    """

    traffic: Traffic
    latency: NDArray[np.int64]
    sorts: tuple[GroupClass, ...]
    sends: dict[tuple[int, int, int], NDArray[np.int64]]
    fetches: dict[tuple[int, int, bool], NDArray[np.int64]]
    sources: tuple[str, ...]


class ClassTraffic(NamedTuple):
    """All transfers of a rank class, however often: what routes depend on.

    Plain values, so that equal talks are equal keys.

    Attributes:
        stage: pipeline stage, for messages.
        ranks: of the class, int32, as bytes.
        along: row of the names of the mesh's axes along which it sends, -1 where it sends nothing.
        sends: stage that it sends to, and bytes; ascending.
        moves: row of ``places``, and whether it stores there instead of fetching; ascending.
        places: names that ``moves`` refers to.
        calls: for each axis the distinct (kind, bytes, root) of its collectives, ascending, shape ``(calls, 3)``,
            int64, as bytes.
    """

    stage: int
    ranks: bytes
    along: int
    sends: tuple[tuple[int, int], ...]
    moves: tuple[tuple[int, bool], ...]
    places: tuple[str, ...]
    calls: tuple[bytes, ...]

    @property
    def members(self) -> NDArray[np.int64]:
        """Ranks of the class."""
        return np.frombuffer(self.ranks, np.int32).astype(np.int64)

    def distinct(self, axis: int) -> NDArray[np.int64]:
        """The distinct collectives along an axis, shape ``(calls, 3)``."""
        return np.frombuffer(self.calls[axis], np.int64).reshape(-1, 3)


def talk(program: Program, axes: int) -> tuple[ClassTraffic, dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """What a program has to say along so many axes.

    Returns:
        the talk, and for each axis that it has collectives on: their rows, and what each calls among the distinct ones.
    """
    sends, moves = program.rows(Op.SEND), program.rows(Op.FETCH, Op.STORE)
    about, _ = distinct_rows(program.peer[sends], program.bytes[sends])
    moved, _ = distinct_rows(program.peer[moves], program.op[moves] == Op.STORE)
    collective = program.rows(Op.COLLECTIVE)
    axis = program.axis[collective]
    calls, order = [], {}
    for number in range(axes):
        rows = collective[axis == number]
        found, which = distinct_rows(program.what[rows], program.bytes[rows], program.root[rows])
        calls.append(found.tobytes())
        if len(rows):
            order[number] = (rows, which)
    said = ClassTraffic(
        stage=program.stage, ranks=np.ascontiguousarray(program.ranks, np.int32).tobytes(),
        along=int(program.axis[sends[0]]) if len(sends) else -1, sends=tuple(map(tuple, about.tolist())),
        moves=tuple((place, bool(stores)) for place, stores in moved.tolist()), places=program.places,
        calls=tuple(calls),
    )  # fmt: skip
    return said, order


def distinct_rows(*columns: NDArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows of columns of whole numbers, ascending, and for each row its number among them.

    Raises:
        OverflowError: the numbers of different values, multiplied, cannot be counted.
    """
    values = [distinct(column) for column in columns]  # few, as a rule: looking them up is faster than sorting rows
    if math.prod(max(len(own), 1) for own in values) > _MOST_CODES:
        raise OverflowError(f"{len(columns)} columns have too many different values: {[len(own) for own in values]}")
    code = np.zeros(len(columns[0]), np.int64)
    for own, column in zip(values, columns, strict=True):
        if len(own) > 1:
            code *= len(own)
            code += np.searchsorted(own, column)
    codes = distinct(code)
    row = np.searchsorted(codes, code) if len(codes) > 1 else np.zeros(len(code), np.int64)
    table: list[NDArray[np.int64]] = []
    for own in reversed(values):
        codes, digit = np.divmod(codes, max(len(own), 1))
        table.insert(0, own[digit].astype(np.int64))
    return np.stack(table, axis=1), row


_MOST_CODES = 2**62


def find_routes(
    talks: Sequence[ClassTraffic], assignment: DeviceAssignment, router: Router, means: CommunicationModel
) -> Routes:
    """All routes on which rank classes send.

    Raises:
        InputError: the system has no such place to fetch from, or no route.
    """
    return _Survey(talks, assignment, router, means).routes()


@dataclass
class _RouteColumns:
    """Columns of routes while they are collected; nodes are those of the system."""

    source: list[NDArray] = field(default_factory=list)
    target: list[NDArray] = field(default_factory=list)
    source_node: list[NDArray] = field(default_factory=list)
    target_node: list[NDArray] = field(default_factory=list)
    begun_by: list[NDArray] = field(default_factory=list)
    like: list[NDArray] = field(default_factory=list)
    added: list[NDArray] = field(default_factory=list)
    needs: list[Ragged] = field(default_factory=list)
    lag: list[NDArray] = field(default_factory=list)
    count: int = 0
    kinds: int = 0

    def add(
        self,
        ends: tuple[NDArray, NDArray],
        nodes: tuple[NDArray, NDArray],
        begun_by: NDArray,
        like: NDArray,
        added: NDArray | int = 0,
        needs: Ragged | None = None,
        lag: NDArray | None = None,
    ) -> NDArray[np.int64]:
        """Add routes to which software adds some ticks; ``like`` and ``needs`` count from 0.  Returns their numbers."""
        n = len(ends[0])
        numbers = np.arange(self.count, self.count + n)
        for column, value in zip(
            (self.source, self.target, self.source_node, self.target_node), (*ends, *nodes), strict=True
        ):
            column.append(np.broadcast_to(value, n))
        self.begun_by.append(begun_by)
        self.like.append(like + self.kinds)
        self.kinds += int(like.max(initial=-1)) + 1
        self.added.append(np.broadcast_to(np.asarray(added, np.int64), n))
        needs = needs or Ragged.empty(n)
        self.needs.append(Ragged(needs.values + self.count, needs.offsets))
        self.lag.append(np.zeros(len(needs.values), np.int64) if lag is None else lag)
        self.count += n
        return numbers


class _Survey:
    """Goes through what the classes say and notes every route once."""

    def __init__(
        self, talks: Sequence[ClassTraffic], assignment: DeviceAssignment, router: Router, means: CommunicationModel
    ) -> None:
        self.talks, self.assignment, self.router, self.means = talks, assignment, router, means
        self.system = router.system
        self.ranks = [said.members for said in talks]
        self.class_of = classes(self.ranks, assignment.ranks)
        self.device = assignment.devices.astype(np.int64)
        self.endpoints = assignment.ranks
        self.others: list[NDArray] = []  # what kind of endpoint those are that are no ranks
        self.table = _RouteColumns()
        self.members: list[NDArray] = []
        self._known: dict[tuple, RoutedCollective] = {}
        self._transfers: dict[tuple, int] = {}

    def routes(self) -> Routes:
        sends = self._sends()
        fetches = self._fetches()
        sorts = tuple(sort for axis in range(len(self.assignment.mesh.names)) for sort in self._sorts(axis))
        table, system, router = self.table, self.system, self.router
        none = np.zeros(0, np.int64)
        routes = router.routes(np.concatenate([none, *table.source_node]), np.concatenate([none, *table.target_node]))
        rank_like = self.class_of.astype(np.int64)
        traffic = Traffic(
            endpoint_like=np.concatenate([rank_like, *self.others]),
            source=np.concatenate([none, *table.source]),
            target=np.concatenate([none, *table.target]),
            begun_by=np.concatenate([none, *table.begun_by]),
            way_like=np.concatenate([none, *table.like]),
            needs=Ragged.stacked([Ragged.empty(0), *table.needs]),
            lag=np.concatenate([none, *table.lag]),
            routes=routes,
            link_like=alike(system.bandwidth, system.latency, system.overhead, system.edge_tier),
            members=Ragged.stacked([Ragged.empty(0), *(Ragged.even(ranks) for ranks in self.members)]),
        )
        latency = router.latency(routes) + np.concatenate([none, *table.added])
        sources = tuple(dict.fromkeys(one.source for one in self._known.values() if one.source))
        return Routes(traffic, latency, sorts, sends, fetches, sources)

    # --- from rank to rank --------------------------------------------------------------------------------------------

    def _sends(self) -> dict[tuple[int, int, int], NDArray[np.int64]]:
        mesh, found = self.assignment.mesh, {}
        for number, said in enumerate(self.talks):
            ranks = self.ranks[number]
            for stage, size in said.sends:
                peers = mesh.moved(ranks, mesh.names[said.along], stage)
                nodes = (self.device[ranks], self.device[peers])
                added = self._added(*nodes, size)
                found[number, stage, size] = self.table.add((ranks, peers), nodes, ranks, _different(added), added)
        return found

    def _added(self, source: NDArray[np.int64], target: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """What software adds to transfers between devices: alike within servers, and alike between them."""
        system, models = self.system, len(self.system.models)
        crosses = system.device_server[source] != system.device_server[target]
        kind = (system.device_model[source].astype(np.int64) * models + system.device_model[target]) * 2 + crosses
        kinds, first, sort = np.unique(kind, return_index=True, return_inverse=True)
        ticks = []
        for about, at in zip(kinds.tolist(), first.tolist(), strict=True):
            key = (about, size)
            if key not in self._transfers:
                self._transfers[key] = self.means.transfer(int(source[at]), int(target[at]), size)
            ticks.append(self._transfers[key])
        return np.array(ticks, np.int64)[sort.reshape(-1)]

    def _fetches(self) -> dict[tuple[int, int, bool], NDArray[np.int64]]:
        """Ways from places to devices, and back."""
        found, endpoint = {}, {}
        for number, said in enumerate(self.talks):
            ranks = self.ranks[number]
            for place, stores in said.moves:
                nodes = self._place(said.places[place], self.device[ranks])
                for node in distinct(nodes).tolist():
                    if node not in endpoint:
                        endpoint[node] = int(self._endpoints(1)[0])
                there = np.array([endpoint[node] for node in nodes.tolist()], np.int64)
                ends, endpoints = (nodes, self.device[ranks]), (there, ranks)
                if stores:
                    ends, endpoints = ends[::-1], endpoints[::-1]
                added = self.router.overhead(self.router.routes(*ends))
                found[number, place, stores] = self.table.add(endpoints, ends, ranks, _different(added), added)
        return found

    def _place(self, name: str, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The nodes of a place that values start in, as seen from each of these devices."""
        system = self.system
        if name == "host":
            nodes = system.server_host[system.device_server[devices]].astype(np.int64)
            if (nodes < 0).any():
                raise InputError(
                    f"system {system.name!r} has no host memory to fetch from: give --host-link, for example 32GB/s"
                )
            return nodes
        if name == "nvme":
            nodes = system.server_nvme[system.device_server[devices]].astype(np.int64)
            if (nodes < 0).any():
                raise InputError(
                    f"system {system.name!r} has no NVMe drives: take a --system whose servers have some, or describe "
                    "them in its file ([nvme])"
                )
            return nodes
        if name == "pool":
            if system.pool < 0:
                raise InputError(
                    f"system {system.name!r} has no memory pool to fetch from: give --pool-link, for example 100GB/s"
                )
            return np.full(len(devices), system.pool)
        node = int(name.removeprefix("device:"))
        if node >= system.devices:
            raise InputError(f"system {system.name!r} has no device {node}: its devices are 0 to {system.devices - 1}")
        return np.full(len(devices), node)

    def _endpoints(self, count: int) -> NDArray[np.int64]:
        """Numbers for endpoints that are no ranks."""
        self.others.append(np.full(count, -1))
        self.endpoints += count
        return np.arange(self.endpoints - count, self.endpoints)

    @cached_property
    def switches(self) -> NDArray[np.int64]:
        """The lowest switch that joins the devices of each server."""
        return _switches(self.system)

    # --- within groups ------------------------------------------------------------------------------------------------

    def _sorts(self, axis: int) -> list[GroupClass]:
        """The groups along an axis that have collectives, sorted by what they are like."""
        calls = [said.distinct(axis) for said in self.talks]
        if not any(len(table) for table in calls):
            return []
        groups = self.assignment.mesh.table(self.assignment.mesh.names[axis])
        classes_ = self.class_of[groups].astype(np.int64)
        busy = np.array([len(table) > 0 for table in calls])
        groups, classes_ = groups[busy[classes_].any(axis=1)], classes_[busy[classes_].any(axis=1)]
        devices = self.device[groups]
        like = np.concatenate(
            [classes_, _relabelled(self.system.device_server[devices]), self.system.device_model[devices]], axis=1
        )
        rows = np.ascontiguousarray(like, np.int64)
        whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]  # a row as one value
        _, first, sort = np.unique(whole, return_index=True, return_inverse=True)
        return [
            self._sort(axis, groups[sort == sort[at]], [calls[c] for c in distinct(classes_[at]).tolist()])
            for at in np.sort(first).tolist()
        ]

    def _sort(self, axis: int, ranks: NDArray[np.int64], calls: list[NDArray[np.int64]]) -> GroupClass:
        """Groups that are alike.

        The collectives of a group along one axis are matched by their order, as communicators do: the k-th that one
        member issues is the k-th of every other.
        """
        if any(not np.array_equal(table, calls[0]) for table in calls):
            raise AssertionError(
                f"members of {self.assignment.mesh.names[axis]} group {ranks[0].tolist()} issue different collectives"
            )
        scheduled = tuple(
            self._scheduled(self.device[ranks[0]], COLLECTIVES[what], size, root)
            for what, size, root in calls[0].tolist()
        )
        number = sum(len(r) for r in self.members) + np.arange(len(ranks))
        self.members.append(ranks)
        keys = [_key(s) for s in scheduled]
        routed = {}
        for key in keys:
            if key not in routed:
                alike = [s for s, k in zip(scheduled, keys, strict=True) if k == key]
                routed[key] = self._pattern_routes(alike, ranks, number)
        rows = {key: row for row, key in enumerate(routed)}
        return GroupClass(axis, number, ranks, scheduled, tuple(rows[key] for key in keys), tuple(routed.values()))

    def _scheduled(self, devices: NDArray[np.int64], kind: str, size: int, root: int) -> RoutedCollective:
        system = self.system
        servers = _relabelled(system.device_server[devices][None, :]).tobytes()
        key = (servers, system.device_model[devices].tobytes(), kind, size, root)
        if key not in self._known:
            self._known[key] = self.means.collective(kind, devices, size, root)
        return self._known[key]

    def _pattern_routes(
        self, scheduled: list[RoutedCollective], ranks: NDArray[np.int64], number: NDArray[np.int64]
    ) -> PatternRoutes:
        """The routes of collectives that differ in sizes only, of groups of these ranks and numbers."""
        one = scheduled[0]
        pattern, order = one.pattern, np.array(one.order, np.int64)
        groups, edges = len(ranks), len(pattern)
        endpoints, nodes = ranks[:, order], self.device[ranks[:, order]]
        if one.places:
            new = self._endpoints(groups * len(one.places)).reshape(groups, -1)
            switches = self.switches[self.system.device_server[self.device[ranks[:, list(one.places)]]]]
            endpoints, nodes = np.concatenate([endpoints, new], axis=1), np.concatenate([nodes, switches], axis=1)
        facts = [column for s in scheduled for column in (s.pattern.bytes, s.pattern.count, s.pattern.pause)]
        like = _different_rows(facts) if edges else np.zeros(0, np.int64)
        shift = np.repeat(np.arange(groups) * edges, len(pattern.needs.values))
        lengths = np.tile(pattern.needs.lengths(), groups)
        needs = Ragged(
            np.tile(pattern.needs.values.astype(np.int64), groups) + shift, np.concatenate([[0], np.cumsum(lengths)])
        )
        ends = (endpoints[:, pattern.source].reshape(-1), endpoints[:, pattern.target].reshape(-1))
        at = (nodes[:, pattern.source].reshape(-1), nodes[:, pattern.target].reshape(-1))
        numbers = self.table.add(
            ends, at, np.repeat(-1 - number, edges), np.tile(like, groups), needs=needs,
            lag=np.tile(pattern.lag.astype(np.int64), groups),
        )  # fmt: skip
        return PatternRoutes(pattern, order, numbers.reshape(groups, edges))


def _different(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers from 0 for different values."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _different_rows(columns: Sequence[NDArray]) -> NDArray[np.int64]:
    """Numbers from 0 for different rows of columns, in the order of their values."""
    code, codes = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        own = distinct(column)  # few, as a rule: looking them up is faster than sorting rows
        if codes * len(own) > _MOST_CODES:
            code = _different(code)
            codes = len(code)
        if len(own) > 1:
            code = code * len(own) + np.searchsorted(own, column)
            codes *= len(own)
    return _different(code)


def classes(members: Sequence[NDArray[np.int64]], ranks: int) -> NDArray[np.int32]:
    """Class of each rank, of so many, from the ranks of each class."""
    found = np.full(ranks, -1, np.int32)
    for number, own in enumerate(members):
        found[own] = number
    return found


def _key(scheduled: RoutedCollective) -> tuple:
    """Equal for collectives that use the same routes alike."""
    p = scheduled.pattern
    columns = (p.source, p.target, p.needs.values, p.needs.offsets, p.lag)
    return (tuple(scheduled.order), tuple(scheduled.places), *(column.tobytes() for column in columns))


def _relabelled(rows: NDArray) -> NDArray[np.int64]:
    """Each row with its numbers replaced by the place at which they first stand in it."""
    return (rows[:, :, None] == rows[:, None, :]).argmax(axis=2) if rows.shape[1] <= 64 else _relabelled_long(rows)


def _relabelled_long(rows: NDArray) -> NDArray[np.int64]:
    """As :func:`_relabelled`, in memory that does not grow with the square of the length."""
    n, m = rows.shape
    flat = (np.arange(n)[:, None] * (int(rows.max(initial=0)) + 1) + rows).reshape(-1)
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    return first[inverse].reshape(n, m) - np.arange(n)[:, None] * m


def _switches(system: System) -> NDArray[np.int64]:
    """For each server the lowest switch that joins its devices, -1 where there is none."""
    found = np.full(system.servers, -1, np.int64)
    edges = (system.edge_tier == Tier.SCALE_UP) & (system.edge_source < system.devices)
    edges &= system.edge_target >= system.devices
    server = system.device_server[system.edge_source[edges]]
    order = np.argsort(system.edge_target[edges], kind="stable")[::-1]
    found[server[order]] = system.edge_target[edges][order]
    return found
