"""From programs of rank classes to one graph of tasks for the engine: who is where, and what meets what.

Ranks that nothing tells apart are one cell (:mod:`triosim.network.rank_classes`) and are put into the graph once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.limits import check_tasks
from triosim.core.units import picoseconds
from triosim.engine.graph import Collective, EngineNetwork, Graph, GraphRun, Pattern, Task
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.rank_classes import RankClasses, refine, separate, weights
from triosim.network.routes import Router
from triosim.network.traffic import (
    ClassTraffic,
    CommunicationModel,
    GroupClass,
    PatternRoutes,
    Routes,
    classes,
    find_routes,
    talk,
)
from triosim.partition.mesh import Mesh, RankDigit
from triosim.schedule.program import STREAMS, Op, Program

T = TypeVar("T", bound=np.generic)

_TASKS = np.zeros(len(Op), np.int8)
_TASKS[[Op.COMPUTE, Op.ISSUE]] = Task.COMPUTE
_TASKS[Op.COLLECTIVE], _TASKS[Op.RECEIVE] = Task.COLLECTIVE, Task.JOIN
_TASKS[[Op.SEND, Op.FETCH, Op.STORE]] = Task.TRANSFER


@dataclass(frozen=True)
class LoweredJob:
    """A job as a graph of the engine, and how to find its parts again.

    Attributes:
        graph: the tasks; those of one cell are contiguous, in program order.
        wires: the network; its links are cells of links of the system.
        first: first task of each cell, shape ``(cells + 1,)``.
        program: program of each cell.
        ranks: ranks of each cell, lowest first; cells are in the order of their lowest ranks.
        cell: cell of each rank.
        link: row in ``wires`` of each link of the system, -1 for one that nothing uses.
        groups: ranks of one communication group of each cell of groups.
        group_first: first row in ``graph.collectives`` of each of these, ascending.
        how: names of algorithm and protocol of each row of ``graph.collectives``.
        sources: where the costs of the collectives are from, in words.
        gaps: for each program the ticks at the end of each row in which its stream waits before the next, the work
            itself being done.
    """

    graph: Graph
    wires: EngineNetwork
    first: NDArray[np.int64]
    program: NDArray[np.int32]
    ranks: Ragged
    cell: NDArray[np.int64]
    link: NDArray[np.int64]
    groups: Ragged
    group_first: NDArray[np.int64]
    how: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]
    gaps: tuple[NDArray[np.int64], ...]

    def worked(self, played: GraphRun) -> GraphRun:
        """When the work of each task was done, the gap after it left out."""
        if not any(gaps.any() for gaps in self.gaps):
            return played
        finish = played.finish.copy()
        for cell, number in enumerate(self.program.tolist()):
            finish[self.first[cell] : self.first[cell + 1]] -= self.gaps[number]
        return replace(played, finish=finish)

    def group_of(self, tasks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows in ``groups`` of tasks of collectives."""
        called = self.graph.instances[self.graph.what[tasks]]
        return np.searchsorted(self.group_first, called, side="right") - 1

    def by_cell(self, columns: Sequence[NDArray[T]]) -> list[NDArray[T]]:
        """For each cell the column of its program, the very object."""
        return [columns[number] for number in self.program.tolist()]

    def of_rows(self, columns: Sequence[NDArray[T]]) -> NDArray[T]:
        """A column of the tasks from that of the rows of each program."""
        return np.concatenate(self.by_cell(columns))

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.program)

    @property
    def count(self) -> NDArray[np.int64]:
        """Ranks in each cell."""
        return self.ranks.lengths()

    @property
    def lowest(self) -> NDArray[np.int64]:
        """Lowest rank of each cell."""
        return self.ranks.values[self.ranks.offsets[:-1]]


def lower(
    programs: Sequence[Program],
    assignment: DeviceAssignment,
    router: Router,
    means: CommunicationModel,
    fold: bool = True,
) -> LoweredJob:
    """Instantiate the programs on their devices.

    Args:
        programs: one per rank class; together they name every rank once.
        assignment: device of each rank.
        router: finds routes on the machine.
        means: says how collectives and transfers are done.
        fold: put ranks that nothing tells apart into the graph once; else every rank.  The network model must know of
            weights.

    Raises:
        InputError: the system has no such place to fetch from, or no route.
    """
    meeting, orders = meetings(programs, assignment, router, means, fold)
    return instantiate(programs, assignment, meeting, orders)


