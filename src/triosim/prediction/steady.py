"""Turns that are alike are played once: a job of many micro-batches from one of few, to the picosecond.

Between its first and its last micro-batches a pipeline stage takes *turns*: a forward of one micro-batch, the backward
of another.  Once all stages do in each turn what they did in the turn before, a *period* later, they go on doing so
until the schedule changes: when something starts follows from what it waits for, no more than one turn away, and how
links are shared from what is in flight.  So a job of few micro-batches that shows such turns says everything of one of
many: what comes after a turn in the middle comes ``added`` periods later, and that turn happens so many times more.

The host is the exception: it runs ahead of the devices at a pace of its own.  Where it is no slower than a period and
nothing waits for it from the middle turn on, it changes nothing; its own work is added up by its own pace.

Nothing of this is assumed: :func:`regular` looks at every instruction of the turns, :meth:`ShortJob.whole` at all that
they allocate; otherwise the job is played as it is.  The allocator is played for the whole job: where it puts blocks
shifts from turn to turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.registry import is_ours
from triosim.core.spans import covered, merged
from triosim.engine.graph import GraphRun, Task
from triosim.memory.footprint import Footprint
from triosim.memory.lifetimes import Lifetimes
from triosim.network.lowering import LoweredJob
from triosim.prediction.played_run import RankTimeUse, Run, Spans, any_busy, busy, total_ticks, transfers, union
from triosim.prediction.staged_job import StagedJob
from triosim.schedule.actions import Action, Pass, Schedule
from triosim.schedule.program import Op, Program
from triosim.trace.tables import Category, Phase

T = TypeVar("T")

MORE = 8
"""Micro-batches beyond two for each stage that a short job has: turns to settle in, and to compare."""
WORTH = 2
"""So many times as many micro-batches a job must have that a short one is tried."""
COMPARED = 3
"""Turns that have to be like the one before them."""


class NotSteady(Exception):
    """The turns of a job are not alike."""


@dataclass(frozen=True)
class ShortJob:
    """A job with fewer micro-batches.

    Attributes:
        made: as it is arranged.
        added: micro-batches that were left out.
        last: the last turn that is looked at; the one before it stands for those that were left out.
        warm: forwards before the first turn, of each stage.
    """

    made: StagedJob
    added: int
    last: int
    warm: tuple[int, ...]

    def turns(self, program: Program) -> NDArray[np.int64]:
        """The row at which each turn of a program begins, and that at which the last ends."""
        return self._once("turns", program, self._find_turns)

    def _find_turns(self, program: Program) -> NDArray[np.int64]:
        newest = np.maximum.accumulate(program.micro_batch)
        first = np.flatnonzero(np.diff(newest, prepend=-1) > 0)  # of each micro-batch: its forward
        warm = self.warm[program.stage]
        turns: NDArray[np.int64] = first[warm : warm + self.last + 2]
        return turns

    def rows_of_turns(self, program: Program) -> _PeriodRows:
        """Rows of the turns of a program.

        Raises:
            NotSteady: they differ from turn to turn.
        """
        return self._once("rows", program, lambda program: _PeriodRows.of(self, program))

    def _once(self, what: str, program: Program, make: Callable[[Program], T]) -> T:
        """What is asked of a program time and again, found once for the same columns."""
        columns = (program.micro_batch, program.op, program.seconds, program.before)
        found: dict[tuple[object, ...], tuple[object, T]] = self.__dict__.setdefault("_found", {})
        key = (what, program.stage, *map(id, columns))
        if key not in found:
            found[key] = columns, make(program)  # with the columns, whose ids no others can have meanwhile
        return found[key][1]

    def whole(self, program: Program) -> Program:
        """A program of the short job with the lifetimes of that of the whole one.

        What is allocated in a turn is so in the ones left out, and freed as many turns later.

        Raises:
            NotSteady: turns allocate different things.
        """
        lived, turns = program.lifetimes, self.turns(program)
        assert lived is not None
        if len(turns) != self.last + 2 or (lived.home is not None and lived.home.any()):
            raise NotSteady("memory of the host")
        place = self.last - self.warm[program.stage]  # what a forward of this turn makes is freed by the last
        length, end = int(turns[-1] - turns[-2]), int(turns[-1])
        more = self.added * length

        turn_of = np.searchsorted(turns, lived.start, side="right") - 1
        order = np.argsort(turn_of, kind="stable")
        bounds = np.searchsorted(turn_of[order], np.arange(len(turns) + 1)).tolist()
        begins = turns[np.maximum(turn_of, 0)]
        columns = (lived.bytes, lived.category, lived.start - begins, lived.end - begins, lived.storages())
        table = np.stack([column[order].astype(np.int64) for column in columns])

        def of(turn: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            own = slice(bounds[turn], bounds[turn + 1])
            return order[own], table[:, own]

        pattern, facts = of(place)
        ends = lived.end[pattern] < end
        if place < 2 or not ends.all() or not all(np.array_equal(of(turn)[1], facts) for turn in range(1, place)):
            raise NotSteady("turns allocate different things")
        for turn in range(place + 1, self.last + 1):
            if not np.array_equal(of(turn)[1][[0, 1, 2, 4]], facts[[0, 1, 2, 4]]):
                raise NotSteady("turns allocate different things")
        often = np.ones(len(lived), np.int64)
        often[pattern] += self.added
        source = np.repeat(np.arange(len(lived)), often)
        copy = np.arange(len(source)) - np.repeat(np.cumsum(often) - often, often)
        later = np.where(lived.start >= turns[place + 1], more, 0)
        start = lived.start[source] + later[source] + copy * length
        until = lived.end[source] + np.where(lived.end >= end, more, later)[source] + copy * length
        storage = None if lived.storage is None else lived.storage[source]
        home = None if lived.home is None else lived.home[source]
        few = self.made.mesh.micro_batches
        given = (lived.start < 0) & np.isin(lived.category, (Category.INPUT, Category.LABEL))  # of all micro-batches
        if (lived.bytes[given] % few).any():
            raise NotSteady("micro-batches are given different things")
        size = np.where(given, lived.bytes // few * (few + self.added), lived.bytes)
        made = Lifetimes(
            size[source], lived.category[source], start.astype(np.int32), until.astype(np.int32), storage, home
        )
        return replace(program, lifetimes=made)

    def stands_for(self, programs: Sequence[Program], lowered: LoweredJob) -> NDArray[np.int64]:
        """How many tasks of the whole job each task stands for."""
        often = [self.often(programs[number]) for number in range(len(programs))]
        return np.concatenate([often[number] for number in lowered.program.tolist()])

    def middle(self, program: Program) -> slice:
        """Rows of the turn that stands for those left out."""
        return slice(*self.turns(program)[-3:-1].tolist())

    def often(self, program: Program) -> NDArray[np.int64]:
        """How many instructions of the whole job each of a program stands for."""
        often = np.ones(len(program), np.int64)
        often[self.middle(program)] += self.added
        return often


def shortened(made: StagedJob) -> ShortJob | None:
    """A job with as few micro-batches as its turns can be seen in; None where it has no turns, or too few."""
    mesh, plan, schedule = made.mesh, made.plan, made.schedule
    few = 2 * mesh.stages + MORE
    held = made.step.replication
    plain = not (held.away or held.rooted or held.weights or plan.places or made.step.root_only)
    plain = plain and not (schedule.splits_backward or schedule.combines) and is_ours(type(schedule))
    plain = plain and schedule.chunks_per_stage == 1
    if not plain or not plan.training or plan.iterations > 1 or mesh.micro_batches < WORTH * few:
        return None
    if made.residual is not None or len(made.models) > 1 or _host_bound(made):
        return None
    last, added = few - mesh.stages - 1, mesh.micro_batches - few
    warm = [_warm(schedule, stage, mesh.stages, few, added, last) for stage in range(mesh.stages)]
    if -1 in warm:
        return None
    short = replace(mesh, micro_batches=few, batch_size=mesh.micro_batch_size * few)
    return ShortJob(replace(made, mesh=short), added, last, tuple(warm))


def _host_bound(made: StagedJob) -> bool:
    """Whether the host is likely to need longer for a turn than the devices, so that trying is no use."""
    each = made.step.trace.operators.phase != Phase.OPTIMIZER
    if made.launching.mode == "graph":
        return False
    of = np.maximum(made.stages.of[each], 0)
    host, device = (
        np.bincount(of, column[each]).max(initial=0) for column in (made.launching.issue_s, made.times.seconds)
    )
    return bool(host >= device)


def _warm(schedule: Schedule, stage: int, stages: int, few: int, added: int, last: int) -> int:
    """Forwards of a stage before its first turn; -1 where more micro-batches are not more turns in the middle."""
    short, long = (schedule.actions(stage, stages, count) for count in (few, few + added))
    at = short.index(Action(Pass.BACKWARD, last - 1)) + 1
    ahead = short[at - 2].micro_batch - (last - 1)

    def turns(first: int, count: int) -> list[Action]:
        pairs = [(Action(Pass.FORWARD, n + ahead), Action(Pass.BACKWARD, n)) for n in range(first, first + count)]
        return [action for pair in pairs for action in pair]

    if ahead < 0 or short[at - 2 * last : at + 2] != turns(0, last + 1) or short[at + 2].what is not Pass.FORWARD:
        return -1
    later = [action._replace(micro_batch=action.micro_batch + added) for action in short[at:]]
    return ahead if long == short[:at] + turns(last, added) + later else -1


@dataclass(frozen=True)
class Period:
    """The interval at which turns of a simulated job follow each other.

    Attributes:
        ticks: from one to the next.
        window: a moment from which on, for one period, all that runs is of turns that are alike.
        host: ticks for which the host works in a turn, of each cell.
        free: instructions of the host before the first that waits for the device, of each cell.
    """

    ticks: int
    window: int
    host: tuple[int, ...]
    free: tuple[int, ...]


def regular(job: ShortJob, programs: Sequence[Program], lowered: LoweredJob, played: GraphRun) -> Period:
    """The period of a played short job.

    Args:
        job: which one.
        programs, lowered, played: as it was played.

    Raises:
        NotSteady: its turns are not alike, or the host may hold up what comes after them.
    """
    ticks, same, low, high = -1, job.last, 0, np.iinfo(np.int64).max
    found: list[tuple[Program, slice, _PeriodRows]] = []
    for cell in range(lowered.cells):
        program, own = programs[lowered.program[cell]], slice(*lowered.first[cell : cell + 2].tolist())
        turns = job.rows_of_turns(program)
        found.append((program, own, turns))
        parts = np.stack([column[own][turns.device] for column in (played.start, played.begin, played.finish)])
        steps = np.diff(parts, axis=1)  # (start, begin, finish; turns; instructions)
        if ticks < 0:
            ticks = int(steps[0, -1, 0])
        alike = (steps == ticks).all(axis=(0, 2))
        same = min(same, len(alike) - int(np.max(np.flatnonzero(~alike), initial=-1)) - 1)
    if ticks <= 0 or same < COMPARED:
        raise NotSteady("turns take different times")
    for program, own, turns in found:
        moves = program.op != Op.ISSUE
        moves &= program.op != Op.RECEIVE
        before, after = turns.bounds[job.last - 1 - same], turns.bounds[-1]
        low = max(low, int(played.finish[own][:before][moves[:before]].max(initial=0)))
        high = min(high, int(played.start[own][after:][moves[after:]].min(initial=high)))
    if high - low < ticks:
        raise NotSteady("no period has turns that are alike only")
    hosts = [_host(program, turns, same, played.start[own], played.finish[own]) for program, own, turns in found]
    if any(ticks < pace for pace, _ in hosts):
        raise NotSteady("the host is slower than the devices")
    return Period(ticks, low, tuple(pace for pace, _ in hosts), tuple(free for _, free in hosts))


@dataclass(frozen=True)
class _PeriodRows:
    """Rows of turns: where each begins, and those of instructions of devices and of the host, ``(turns, rows)``."""

    bounds: NDArray[np.int64]
    device: NDArray[np.int64]
    host: NDArray[np.int64]

    @staticmethod
    def of(job: ShortJob, program: Program) -> _PeriodRows:
        bounds = job.turns(program)[1:]  # what is launched once comes with the first of all
        lengths = np.diff(bounds)
        if len(bounds) != job.last + 1 or not len(lengths) or (lengths != lengths[0]).any():
            raise NotSteady("turns have different lengths")
        rows = bounds[:-1, None] + np.arange(lengths[0])
        for name in ("op", "stream", "operator", "seconds", "bytes", "what", "axis", "peer", "root"):
            table = getattr(program, name)[rows]
            if (table != table[-1]).any():
                raise NotSteady(f"{name} differs between turns")
        before = program.before.take(rows.ravel())
        counts = before.lengths().reshape(rows.shape)
        if (counts != counts[-1]).any():
            raise NotSteady("turns wait for different things")
        waits = before.values.reshape(len(rows), -1) - bounds[:-1, None]
        if (waits != waits[-1]).any() or (waits < -lengths[0]).any():
            raise NotSteady("turns wait for different things")
        issues = program.op[rows[-1]] == Op.ISSUE
        return _PeriodRows(bounds, rows[:, ~issues], rows[:, issues])


def _host(
    program: Program, turns: _PeriodRows, same: int, start: NDArray[np.int64], finish: NDArray[np.int64]
) -> tuple[int, int]:
    """Ticks of the host in a turn, and its instructions before the first that waits for the device.

    Raises:
        NotSteady: something may wait for the host.
    """
    issues = program.rows(Op.ISSUE)
    waits = np.flatnonzero(program.before.lengths()[issues])
    free = int(waits[0]) if len(waits) else len(issues)
    if not free:
        if len(issues):
            raise NotSteady("the host waits for the device at once")
        return 0, 0
    chain = issues[:free]
    if start[chain[0]] or (start[chain[1:]] != finish[chain[:-1]]).any():
        raise NotSteady("the host pauses")
    if len(waits):
        waiting = issues[free]
        if waiting < turns.bounds[-1] or start[waiting] <= finish[chain[-1]]:
            raise NotSteady("the host waits for the device in a turn, or not at all")
    held_up = chain[chain >= turns.bounds[-2]] + 1  # what each of these launches comes right after it
    if (start[held_up] <= finish[held_up - 1]).any():
        raise NotSteady("something waits for the host")
    paces = (finish[turns.host[-same:]] - start[turns.host[-same:]]).sum(axis=1)
    if (paces != paces[-1]).any():
        raise NotSteady("the host takes different times")
    return int(paces[-1]), free


@dataclass(frozen=True)
class SteadyRun(Run):
    """A played short job, and what it says of the whole one.

    Attributes:
        job: the short job.
        period: of its turns.
    """

    job: ShortJob
    period: Period

    @property
    def more(self) -> int:
        """Ticks by which the whole job takes longer."""
        return self.job.added * self.period.ticks

    @cached_property
    def end(self) -> int:
        """End of the whole run in picoseconds."""
        return int(self.played.finish.max(initial=0)) + self.more

    @cached_property
    def spent(self) -> tuple[RankTimeUse, ...]:
        """How each cell spends the whole run."""
        return tuple(self._occupied(cell) for cell in range(self.lowered.cells))

    @cached_property
    def active(self) -> int:
        """Picoseconds with at least one device or transfer busy."""
        return self._long(any_busy(self))

    def _within(self, spans: Spans) -> int:
        """Ticks of some intervals in a period."""
        begin = np.array([self.period.window])
        return int(covered(begin, begin + self.period.ticks, *spans)[0])

    def _long(self, spans: Spans) -> int:
        """Ticks of intervals in which devices do something, in the whole run."""
        return total_ticks(spans) + self.job.added * self._within(spans)

    def _until(self, spans: Spans, at: int) -> int:
        """Of these the ticks before some moment of the whole run."""
        window, ticks, more = self.period.window, self.period.ticks, self.more

        def short(moment: int) -> int:
            return int(covered(np.array([0]), np.array([moment]), *spans)[0])

        if at < window:
            return short(at)
        if at >= window + more:
            return short(at - more) + self.job.added * self._within(spans)
        turns, rest = divmod(at - window, ticks)
        return short(window + rest) + turns * self._within(spans)

    def _occupied(self, cell: int) -> RankTimeUse:
        computing = busy(self, cell, Op.COMPUTE)
        moving = merged(*transfers(self, cell))
        either = union(computing, moving)
        issues = self.program(cell).rows(Op.ISSUE) + self.tasks(cell).start
        free, pace = self.period.free[cell], self.job.added * self.period.host[cell]
        later = merged(self.played.start[issues[free:]], self.played.finish[issues[free:]])
        spans = [
            (start + self.more, end + self.more)
            for start, end in zip(later[0].tolist(), later[1].tolist(), strict=True)
        ]
        if free:
            spans.append((0, int(self.played.finish[issues[free - 1]]) + pace))
        host = sum(end - start for start, end in spans)
        beside = sum(self._until(either, end) - self._until(either, start) for start, end in spans)
        compute, both = self._long(computing), self._long(either)
        all_three = both + host - beside
        return RankTimeUse(compute, self._long(moving), host, both - compute, all_three - both, self.end - all_three)

    # --- the same run with other durations ------------------------------------------------------------------------

    @property
    def _span(self) -> int:
        """Turns over which a pace is measured."""
        return self.job.made.mesh.stages

    @cached_property
    def landmarks(self) -> NDArray[np.int64]:
        """Tasks of each cell whose ends say how long the whole run takes with other durations, shape ``(cells, 5)``.

        The first instruction of the device in the last turn, and as many turns before it as there are stages; the
        last of the host in each of these; and the last of the host that waits for no device.  Where there is none of
        the host, the first of the device stands for it.
        """
        found, span = [], self._span
        for cell in range(self.lowered.cells):
            program, first = self.program(cell), self.tasks(cell).start
            turns = self.job.rows_of_turns(program)
            before, last = turns.device[[-1 - span, -1], 0].tolist()
            host, free = turns.host, self.period.free[cell]
            paces = host[[-1 - span, -1], -1].tolist() if host.shape[1] else [before, before]
            chain = int(program.rows(Op.ISSUE)[free - 1]) if free else before
            found.append([row + first for row in (before, last, *paces, chain)])
        return np.array(found, np.int64).reshape(-1, 5)

    def ends(self, short: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
        """When the whole run ends, from the ends of the short one.

        Turns follow each other at the pace of the slowest cell, or of its host.  They need not be equally long: what
        holds up a stage can be what another did a turn or two before, and comes round after as many turns as there are
        stages in the round.  The pace is the mean over as many turns as there are stages.

        Args:
            short: ends of short runs, shape ``(draws,)``.
            found: of the :attr:`landmarks` in them, shape ``(draws, 5 * cells)``.
        """
        before, last, paused, issued, chain = found.reshape(len(short), -1, 5).transpose(2, 0, 1)  # (draws, cells)
        turns = self.job.added / self._span
        device = short + turns * (last - before).max(axis=1)
        host = (chain + turns * (issued - paused)).max(axis=1)
        return np.maximum(device, host)

    # --- what counts often ----------------------------------------------------------------------------------------

    def _turn(self, number: int) -> slice:
        """Rows of the turn that stands for those left out."""
        return self.job.middle(self.programs[number])

    @cached_property
    def _turn_tasks(self) -> NDArray[np.int64]:
        """Tasks of that turn, of all cells."""
        turns = [self._turn(number) for number in range(len(self.programs))]
        own = [turns[number] for number in self.lowered.program.tolist()]
        return np.concatenate(
            [
                np.arange(turn.start, turn.stop) + first
                for turn, first in zip(own, self.lowered.first[:-1].tolist(), strict=True)
            ]
        )

    @property
    def played_tasks(self) -> int:
        """Tasks of the whole job."""
        return len(self.lowered.graph) + self.job.added * len(self._turn_tasks)

    @property
    def flows(self) -> int:
        """Transfers of the whole job."""
        graph = self.lowered.graph
        kind = graph.kind[self._turn_tasks]
        run = np.unique(graph.what[self._turn_tasks[kind == Task.COLLECTIVE]])
        times = np.bincount(graph.instances[run], minlength=len(graph.collectives)).tolist()
        inside = sum(int(c.pattern.count.sum()) * n for c, n in zip(graph.collectives, times, strict=True) if n)
        return self.played.flows + self.job.added * (int(np.count_nonzero(kind == Task.TRANSFER)) + inside)

    def stands_for(self, number: int) -> NDArray[np.int64]:
        """How many equal instructions each of a program stands for."""
        return self.job.often(self.programs[number])

    def length(self, number: int) -> int:
        """Instructions of a program of the whole job."""
        turn = self._turn(number)
        return len(self.programs[number]) + self.job.added * (turn.stop - turn.start)

    def memory(self, number: int, footprint: Footprint) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When the memory of the first rank of a class changes in the whole run, and bytes that it holds from then."""
        inside = (footprint.rows >= 0) & (footprint.rows < self.length(number))
        row, periods = self._short(number, np.clip(footprint.rows, 0, self.length(number) - 1))
        task = self.tasks(self.first_cell(self.programs[number])).start + row
        when = (
            np.where(footprint.ended, self.played.finish[task], self.played.start[task]) + periods * self.period.ticks
        )
        return np.maximum.accumulate(np.where(inside, when, 0)), footprint.total

    def began(self, number: int, row: int) -> tuple[int, int]:
        """When an instruction of the whole program began, ticks; and the row of the short one where it is."""
        short, periods = self._short(number, np.array([row]))
        when, found = super().began(number, int(short[0]))
        return when + int(periods[0]) * self.period.ticks, found

    def _short(self, number: int, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the short program for those of the whole one, and how many periods later these are."""
        turn = self._turn(number)
        length = turn.stop - turn.start
        periods = np.clip((rows.astype(np.int64) - turn.start) // length, 0, self.job.added)
        return rows - periods * length, periods
