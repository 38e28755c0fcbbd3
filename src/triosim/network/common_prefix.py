"""Jobs whose ranks are alike for long and differ at the end: what comes before is played once for all of them.

Ranks are one cell only if nothing that ever happens tells them apart (:mod:`triosim.network.rank_classes`).  Replicas
of which one is slow differ in what they wait for when gradients are exchanged, and not before.  So programs are cut in
two.  The *prefix* has all that comes before the first collective of those axes that divide the ranks late; what its
ranks meet in makes cells of its own, which are few.  The *rest* is instantiated for the cells of the whole job, each of
which goes on from its cell of the prefix.

That is exact where transfers of the prefix have ended on a link before those of the rest begin there, and what computes
in the prefix has ended before collectives of the rest run beside it: then nothing of the rest is felt in the prefix,
and what is felt of the prefix are the ends of its tasks.  Whether it is so is looked up in what was played
(:meth:`PrefixedJob.check`); where it is not, the job must be cut earlier, or played whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.result_cache import Repeated
from triosim.engine.graph import BEYOND, EngineNetwork, Graph, GraphRun, Task
from triosim.engine.join import join, with_predecessors
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.lowering import Calls, JobMeetings, LoweredJob, instantiate, meetings
from triosim.network.prefix_rows import PrefixRows, Sending, sendings
from triosim.network.routes import Router
from triosim.network.traffic import CommunicationModel, classes
from triosim.schedule.program import STREAMS, Op, Program

T = TypeVar("T", bound=np.generic)

MOST_OF_TASKS = 0.75
"""What is played must be at most so large a part of the tasks of the whole job."""


class FeltBefore(Exception):
    """Something of the rest of a job may have been felt in its prefix.

    Attributes:
        cut: rows of each program before which nothing was.
    """

    def __init__(self, cut: NDArray[np.int64]) -> None:
        self.cut = cut


@dataclass(frozen=True)
class PrefixedJob:
    """A job cut in two.

    Attributes:
        prefix, rest: the parts; cells of the rest are those of the whole job.
        origin: cell of the prefix of each cell of the rest.
        length: rows of each program that are in the prefix.
        graph, wires: of both, the prefix first; of its links too.
        programs, assignment, meeting, orders: of the whole job.
        model: device model of each cell of the rest.
    """

    prefix: LoweredJob
    rest: LoweredJob
    origin: NDArray[np.int64]
    length: NDArray[np.int64]
    graph: Graph
    wires: EngineNetwork
    programs: Sequence[Program]
    assignment: DeviceAssignment
    meeting: JobMeetings
    orders: Sequence[Calls]
    model: NDArray[np.int64]

    @property
    def program(self) -> NDArray[np.int32]:
        """Program of each cell, those of the prefix first."""
        return np.concatenate([self.prefix.program, self.rest.program])

    @property
    def first(self) -> NDArray[np.int64]:
        """First task of each cell of both, shape ``(cells + 1,)``."""
        return np.concatenate([self.prefix.first, self.rest.first[1:] + self.prefix.first[-1]])

    @property
    def earlier(self) -> NDArray[np.int64]:
        """For each cell of both the one that it goes on from, -1 for none."""
        return np.concatenate([np.full(self.prefix.cells, -1), self.origin])

    @property
    def gaps(self) -> list[NDArray[np.int64]]:
        """For each cell of both what its program has in :class:`LoweredJob`."""
        return self.prefix.by_cell(self.prefix.gaps) + self.rest.by_cell(self.rest.gaps)

    @property
    def computes(self) -> list[NDArray[np.bool_]]:
        """For each cell of both which of its tasks compute."""
        return self.by_cell([program.op == Op.COMPUTE for program in self.programs])

    @property
    def moves(self) -> list[NDArray[np.bool_]]:
        """For each cell of both which of its tasks are collectives that hold multiprocessors."""
        return self.by_cell([program.holding for program in self.programs])

    @property
    def stands_for(self) -> NDArray[np.int64]:
        """How many tasks of the whole job each of both parts stands for."""
        often = np.bincount(self.origin, minlength=self.prefix.cells)
        return np.concatenate([often[_cells(self.prefix)], np.ones(len(self.rest.graph), np.int64)])

    def by_cell(self, columns: Sequence[NDArray[T]]) -> list[NDArray[T]]:
        """For each cell of both its part of the column of its program, one object for each part."""
        cuts = list(zip(columns, self.length.tolist(), strict=True))
        early, late = [column[:cut] for column, cut in cuts], [column[cut:] for column, cut in cuts]
        return self.prefix.by_cell(early) + self.rest.by_cell(late)

    def of_rows(self, columns: Sequence[NDArray[T]]) -> NDArray[T]:
        """A column of the tasks of both from that of the rows of each program."""
        return np.concatenate(self.by_cell(columns))

    def check(self, played: GraphRun) -> None:
        """See that nothing of the rest was felt in the prefix.

        Raises:
            FeltBefore: something may have been.
        """
        cut, prefix, rest = int(self.prefix.first[-1]), self.prefix, self.rest
        begun = _Crossings(rest).first(played.begin[cut:])
        both = (prefix.link >= 0) & (rest.link >= 0)
        begins = _least(len(prefix.wires.capacity), prefix.link[both], begun[rest.link[both]])
        until = _Crossings(prefix).soonest(begins)
        moves = np.flatnonzero(np.concatenate(self.moves[prefix.cells :]))
        held = _least(prefix.cells, self.origin[_cells(rest)[moves]], played.start[cut:][moves])
        of_cell = _cells(prefix)
        until = np.where(np.concatenate(self.computes[: prefix.cells]), held[of_cell], until)
        felt = np.flatnonzero(played.finish[:cut] > until)
        if len(felt):
            cell = of_cell[felt]
            least = self.length.copy()
            np.minimum.at(least, prefix.program[cell], felt - prefix.first[cell])
            raise FeltBefore(least)

    def joined(self, played: GraphRun) -> tuple[LoweredJob, GraphRun]:
        """The whole job with one cell for all ranks of a program that did the same at the same times, and those times.

        The graph of that job tells what the tasks of a rank are, and cannot be played: of those whom a rank meets it
        has one for all that are alike.
        """
        cut, rest = int(self.prefix.first[-1]), self.rest
        known = Repeated()
        into = np.empty(rest.cells, np.int64)
        kept: list[int] = []
        for cell, program in enumerate(rest.program.tolist()):
            own = slice(int(rest.first[cell]) + cut, int(rest.first[cell + 1]) + cut)
            arrivals = self.programs[program].rows(Op.RECEIVE) - int(self.length[program])
            ends = self.graph.before.offsets[arrivals[arrivals >= 0] + own.start + 1]
            arrived = played.begin[self.graph.before.values[ends - 1]]
            times = (played.start[own], played.begin[own], played.finish[own], arrived)
            into[cell] = known.number((program, int(self.model[cell]), int(self.origin[cell])), times)
            if into[cell] == len(kept):
                kept.append(cell)
        lowered = instantiate(self.programs, self.assignment, _with_cells(self.meeting, into, kept), self.orders)
        prefix, first = self.prefix, rest.first + cut

        def ticks(of: NDArray[np.int64]) -> NDArray[np.int64]:
            parts = []
            for cell in kept:
                begin = int(self.origin[cell])
                parts.append(of[int(prefix.first[begin]) : int(prefix.first[begin + 1])])
                parts.append(of[int(first[cell]) : int(first[cell + 1])])
            return np.concatenate(parts)

        used = np.flatnonzero(rest.link >= 0)
        links = len(self.prefix.wires.capacity)
        carried = played.link_bytes[links:].copy()
        early = np.append(played.link_bytes[:links], 0)[prefix.link[used]]
        carried[rest.link[used]] = played.link_bytes[links:][rest.link[used]] + early  # alike within a cell
        return lowered, GraphRun(
            ticks(played.start), ticks(played.begin), ticks(played.finish), carried, played.flows, played.events,
            played.engine,
        )  # fmt: skip


def prefixed(
    programs: Sequence[Program],
    assignment: DeviceAssignment,
    router: Router,
    means: CommunicationModel,
    fewest: int,
    most: NDArray[np.int64] | None = None,
) -> PrefixedJob | None:
    """The job cut in two, where that saves much; else None.

    Args:
        programs, assignment, router, means: as of :func:`triosim.network.lowering.lower`, whose network model knows of
            weights.
        fewest: jobs of fewer tasks are left whole.
        most: rows of each program that may be in the prefix; None for all before the first late collective.
    """
    meeting, orders = meetings(programs, assignment, router, means)
    lengths = np.array([len(program) for program in programs], np.int64)
    cells = np.bincount(meeting.program, minlength=len(programs))
    whole = int(lengths @ cells)
    if whole < fewest or int(lengths.sum()) > MOST_OF_TASKS * whole:  # each program is played once at least
        return None
    cut = PrefixRows(programs, orders, meeting).cut(lengths if most is None else most)
    if cut is None or int(cut.sum() + (lengths - cut) @ cells) > MOST_OF_TASKS * whole:
        return None
    early = [_part(program, 0, end) for program, end in zip(programs, cut.tolist(), strict=True)]
    first, calls = meetings(early, assignment, router, means)
    if int(cut[first.program].sum() + (lengths - cut) @ cells) > MOST_OF_TASKS * whole:
        return None
    prefix = instantiate(early, assignment, first, calls)
    origin = prefix.cell[meeting.lowest]
    if not np.array_equal(origin[meeting.cell], prefix.cell) or not _finer(meeting.link, prefix.link):
        return None
    joining = _Joining(programs, cut, assignment, meeting, orders)
    rest = instantiate(joining.late, assignment, meeting, joining.calls)
    graph, wires = _one_graph(prefix, rest)
    more = joining.edges(prefix, rest, origin)
    graph = replace(graph, before=with_predecessors(graph.before, *more))
    model = router.system.device_model[assignment.devices[meeting.lowest]].astype(np.int64)
    return PrefixedJob(
        prefix, rest, origin, cut, graph, wires, programs, assignment, meeting, orders, model,
    )  # fmt: skip


def _part(program: Program, begin: int, end: int) -> Program:
    """Some rows of a program, and what they wait for among themselves."""
    own = slice(begin, end)
    before = program.before.take(np.arange(begin, end))
    inside = before.values >= begin
    counts = np.bincount(before.rows()[inside], minlength=end - begin)
    columns = ("op", "stream", "operator", "micro_batch", "iteration", "seconds", "bytes", "what", "axis", "peer",
               "root", "tag")  # fmt: skip
    return replace(
        program,
        **{name: getattr(program, name)[own] for name in columns},
        before=Ragged(
            (before.values[inside] - begin).astype(np.int32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        ),
        lifetimes=None,
    )


class _Joining:
    """The programs of the rest, and what ties them to the prefix."""

    def __init__(
        self,
        programs: Sequence[Program],
        cut: NDArray[np.int64],
        assignment: DeviceAssignment,
        meeting: JobMeetings,
        orders: Sequence[Calls],
    ) -> None:
        self.programs, self.cut, self.assignment, self.meeting = programs, cut, assignment, meeting
        self.late: list[Program] = []
        self.arrivals: list[list[Sending]] = []  # of what was sent in the prefix and arrives in the rest
        self.calls: list[Calls] = []
        for number, (program, begin) in enumerate(zip(programs, cut.tolist(), strict=True)):
            arrivals = []
            for sender, receives, sends in sendings(programs, program):
                some = (receives >= begin) & (sends < cut[sender])
                if some.any():
                    arrivals.append(Sending(sender, receives[some], sends[some]))
            part = _part(program, begin, len(program))
            if arrivals:  # such an arrival is a task of no time that waits for its sending
                op = part.op.copy()
                op[np.concatenate([one.receives for one in arrivals]) - begin] = Op.ISSUE
                part = replace(part, op=op)
            self.late.append(part)
            self.arrivals.append(arrivals)
            own: Calls = {}
            for axis, (rows, which) in orders[number].items():
                at = int(np.searchsorted(rows, begin))
                own[axis] = (rows[at:] - begin, which[at:])
            self.calls.append(own)

    def edges(
        self, prefix: LoweredJob, rest: LoweredJob, origin: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tasks of the rest and tasks of the prefix that they wait for, both as numbered in the graph of both."""
        tasks, waits = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        class_of = classes([p.ranks.astype(np.int64) for p in self.programs], self.assignment.ranks)
        for number, program in enumerate(self.programs):
            begin = int(self.cut[number])
            cells = np.flatnonzero(rest.program == number)
            later = rest.first[cells][:, None] + int(prefix.first[-1])
            rows, needs = self._within(program, begin)
            tasks.append((later + rows).reshape(-1))
            waits.append((prefix.first[origin[cells]][:, None] + needs).reshape(-1))
            for sender, receives, sends in self.arrivals[number]:
                along = self.assignment.mesh.names[program.axis[receives[0]]]
                stage = self.programs[sender].stage
                ranks = self.assignment.mesh.moved(rest.lowest[cells], along, stage)
                mine = np.flatnonzero(class_of[ranks] == sender)
                tasks.append((later[mine] + (receives - begin)).reshape(-1))
                waits.append((prefix.first[prefix.cell[ranks[mine]]][:, None] + sends).reshape(-1))
        return np.concatenate(tasks), np.concatenate(waits)

    @staticmethod
    def _within(program: Program, begin: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows behind the cut, counted from it, and rows before it that they wait for or that streams run before."""
        before = program.before
        row = before.rows()
        across = (row >= begin) & (before.values < begin)
        rows, needs = [row[across] - begin], [before.values[across].astype(np.int64)]
        for stream in range(len(STREAMS)):
            on = np.flatnonzero(program.stream == stream)
            at = int(np.searchsorted(on, begin))
            if 0 < at < len(on):
                rows.append(on[at : at + 1] - begin)
                needs.append(on[at - 1 : at])
        return np.concatenate(rows), np.concatenate(needs)


def _one_graph(prefix: LoweredJob, rest: LoweredJob) -> tuple[Graph, EngineNetwork]:
    """Both graphs on the links of both, those of the prefix first."""
    one, two = prefix.wires, rest.wires
    capacity = np.concatenate([one.capacity, two.capacity])
    ends = None if one.ends is None or two.ends is None else np.concatenate([one.ends, two.ends])
    moved = Ragged((two.routes.values + len(one.capacity)).astype(np.int32), two.routes.offsets)
    return join(
        [
            (prefix.graph, replace(one, capacity=capacity, ends=ends)),
            (rest.graph, replace(two, capacity=capacity, routes=moved, ends=ends)),
        ]
    )


def _finer(link: NDArray[np.int64], than: NDArray[np.int64]) -> bool:
    """Whether links of one cell are of one cell there too."""
    used = np.flatnonzero(link >= 0)
    other = np.full(int(link.max(initial=-1)) + 1, -1, np.int64)
    other[link[used]] = than[used]
    unused = bool((than[link < 0] < 0).all())
    return unused and np.array_equal(other[link[used]], than[used])


class _Crossings:
    """Which tasks of a part cross which links: transfers on their routes, collectives on all that they use."""

    def __init__(self, job: LoweredJob) -> None:
        self.graph, self.routes, self.links = job.graph, job.wires.routes, len(job.wires.capacity)
        self.sends = np.flatnonzero(self.graph.kind == Task.TRANSFER)
        self.meets = np.flatnonzero(self.graph.kind == Task.COLLECTIVE)
        self.used = distinct(self.graph.instances).tolist()

    def first(self, begin: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the first task begins that crosses each link."""
        graph = self.graph
        of_route = _least(len(self.routes), graph.what[self.sends], begin[self.sends])
        instances = _least(len(graph.instances), graph.what[self.meets], begin[self.meets])
        collectives = _least(len(graph.collectives), graph.instances, instances)
        for one in self.used:
            np.minimum.at(of_route, graph.collectives[one].route, collectives[one])
        return _least(self.links, self.routes.values, of_route[self.routes.rows()])

    def soonest(self, of_link: NDArray[np.int64]) -> NDArray[np.int64]:
        """The least tick of the links that each task crosses."""
        graph = self.graph
        routes = _least(len(self.routes), self.routes.rows(), of_link[self.routes.values])
        collectives = np.full(len(graph.collectives), BEYOND)
        for one in self.used:
            collectives[one] = routes[graph.collectives[one].route].min(initial=BEYOND)
        found = np.full(len(graph), BEYOND)
        found[self.sends] = routes[graph.what[self.sends]]
        found[self.meets] = collectives[graph.instances[graph.what[self.meets]]]
        return found


def _least(size: int, at: NDArray[np.integer], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least of the values at each of so many places, beyond all ticks where there is none."""
    found = np.full(size, BEYOND)
    np.minimum.at(found, at, values)
    return found


def _cells(job: LoweredJob) -> NDArray[np.int64]:
    """Cell of each task of a part."""
    return np.repeat(np.arange(job.cells), np.diff(job.first))


def _with_cells(meeting: JobMeetings, into: NDArray[np.int64], kept: Sequence[int]) -> JobMeetings:
    """The meeting with fewer cells: those ``kept``, which all others are ``into``."""
    keeps = np.array(kept, np.int64)
    cell = into[meeting.cell]
    order = np.argsort(cell, kind="stable")

    def routes(number: int, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the kept cells of a program, from those of its cells."""
        cells = np.flatnonzero(meeting.program == number)
        return own[np.searchsorted(cells, keeps[meeting.program[keeps] == number])]

    places = {old: new for new, old in enumerate(kept)}
    endpoints = (
        tuple(one._replace(cell=places[one.cell]) for one in group if one.cell in places) for group in meeting.endpoints
    )
    return replace(
        meeting,
        sends={key: routes(key[0], own) for key, own in meeting.sends.items()},
        fetches={key: routes(key[0], own) for key, own in meeting.fetches.items()},
        cell=cell,
        ranks=Ragged(order, np.concatenate([[0], np.cumsum(np.bincount(cell))])),
        program=meeting.program[keeps],
        endpoints=tuple(group for group in endpoints if group),
    )
