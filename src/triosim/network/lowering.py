"""From programs of rank classes to one graph of tasks for the engine: who is where, and what meets what.

Ranks that nothing tells apart are one cell (:mod:`triosim.network.cells`) and are put into the graph once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.limits import check_tasks
from triosim.core.units import picoseconds
from triosim.engine.graph import Collective, Graph, Pattern, Played, Task, Wires
from triosim.network.cells import Cells, refine, separate, weights
from triosim.network.placement import Placement
from triosim.network.routes import Router
from triosim.network.traffic import Means, Shape, Sort, Talk, Ways, classes, talk, ways
from triosim.partition.mesh import Digit, Mesh
from triosim.schedule.program import STREAMS, Op, Program

_TASKS = np.zeros(len(Op), np.int8)
_TASKS[[Op.COMPUTE, Op.ISSUE]] = Task.COMPUTE
_TASKS[Op.COLLECTIVE], _TASKS[Op.RECEIVE] = Task.COLLECTIVE, Task.JOIN
_TASKS[[Op.SEND, Op.FETCH, Op.STORE]] = Task.TRANSFER


@dataclass(frozen=True)
class Lowered:
    """A job as the engine plays it, and how to find its parts again.

    Attributes:
        graph: the tasks; those of one cell are contiguous, in program order.
        wires: the network; its links are cells of links of the system.
        first: first task of each cell, shape ``(cells + 1,)``.
        program: program of each cell.
        ranks: ranks of each cell, lowest first; cells are in the order of their lowest ranks.
        cell: cell of each rank.
        link: row in ``wires`` of each link of the system, -1 for one that nothing uses.
        group: for each task of a collective its row in ``groups``, else -1.
        groups: ranks of one communication group of each cell of groups.
        pair: tasks of the same transfer (its sending and its arrival) share a number, else -1.
        how: names of algorithm and protocol of each row of ``graph.collectives``.
        sources: where the costs of the collectives are from, in words.
        gap: ticks at the end of each task in which its stream waits before the next, the work itself being done.
    """

    graph: Graph
    wires: Wires
    first: NDArray[np.int64]
    program: NDArray[np.int32]
    ranks: Ragged
    cell: NDArray[np.int64]
    link: NDArray[np.int64]
    group: NDArray[np.int32]
    groups: Ragged
    pair: NDArray[np.int64]
    how: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]
    gap: NDArray[np.int64]

    def worked(self, played: Played) -> Played:
        """When the work of each task was done, the gap after it left out."""
        return replace(played, finish=played.finish - self.gap)

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
    programs: Sequence[Program], placement: Placement, router: Router, means: Means, fold: bool = True
) -> Lowered:
    """Instantiate the programs on their devices.

    Args:
        programs: one per rank class; together they name every rank once.
        placement: device of each rank.
        router: finds routes on the machine.
        means: says how collectives and transfers are done.
        fold: put ranks that nothing tells apart into the graph once; else every rank.  The network model must know of
            weights.

    Raises:
        InputError: the system has no such place to fetch from, or no route.
    """
    mesh = placement.mesh
    said = [talk(program, len(mesh.names)) for program in programs]
    axes = (mesh.axes, mesh.derived)
    meeting = _meeting(tuple(one for one, _ in said), *axes, placement.devices.tobytes(), router, means, fold)
    return _Lowering(programs, placement, router, meeting, [order for _, order in said]).run()


class _Party(NamedTuple):
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
class Meeting:
    """Who meets whom over what in a job, whatever it computes and however often they meet.

    Attributes:
        ways: all ways.
        cells: what nothing tells apart.
        wires, link, ranks, program, groups, how: as of :class:`Lowered`.
        collectives: of all cells of groups.
        parties: who takes part in them, group by group.
    """

    ways: Ways
    cells: Cells
    wires: Wires
    ranks: Ragged
    program: NDArray[np.int32]
    collectives: tuple[Collective, ...]
    groups: Ragged
    how: tuple[tuple[str, str], ...]
    parties: tuple[tuple[_Party, ...], ...]

    @property
    def lowest(self) -> NDArray[np.int64]:
        """Lowest rank of each cell."""
        lowest: NDArray[np.int64] = self.ranks.values[self.ranks.offsets[:-1]]
        return lowest


@kept(8)
def _meeting(
    talks: tuple[Talk, ...],
    axes: tuple[tuple[str, int], ...],
    derived: tuple[tuple[str, tuple[Digit, ...]], ...],
    devices: bytes,
    router: Router,
    means: Means,
    fold: bool,
) -> Meeting:
    """What :func:`lower` finds of classes that say this.

    Args:
        talks: what each class says.
        axes, derived: of the mesh.
        devices: device of each rank, int32.
        router, means, fold: as of :func:`lower`.
    """
    placement = Placement(Mesh(axes, derived=derived), np.frombuffer(devices, np.int32))
    found = ways(talks, placement, router, means)
    cells = refine(found.traffic) if fold else separate(found.traffic)
    cell = cells.party[: placement.ranks]
    order = np.argsort(cell, kind="stable")
    ranks = Ragged(order, np.concatenate([[0], np.cumsum(np.bincount(cell))]))
    program = classes([said.members for said in talks], placement.ranks)[order[ranks.offsets[:-1]]]
    folding = _Folding(found, cells, cell)
    for sort in found.sorts:
        folding.meet(sort)
    return Meeting(
        found, cells, _wires(router, found, cells, fold), ranks, program, tuple(folding.collectives),
        Ragged.of([g.tolist() for g in folding.groups], np.int32), tuple(folding.how), tuple(folding.parties),
    )  # fmt: skip


def _wires(router: Router, found: Ways, cells: Cells, fold: bool) -> Wires:
    """The network of the cells."""
    system, capacity = router.system, router.capacity
    ends = np.stack([system.edge_source, system.edge_target], axis=1).astype(np.int32)
    if not fold:
        return Wires(capacity, found.traffic.routes, found.latency, ends=ends)
    routes, weight = weights(found.traffic, cells)
    used = np.flatnonzero(cells.link >= 0)
    link = used[_firsts(cells.link[used])]
    return Wires(capacity[link], routes, found.latency[_firsts(cells.way)], weight, ends[link])


class _Folding:
    """Collects the collectives of cells of groups."""

    def __init__(self, found: Ways, cells: Cells, cell: NDArray[np.int64]) -> None:
        self.ways, self.cells, self.cell = found, cells, cell
        self.collectives: list[Collective] = []
        self.how: list[tuple[str, str]] = []
        self.groups: list[NDArray] = []
        self.parties: list[tuple[_Party, ...]] = []

    def meet(self, sort: Sort) -> None:
        """The collectives of groups that lie alike, once for each cell of groups."""
        patterns: dict[tuple, Pattern] = {}
        for at in _firsts(self.cells.group[sort.number]).tolist():
            cells = _in_order(self.cell[sort.ranks[at]])
            folds = [self._fold(shape, shape.ways[at], cells) for shape in sort.shapes]
            begin = len(self.collectives)
            for call, (scheduled, row) in enumerate(zip(sort.scheduled, sort.shape, strict=True)):
                key = (call, folds[row].key)
                if key not in patterns:
                    patterns[key] = folds[row].pattern(scheduled.pattern)
                self.collectives.append(Collective(patterns[key], folds[row].route, scheduled.delay))
                self.how.append((scheduled.algorithm, scheduled.protocol))
            here = (sort.axis, begin, len(self.groups))
            self.parties.append(tuple(_Party(cell, place, *here) for place, cell in enumerate(cells.tolist())))
            self.groups.append(sort.ranks[at])

    def _fold(self, shape: Shape, own: NDArray[np.int64], cells: NDArray[np.int64]) -> _Fold:
        """The ways of one group as those of its cells."""
        traffic = self.ways.traffic
        route = self.cells.way[own]
        edge = _firsts(route)
        ends = self.cells.party[np.stack([traffic.source[own[edge]], traffic.target[own[edge]]])]
        others = _in_order(ends[~np.isin(ends, cells)])
        positions = np.concatenate([cells, others])
        sorter = np.argsort(positions)
        place = sorter[np.searchsorted(positions[sorter], ends)]
        return _Fold(len(cells), len(positions), edge, _numbers(route), place[0], place[1], route[edge])


class _Lowering:
    """Writes the graph: a copy of its program for each cell."""

    def __init__(
        self,
        programs: Sequence[Program],
        placement: Placement,
        router: Router,
        meeting: Meeting,
        orders: Sequence[dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]],
    ) -> None:
        self.programs, self.placement, self.router = programs, placement, router
        self.meeting, self.ways, self.cells, self.orders = meeting, meeting.ways, meeting.cells, orders
        self.class_of = classes([p.ranks.astype(np.int64) for p in programs], placement.ranks)
        self.cell = self.cells.party[: placement.ranks]
        self.lowest, self.program = meeting.lowest, meeting.program
        self.lengths = np.array([len(p) for p in programs], np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.lengths[self.program])])
        check_tasks(
            int(self.first[-1]), f"{len(self.program):,} ranks that are played one by one", "use fewer devices",
        )  # fmt: skip
        self.within = [np.flatnonzero(self.program == number) for number in range(len(programs))]  # cells of a program
        self.instances: list[NDArray] = []
        self.instances_made = 0

    def run(self) -> Lowered:
        n, stacked = int(self.first[-1]), self._stacked
        self.what, self.member = np.full(n, -1, np.int32), np.zeros(n, np.int32)
        self.group, self.pair = np.full(n, -1, np.int32), np.full(n, -1, np.int64)
        op = stacked([p.op for p in self.programs])
        stream = stacked([p.stream for p in self.programs]).astype(np.int32)
        cell = np.repeat(np.arange(len(self.program), dtype=np.int32), self.lengths[self.program])
        stream = np.where(stream >= 0, stream + cell * len(STREAMS), -1).astype(np.int32)
        senders = self._transfers()
        gap = stacked([_gaps(p) for p in self.programs])
        for parties in self.meeting.parties:
            self._meet(parties)
        graph = Graph(
            kind=_TASKS[op],
            stream=stream,
            amount=stacked([_amounts(p) for p in self.programs]) + gap,
            what=self.what,
            member=self.member,
            before=self._before(op == Op.RECEIVE, senders),
            streams=len(self.program) * len(STREAMS),
            collectives=self.meeting.collectives,
            instances=np.concatenate([np.zeros(0, np.int32), *self.instances]).astype(np.int32),
        )
        made = self.meeting
        return Lowered(
            graph, made.wires, self.first, self.program, made.ranks, self.cell, self.cells.link, self.group,
            made.groups, self.pair, made.how, self.ways.sources, gap,
        )  # fmt: skip

    def _stacked(self, columns: list[NDArray]) -> NDArray:
        """A column of all cells from that of each program."""
        start = np.concatenate([[0], np.cumsum(self.lengths)])
        copy = np.repeat(start[self.program] - self.first[:-1], self.lengths[self.program])
        return np.concatenate(columns)[copy + np.arange(self.first[-1])]

    # --- transfers ----------------------------------------------------------------------------------------------------

    def _tasks(self, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tasks of these rows of a program in each of its cells, shape ``(cells, rows)``."""
        return self.first[self.within[number]][:, None] + rows

    def _way_of_cells(self, number: int, ways: NDArray[np.int64]) -> NDArray[np.int64]:
        """Routes, one for each cell of a program, from the ways of its ranks."""
        ranks = self.programs[number].ranks
        order = np.argsort(ranks)
        mine = order[np.searchsorted(ranks[order], self.lowest[self.within[number]])]
        return self.cells.way[ways[mine]]

    def _transfers(self) -> NDArray[np.int64]:
        """Routes of what is sent and fetched; returns for each RECEIVE the task that sends, -1 for other tasks."""
        sender = np.full(len(self.what), -1, np.int64)
        for (number, stage, size), own in self.ways.sends.items():
            program = self.programs[number]
            rows = np.flatnonzero((program.op == Op.SEND) & (program.peer == stage) & (program.bytes == size))
            self.what[self._tasks(number, rows)] = self._way_of_cells(number, own)[:, None]
        for (number, place, stores), own in self.ways.fetches.items():
            program = self.programs[number]
            rows = np.flatnonzero((program.op == (Op.STORE if stores else Op.FETCH)) & (program.peer == place))
            self.what[self._tasks(number, rows)] = self._way_of_cells(number, own)[:, None]
        sends = np.flatnonzero(self._stacked([p.op == Op.SEND for p in self.programs]))
        self.pair[sends] = np.arange(len(sends))
        mesh = self.placement.mesh
        for number, program in enumerate(self.programs):
            for stage in np.unique(program.peer[program.op == Op.RECEIVE]).tolist():
                rows = np.flatnonzero((program.op == Op.RECEIVE) & (program.peer == stage))
                tasks = self._tasks(number, rows)
                along = mesh.names[program.axis[rows[0]]]
                ranks = mesh.moved(self.lowest[self.within[number]], along, stage)
                for other in np.unique(self.class_of[ranks]).tolist():
                    mine = self.class_of[ranks] == other
                    sending = self._matching(other, program.stage, program.tag[rows])
                    sender[tasks[mine]] = self.first[self.cell[ranks[mine]]][:, None] + sending
        receives = sender >= 0
        self.pair[receives] = self.pair[sender[receives]]
        return sender

    def _matching(self, number: int, stage: int, tags: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of a program that send to a stage under these tags."""
        program = self.programs[number]
        rows = np.flatnonzero((program.op == Op.SEND) & (program.peer == stage))
        order = np.argsort(program.tag[rows], kind="stable")
        return rows[order[np.searchsorted(program.tag[rows][order], tags)]]

    def _before(self, receives: NDArray[np.bool_], sender: NDArray[np.int64]) -> Ragged:
        """Predecessors within the cell, and of an arrival its sending."""
        own = self._stacked([p.before.lengths() for p in self.programs])
        offsets = np.zeros(len(own) + 1, np.int64)
        np.cumsum(own + receives, out=offsets[1:])
        parts = [self.programs[number].before.values.astype(np.int64) for number in self.program.tolist()]
        shift = np.repeat(self.first[:-1], [len(part) for part in parts])
        at_sender = np.zeros(int(offsets[-1]), bool)
        at_sender[offsets[1:][receives] - 1] = True
        values = np.empty(int(offsets[-1]), np.int32)
        values[at_sender] = sender[receives]
        values[~at_sender] = np.concatenate([np.zeros(0, np.int64), *parts]) + shift
        return Ragged(values, offsets)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, parties: Sequence[_Party]) -> None:
        """What the collectives of a cell of groups are, call by call.

        The collectives of a group along one axis are matched by their order, as communicators do: the k-th that one
        member issues is the k-th of every other.
        """
        axis = parties[0].axis
        _, calls = self.orders[int(self.program[parties[0].cell])][axis]
        instance = self.instances_made + np.arange(len(calls))
        self.instances_made += len(calls)
        self.instances.append(parties[0].first + calls)
        for party in parties:
            rows, own = self.orders[int(self.program[party.cell])][axis]
            if own is not calls and not np.array_equal(own, calls):
                name, group = self.placement.mesh.names[axis], self.meeting.groups[party.group].tolist()
                raise AssertionError(f"members of {name} group {group} issue different collectives")
            tasks = self.first[party.cell] + rows
            self.what[tasks], self.member[tasks], self.group[tasks] = instance, party.place, party.group


@dataclass(frozen=True)
class _Fold:
    """How the edges of a pattern become those between cells.

    Attributes:
        members, places: positions that are cells of ranks, and all.
        edge: the first edge of each cell of ways.
        into: for each edge its new number.
        source, target: positions of the new edges.
        way: cell of ways of each new edge.
    """

    members: int
    places: int
    edge: NDArray[np.int64]
    into: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    way: NDArray[np.int64]

    @property
    def key(self) -> tuple:
        """Equal for folds that make the same of a pattern."""
        columns = (self.edge, self.into, self.source, self.target)
        return (self.members, self.places, *(column.tobytes() for column in columns))

    @property
    def route(self) -> NDArray[np.int32]:
        """Route of each new edge."""
        return self.way.astype(np.int32)

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
    kind = _TASKS[program.op]
    ticks = picoseconds(program.seconds, lambda row: f"what instruction {row} of stage {program.stage} takes")
    return np.where(kind == Task.COMPUTE, ticks, np.where(kind == Task.TRANSFER, program.bytes, 0))


def _gaps(program: Program) -> NDArray[np.int64]:
    """Ticks that the stream of what computes waits before it starts the next."""
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