Calls = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""For each axis that a program has collectives on: their rows, and what each calls among the distinct ones."""


def meetings(
    programs: Sequence[Program],
    assignment: DeviceAssignment,
    router: Router,
    means: CommunicationModel,
    fold: bool = True,
) -> tuple[JobMeetings, list[Calls]]:
    """Who meets whom in a job, and what each program calls.  As :func:`lower`."""
    mesh = assignment.mesh
    said = [talk(program, len(mesh.names)) for program in programs]
    axes = (mesh.axes, mesh.derived)
    meeting = _meeting(tuple(one for one, _ in said), *axes, assignment.devices.tobytes(), router, means, fold)
    return meeting, [order for _, order in said]


def instantiate(
    programs: Sequence[Program], assignment: DeviceAssignment, meeting: JobMeetings, orders: Sequence[Calls]
) -> LoweredJob:
    """The graph of programs whose ranks meet so: a copy of its program for each cell.

    Args:
        programs, assignment: as of :func:`lower`.
        meeting, orders: as :func:`meetings` finds them.  A program may be part of the one that it was found for.
    """
    return _Lowering(programs, assignment, meeting, orders).run()


class CellEndpoint(NamedTuple):
    """A cell of ranks in the collectives of a cell of groups.

    Attributes:
        cell, place: which, and its position in the patterns.
        axis: row of the names of the mesh's axes.
        first: of the group's collectives, in the order of what its members call.
        group: row of the groups.
    """

    cell: int
    place: int
    axis: int
    first: int
    group: int


@dataclass(frozen=True)
class JobMeetings:
    """Who meets whom over what in a job, whatever it computes and however often they meet.

    Attributes:
        sends: (program, peer stage, bytes) -> route of each of its cells.
        fetches: (program, row of its places, whether it is a STORE) -> the same.
        cell, link, wires, ranks, program, groups, how, sources: as of :class:`LoweredJob`.
        collectives: of all cells of groups.
        group_first: as of :class:`LoweredJob`.
        endpoints: who takes part in them, group by group.
    """

    sends: dict[tuple[int, int, int], NDArray[np.int64]]
    fetches: dict[tuple[int, int, bool], NDArray[np.int64]]
    cell: NDArray[np.int64]
    link: NDArray[np.int64]
    sources: tuple[str, ...]
    wires: EngineNetwork
    ranks: Ragged
    program: NDArray[np.int32]
    collectives: tuple[Collective, ...]
    groups: Ragged
    group_first: NDArray[np.int64]
    how: tuple[tuple[str, str], ...]
    endpoints: tuple[tuple[CellEndpoint, ...], ...]

    @property
    def lowest(self) -> NDArray[np.int64]:
        """Lowest rank of each cell."""
        lowest: NDArray[np.int64] = self.ranks.values[self.ranks.offsets[:-1]]
        return lowest


@kept(8)
def _meeting(
    talks: tuple[ClassTraffic, ...],
    axes: tuple[tuple[str, int], ...],
    derived: tuple[tuple[str, tuple[RankDigit, ...]], ...],
    devices: bytes,
    router: Router,
    means: CommunicationModel,
    fold: bool,
) -> JobMeetings:
    """What :func:`lower` finds of classes that say this.

    Args:
        talks: what each class says.
        axes, derived: of the mesh.
        devices: device of each rank, int32.
        router, means, fold: as of :func:`lower`.
    """
    assignment = DeviceAssignment(Mesh(axes, derived=derived), np.frombuffer(devices, np.int32))
    found = find_routes(talks, assignment, router, means)
    cells = refine(found.traffic) if fold else separate(found.traffic)
    cell = cells.endpoint[: assignment.ranks]
    order = np.argsort(cell, kind="stable")
    ranks = Ragged(order, np.concatenate([[0], np.cumsum(np.bincount(cell))]))
    members = [said.members for said in talks]
    lowest = order[ranks.offsets[:-1]]
    program = classes(members, assignment.ranks)[lowest]
    folding = _Folding(found, cells, cell)
    for sort in found.sorts:
        folding.meet(sort)

    def routes(number: int, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """One for each cell of a program, from the routes of its ranks."""
        by_rank = np.argsort(members[number])
        mine = by_rank[np.searchsorted(members[number][by_rank], lowest[program == number])]
        return cells.route[own[mine]]

    return JobMeetings(
        {key: routes(key[0], own) for key, own in found.sends.items()},
        {key: routes(key[0], own) for key, own in found.fetches.items()},
        cell.copy(), cells.link, found.sources, _wires(router, found, cells, fold), ranks, program,
        tuple(folding.collectives), Ragged.of([g.tolist() for g in folding.groups], np.int32),
        np.array([group[0].first for group in folding.endpoints], np.int64), tuple(folding.how),
        tuple(folding.endpoints),
    )  # fmt: skip


def _wires(router: Router, found: Routes, cells: RankClasses, fold: bool) -> EngineNetwork:
    """The network of the cells."""
    system, capacity = router.system, router.capacity
    ends = np.stack([system.edge_source, system.edge_target], axis=1).astype(np.int32)
    if not fold:
        return EngineNetwork(capacity, found.traffic.routes, found.latency, ends=ends)
    routes, weight = weights(found.traffic, cells)
    used = np.flatnonzero(cells.link >= 0)
    link = used[_firsts(cells.link[used])]
    return EngineNetwork(capacity[link], routes, found.latency[_firsts(cells.route)], weight, ends[link])


class _Folding:
    """Collects the collectives of cells of groups."""

    def __init__(self, found: Routes, cells: RankClasses, cell: NDArray[np.int64]) -> None:
        self.routes, self.cells, self.cell = found, cells, cell
        self.collectives: list[Collective] = []
        self.how: list[tuple[str, str]] = []
        self.groups: list[NDArray] = []
        self.endpoints: list[tuple[CellEndpoint, ...]] = []

    def meet(self, sort: GroupClass) -> None:
        """The collectives of groups that lie alike, once for each cell of groups."""
        patterns: dict[tuple, Pattern] = {}
        for at in _firsts(self.cells.group[sort.number]).tolist():
            cells = _in_order(self.cell[sort.ranks[at]])
            folds = [self._fold(one, one.routes[at], cells) for one in sort.routed]
            begin = len(self.collectives)
            for call, (scheduled, row) in enumerate(zip(sort.scheduled, sort.row, strict=True)):
                key = (call, folds[row].key)
                if key not in patterns:
                    patterns[key] = folds[row].pattern(scheduled.pattern)
                self.collectives.append(Collective(patterns[key], folds[row].route, scheduled.delay))
                self.how.append((scheduled.algorithm, scheduled.protocol))
            here = (sort.axis, begin, len(self.groups))
            self.endpoints.append(tuple(CellEndpoint(cell, place, *here) for place, cell in enumerate(cells.tolist())))
            self.groups.append(sort.ranks[at])

    def _fold(self, one: PatternRoutes, own: NDArray[np.int64], cells: NDArray[np.int64]) -> _Fold:
        """The routes of one group as those of its cells."""
        traffic = self.routes.traffic
        route = self.cells.route[own]
        edge = _firsts(route)
        ends = self.cells.endpoint[np.stack([traffic.source[own[edge]], traffic.target[own[edge]]])]
        others = _in_order(ends[~np.isin(ends, cells)])
        positions = np.concatenate([cells, others])
        sorter = np.argsort(positions)
        place = sorter[np.searchsorted(positions[sorter], ends)]
        each = route[edge].astype(np.int32)
        return _Fold(len(cells), len(positions), edge, _numbers(route), place[0], place[1], each)


class _Lowering:
    """Writes the graph: a copy of its program for each cell."""

    def __init__(
        self,
        programs: Sequence[Program],
        assignment: DeviceAssignment,
        meeting: JobMeetings,
        orders: Sequence[Calls],
    ) -> None:
        self.programs, self.assignment = programs, assignment
        self.meeting, self.orders, self.cell = meeting, orders, meeting.cell
        self.class_of = classes([p.ranks.astype(np.int64) for p in programs], assignment.ranks)
        self.lowest, self.program = meeting.lowest, meeting.program
        self.lengths = np.array([len(p) for p in programs], np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.lengths[self.program])])
        check_tasks(
            int(self.first[-1]), f"{len(self.program):,} ranks that are played one by one", "use fewer devices",
            int(self.lengths.sum()),
        )  # fmt: skip
        self.within = [np.flatnonzero(self.program == number) for number in range(len(programs))]  # cells of a program
        self.instances: list[NDArray] = []
        self.instances_made = 0

    def run(self) -> LoweredJob:
        n = int(self.first[-1])
        self.what, self.member = np.full(n, -1, np.int32), np.zeros(n, np.int32)
        senders = self._transfers()
        for endpoints in self.meeting.endpoints:
            self._meet(endpoints)
        kind, stream = np.empty(n, np.int8), np.empty(n, np.int32)
        amount, gaps = np.empty(n, np.int64), tuple(map(_gaps, self.programs))
        for program, cells, gap in zip(self.programs, self.within, gaps, strict=True):
            kinds, amounts = _TASKS[program.op], _amounts(program) + gap
            streams = program.stream.astype(np.int32)
            unstreamed = np.flatnonzero(streams < 0)
            for cell in cells.tolist():
                own = slice(int(self.first[cell]), int(self.first[cell + 1]))
                kind[own], amount[own] = kinds, amounts
                np.add(streams, cell * len(STREAMS), out=stream[own])
                stream[own][unstreamed] = -1
        graph = Graph(
            kind=kind,
            stream=stream,
            amount=amount,
            what=self.what,
            member=self.member,
            before=self._before(senders),
            streams=len(self.program) * len(STREAMS),
            collectives=self.meeting.collectives,
            instances=np.concatenate([np.zeros(0, np.int32), *self.instances]).astype(np.int32),
        )
        made = self.meeting
        return LoweredJob(
            graph, made.wires, self.first, self.program, made.ranks, self.cell, made.link, made.groups,
            made.group_first, made.how, made.sources, gaps,
        )  # fmt: skip

    # --- transfers ----------------------------------------------------------------------------------------------------

    def _tasks(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tasks of these rows of a program in each of its cells, shape ``(cells, rows)``."""
        return self.first[self.within[number]][:, None] + rows

    def _transfers(self) -> list[NDArray[np.int64]]:
        """Routes of what is sent and fetched; returns for each program the tasks that send what its cells RECEIVE,
        shape ``(cells, receives)``."""
        for (number, stage, size), own in self.meeting.sends.items():
            program = self.programs[number]
            rows = program.rows(Op.SEND)
            rows = rows[(program.peer[rows] == stage) & (program.bytes[rows] == size)]
            self.what[self._tasks(number, rows)] = own[:, None]
        for (number, place, stores), own in self.meeting.fetches.items():
            program = self.programs[number]
            rows = program.rows(Op.STORE if stores else Op.FETCH)
            rows = rows[program.peer[rows] == place]
            self.what[self._tasks(number, rows)] = own[:, None]
        mesh, found = self.assignment.mesh, []
        for number, program in enumerate(self.programs):
            receives = program.rows(Op.RECEIVE)
            peer, sender = program.peer[receives], np.full((len(self.within[number]), len(receives)), -1, np.int64)
            for stage in distinct(peer).tolist():
                at = np.flatnonzero(peer == stage)
                rows = receives[at]
                along = mesh.names[program.axis[rows[0]]]
                ranks = mesh.moved(self.lowest[self.within[number]], along, stage)
                for other in distinct(self.class_of[ranks]).tolist():
                    mine = np.flatnonzero(self.class_of[ranks] == other)
                    sending = self._matching(other, program.stage, program.tag[rows])
                    sender[np.ix_(mine, at)] = self.first[self.cell[ranks[mine]]][:, None] + sending
            found.append(sender)
        return found

    def _matching(self, number: int, stage: int, tags: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of a program that send to a stage under these tags."""
        program = self.programs[number]
        rows = program.rows(Op.SEND)
        rows = rows[program.peer[rows] == stage]
        order = np.argsort(program.tag[rows], kind="stable")
        return rows[order[np.searchsorted(program.tag[rows][order], tags)]]

    def _before(self, senders: Sequence[NDArray[np.int64]]) -> Ragged:
        """Predecessors within the cell, and of an arrival its sending."""
        sizes = [len(p.before.values) + len(p.rows(Op.RECEIVE)) for p in self.programs]
        begin = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64)[self.program])])
        offsets, values = np.empty(int(self.first[-1]) + 1, np.int64), np.empty(int(begin[-1]), np.int32)
        offsets[-1] = begin[-1]
        for number, (program, sender) in enumerate(zip(self.programs, senders, strict=True)):
            receives, own, ends = program.rows(Op.RECEIVE), program.before.values, program.before.offsets
            if len(receives):
                at = ends[receives + 1]  # what a RECEIVE waits for comes behind what it waits for in its cell
                own = np.insert(own, at, 0)
                more = np.zeros(len(program) + 1, np.int64)
                more[receives + 1] = 1
                ends, at = ends + np.cumsum(more), at + np.arange(len(receives))
            for place, cell in enumerate(self.within[number].tolist()):
                first, start = int(self.first[cell]), int(begin[cell])
                np.add(ends[:-1], start, out=offsets[first : first + len(program)])
                np.add(own, first, out=values[start : start + len(own)], casting="unsafe")
                if len(receives):
                    values[start + at] = sender[place]
        return Ragged(values, offsets)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, endpoints: Sequence[CellEndpoint]) -> None:
        """What the collectives of a cell of groups are, call by call.

        The collectives of a group along one axis are matched by their order, as communicators do: the k-th that one
        member issues is the k-th of every other.
        """
        axis = endpoints[0].axis
        _, calls = self.orders[int(self.program[endpoints[0].cell])][axis]
        instance = self.instances_made + np.arange(len(calls))
        self.instances_made += len(calls)
        self.instances.append(endpoints[0].first + calls)
        for endpoint in endpoints:
            rows, own = self.orders[int(self.program[endpoint.cell])][axis]
            if own is not calls and not np.array_equal(own, calls):
                name, group = self.assignment.mesh.names[axis], self.meeting.groups[endpoint.group].tolist()
                raise AssertionError(f"members of {name} group {group} issue different collectives")
            tasks = self.first[endpoint.cell] + rows
            self.what[tasks], self.member[tasks] = instance, endpoint.place


@dataclass(frozen=True)
class _Fold:
    """How the edges of a pattern become those between cells.

    Attributes:
        members, places: positions that are cells of ranks, and all.
        edge: the first edge of each cell of routes.
        into: for each edge its new number.
        source, target: positions of the new edges.
        route: of each new edge, a cell of routes.
    """

    members: int
    places: int
    edge: NDArray[np.int64]
    into: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    route: NDArray[np.int32]

    @property
    def key(self) -> tuple:
        """Equal for folds that make the same of a pattern."""
        columns = (self.edge, self.into, self.source, self.target)
        return (self.members, self.places, *(column.tobytes() for column in columns))

    def pattern(self, whole: Pattern) -> Pattern:
        """What one of each cell does in a pattern."""
        edge = self.edge
        needs = whole.needs.take(edge)
        return Pattern(
            members=self.members,
            source=self.source.astype(np.int32),
            target=self.target.astype(np.int32),
            bytes=whole.bytes[edge],
            count=whole.count[edge],
            needs=Ragged(self.into[needs.values].astype(np.int32), needs.offsets),
            lag=Ragged(whole.lag, whole.needs.offsets).take(edge).values,
            pause=whole.pause[edge],
            places=self.places,
        )


def _amounts(program: Program) -> NDArray[np.int64]:
    """Ticks of what computes, bytes of what is sent."""
    amounts = picoseconds(program.seconds, lambda row: f"what instruction {row} of stage {program.stage} takes")
    amounts[program.rows(Op.COLLECTIVE, Op.RECEIVE)] = 0
    moves = program.rows(Op.SEND, Op.FETCH, Op.STORE)
    amounts[moves] = program.bytes[moves]
    return amounts


def _gaps(program: Program) -> NDArray[np.int64]:
    """Ticks that the stream of what computes waits after each row before it starts the next."""
    if not program.gap_s:
        return np.zeros(len(program), np.int64)
    ticks = picoseconds(program.gap_s, "the gap between two kernels")
    return np.where((program.op == Op.COMPUTE) & (program.seconds > 0), ticks, 0).astype(np.int64)


def _firsts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each number stands first, in that order."""
    return np.sort(np.unique(numbers, return_index=True)[1])


def _in_order(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct numbers in the order in which they first appear."""
    return numbers[_firsts(numbers)]


def _numbers(of: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers replaced by 0, 1, ... in the order in which they first appear."""
    _, first, inverse = np.unique(of, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
