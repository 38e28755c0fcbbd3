"""Passes of stretches of a model in few rows, those of many blocks told from those of three, four and five.

A pass of a stretch (:mod:`triosim.search.block_step`) is written as that of a stage is
(:mod:`triosim.search.contracted`), with what it moves and sends named but not timed: that differs from mesh to mesh.
What a block more adds is the same rows again, or the same ticks; it has to be so for the fourth and the fifth block, or
the stretch is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.engine.meeting import MeetingPiece, Row
from triosim.prediction.prepare import PricedJob
from triosim.schedule._stage import JobFacts, PartFacts, StageFacts
from triosim.schedule.actions import SCHEDULES, Pass
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.gathering import Missing
from triosim.schedule.stages import Boundary, cut
from triosim.search.block_step import LONGEST, SHORTEST, BlockStep, BlockStretch, NoBlocks
from triosim.search.chain import StepChain
from triosim.search.contracted import ContractedPass, Leads, StageContraction
from triosim.search.undisturbed import Call
from triosim.search.ways import SEND
from triosim.trace.tables import Phase

ROUNDED = 2
"""Ticks by which what a block adds may differ from what another does."""


class NamedWays:
    """Gives numbers to what is moved and sent; all of it takes no time yet.

    Args:
        axis: row of the axis of the stages.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.labels: dict[Call, int] = {}
        self.names: list[Call] = []

    def move(self, call: Call) -> int:
        """Ticks of a collective."""
        return 0

    def label(self, call: Call) -> int:
        """The number of a collective or send."""
        if call not in self.labels:
            self.labels[call] = len(self.names)
            self.names.append(call)
        return self.labels[call]

    def boundary(self, boundary: Boundary, back: bool) -> tuple[int, int]:
        """Ticks and number of what crosses."""
        return self.send(boundary.source, boundary.target, boundary.bytes)

    def send(self, source: int, target: int, size: int) -> tuple[int, int]:
        """Ticks and number of what one stage sends to another."""
        return 0, self.label((SEND, size, self.axis))


class _BlockRow(NamedTuple):
    """A row of a pass; ``before`` are rows of the pass, counted in two runs: of the pass, of what reduces after it."""

    kind: int
    stream: int
    label: int
    ticks: int
    stretch: float
    held: int
    before: tuple[tuple[int, int], ...]
    port: Leads | None

    @property
    def like(self) -> tuple[object, ...]:
        """What rows of a repeated block have in common."""
        return self.kind, self.stream, self.label, self.ticks, self.stretch, len(self.before), self.port


Runs = tuple[list[_BlockRow], list[_BlockRow]]


@dataclass(frozen=True)
class BlockPass:
    """A pass of a stretch.

    Attributes:
        runs: its rows, and those of the reductions after it.
        calls, exposed, host: as of :class:`triosim.search.contracted.ContractedPass`.
    """

    runs: Runs
    calls: Counter[Call]
    exposed: int
    host: int

    @staticmethod
    def of(made: ContractedPass) -> BlockPass:
        """A pass as it was written."""
        ports = iter(made.ports)
        split = len(made.kind) if made.reduces < 0 else made.reduces
        rows = []
        for row, kind in enumerate(made.kind):
            before = tuple((int(b >= split), b - split if b >= split else b) for b in _last(made, made.before[row]))
            port = next(ports) if kind >= Row.SENDS else None
            columns = kind, made.stream[row], made.label[row], made.ticks[row], made.stretch[row], made.held[row]
            rows.append(_BlockRow(*columns, before, port))
        return BlockPass((rows[:split], rows[split:]), Counter(made.calls), made.exposed, made.host)

    @cached_property
    def columns(self) -> MeetingPiece:
        """Its rows; labels are numbers of :class:`NamedWays`."""
        first = len(self.runs[0])
        rows = [row for run in self.runs for row in run]
        columns = zip(*(row[:6] for row in rows), strict=True)
        kind, stream, label, ticks, stretch, held = (list(column) for column in columns)
        before = Ragged.of([sorted({b + run * first for run, b in row.before}) for row in rows], np.int32)
        return MeetingPiece(
            np.array(kind, np.int8), np.array(stream, np.int8), np.array(ticks, np.int64),
            np.array(stretch, np.float64), np.array(label, np.int32), before, np.array(held, np.int64),
        )  # fmt: skip

    @cached_property
    def ports(self) -> tuple[Leads, ...]:
        """Where its rows lead, in order."""
        return tuple(row.port for rows in self.runs for row in rows if row.port is not None)

    def bound(
        self, other: BlockPass, part: float, ticks: Callable[[int, Leads | None], int],
        label: Callable[[int], int],
    ) -> BoundPass:  # fmt: skip
        """The pass on a mesh, one that lies between two, from this one ``part`` of the way to the other.

        Args:
            ticks: of what moves, by its number of :class:`NamedWays` and where it leads.
            label: the number of the mesh for those.

        Raises:
            NoBlocks: the two are not made of the same rows.
        """
        one = self.columns
        took, held, stretch, host, exposed = one.ticks.copy(), one.held, one.stretch, self.host, self.exposed
        if part:
            two = other.columns
            if not _same_rows(one, two) or self.ports != other.ports:
                raise NoBlocks("passes of other rows where gradients are made")
            took = np.rint(took + part * (two.ticks - took)).astype(np.int64)
            held = np.rint(held + part * (two.held - held)).astype(np.int64)
            stretch = stretch + part * (two.stretch - stretch)
            host, exposed = round(host + part * (other.host - host)), round(exposed + part * (other.exposed - exposed))
        named = np.full(len(one), -1, np.int32)
        leads = one.kind >= Row.SENDS
        moves = np.where(leads, -1, one.label)
        for number in distinct(moves).tolist():
            if number >= 0:
                rows = moves == number
                took[rows] += ticks(number, None)
                named[rows] = label(number)
        for row, port in zip(np.flatnonzero(leads).tolist(), self.ports, strict=True):
            if (number := int(one.label[row])) >= 0:
                took[row] += ticks(number, port)
                named[row] = label(number)
        piece = MeetingPiece(one.kind, one.stream, took, stretch, named, one.before, held)
        return BoundPass(piece, self.ports, self.calls, exposed, host)


@dataclass(frozen=True)
class BoundPass:
    """A pass of a stretch on a mesh.

    Attributes:
        rows: of the pass.
        ports, calls, exposed, host: as of :class:`triosim.search.contracted.ContractedPass`.
    """

    rows: MeetingPiece
    ports: tuple[Leads, ...]
    calls: Counter[Call]
    exposed: int
    host: int

    def piece(self) -> MeetingPiece:
        """Its rows."""
        return self.rows


def _same_rows(one: MeetingPiece, other: MeetingPiece) -> bool:
    """Whether two passes differ in times only."""
    columns = ("kind", "stream", "label")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns) and (
        np.array_equal(one.before.offsets, other.before.offsets)
        and np.array_equal(one.before.values, other.before.values)
    )


def _last(made: ContractedPass, before: list[int]) -> list[int]:
    """Of what a row waits for the last of each stream, which are in order."""
    of_stream = {made.stream[b]: b for b in before if made.kind[b] != Row.RECEIVES}
    return sorted({*of_stream.values(), *(b for b in before if made.kind[b] == Row.RECEIVES)})


def longer(few: tuple[BlockPass, BlockPass, BlockPass], blocks: int) -> BlockPass:
    """A pass of many blocks from those of :data:`SHORTEST` and one and two more.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """
    runs = tuple(_longer_run([one.runs[run] for one in few], blocks) for run in (0, 1))
    calls = {call: _on([one.calls[call] for one in few], blocks) for call in few[-1].calls}
    exposed, host = (_on([getattr(one, name) for one in few], blocks) for name in ("exposed", "host"))
    return BlockPass(runs, Counter(calls), exposed, host)  # type: ignore[arg-type]


def _on(few: list[int], blocks: int) -> int:
    """What a number comes to that each block adds to alike."""
    if abs((few[2] - few[1]) - (few[1] - few[0])) > ROUNDED:
        raise NoBlocks("blocks that do not add alike")
    return few[2] + (blocks - LONGEST) * (few[2] - few[1])


def _longer_run(few: list[list[_BlockRow]], blocks: int) -> list[_BlockRow]:
    period = len(few[1]) - len(few[0])
    more = blocks - LONGEST
    if not period and len(few[2]) == len(few[1]):
        return [_grown(rows, more) for rows in zip(*few, strict=True)]
    likes = [[row.like for row in rows] for rows in few]
    same = (a == b for a, b in zip(likes[0], likes[1], strict=False))
    first = next((place for place, equal in enumerate(same) if not equal), len(few[0]))
    block = likes[1][first : first + period]
    if (
        likes[1] != likes[0][:first] + block + likes[0][first:]
        or likes[2] != likes[0][:first] + 2 * block + likes[0][first:]
    ):
        raise NoBlocks("rows that do not repeat")
    old, new = few[1], few[2]
    made = [_moved(new[at], [(new[at], old[at], more)]) for at in range(first)]
    for copy in range(blocks - SHORTEST):
        for at in range(first, first + period):
            made.append(_moved(new[at], [(new[at + period], new[at], copy), (new[at], old[at], more)]))
    return made + [_moved(new[at], [(new[at], old[at - period], more)]) for at in range(first + 2 * period, len(new))]


def _moved(row: _BlockRow, by: list[tuple[_BlockRow, _BlockRow, int]]) -> _BlockRow:
    """A row moved on as often as one says by what is between two others."""
    before, held = [b for _, b in row.before], row.held
    for new, old, times in by:
        held += times * (new.held - old.held)
        before = [b + times * (m - n) for b, (_, m), (_, n) in zip(before, new.before, old.before, strict=True)]
    runs = (run for run, _ in row.before)
    return row._replace(before=tuple(zip(runs, before, strict=True)), held=max(held, 0))


def _grown(rows: tuple[_BlockRow, _BlockRow, _BlockRow], more: int) -> _BlockRow:
    """A row that takes longer with each block."""
    last = rows[-1]
    if len({(row.kind, row.stream, row.label, row.before, row.port) for row in rows}) > 1:
        raise NoBlocks("rows that are not alike")
    ticks = _on([row.ticks for row in rows], LONGEST + more)
    work = [row.ticks * row.stretch for row in rows]
    stretch = (work[2] + more * (work[2] - work[1])) / ticks if ticks and last.stretch > 1 else last.stretch
    return last._replace(
        ticks=ticks, stretch=max(stretch, 1.0), held=max(last.held + more * (last.held - rows[1].held), 0)
    )  # fmt: skip


@dataclass(frozen=True)
class StretchFacts:
    """What is known of a stretch besides its passes, where it has so many blocks.

    Attributes:
        leads: whether a pass calls a collective before anything that it receives is there.
        gathers: whether parameters are gathered in its passes.
        arriving, leaving: bytes of each value that crosses its begin and its end.
        share: what it has of each row of the optimizer, part of the short step's.
        stays, held: bytes, roughly, of what is there all the time, and of what a pass keeps for its backward.
        largest: bytes of all that one of its operators touches, at most.
        groups: bytes of the parameters of each group of gradients that are reduced together, with their axis.
        tied: parameters, and bytes, of gradients that the other end of the model has too.
    """

    leads: bool
    gathers: bool
    arriving: tuple[int, ...]
    leaving: tuple[int, ...]
    share: tuple[float, ...]
    stays: float
    held: float
    largest: int
    groups: tuple[tuple[int, int], ...]
    tied: tuple[tuple[int, int], ...]


class StretchPasses:
    """The passes of the stretches of a step.

    Args:
        job: that the step is of.
        step: of few blocks.
        seconds: of each of its operators, in each of so many ways.
        launching: what launching costs.
        copies: seconds for copying a byte on the device, where parameters are gathered.
        slowdown, called, tensor: as of :class:`triosim.search.chain.StepChain`.
    """

    def __init__(
        self, job: PricedJob, step: BlockStep, seconds: Sequence[NDArray[np.float64]], launching: HostCosts,
        copies: float, slowdown: float, called: dict[Call, int], tensor: float,
    ) -> None:  # fmt: skip
        self.job, self.step, self.seconds, self.launching, self.slowdown = job, step, seconds, launching, slowdown
        self.called, self.tensor = called, tensor
        self.costs = ScheduleCosts(step.seconds, copy_s_per_byte=copies)
        self.ways = NamedWays(job.mesh.pipeline_axis)
        forward = step.step.trace.operators.phase == Phase.FORWARD
        self._same_forward = all(np.array_equal(own[forward], seconds[0][forward]) for own in seconds)
        self._stages: dict[BlockStretch, tuple[list[StageContraction], PartFacts]] = {}
        self._few: dict[tuple[int, BlockStretch, Pass, bool, Missing, bool], BlockPass] = {}
        self._passes: dict[tuple[int, BlockStretch, Pass, bool, Missing, bool], BlockPass] = {}
        self._facts: dict[BlockStretch, StretchFacts] = {}

    def pass_of(
        self, which: int, stretch: BlockStretch, what: Pass, final: bool, needs: Missing, leads: bool
    ) -> BlockPass:  # fmt: skip
        """A pass of a stretch.

        Args:
            which: of the seconds.
            leads: whether any pass of its stage calls a collective before what it receives is there.

        Raises:
            NoBlocks: blocks do not add alike.
        """
        if what is Pass.FORWARD and self._same_forward:
            which = 0
        key = (which, stretch, what, final, needs, leads)
        if stretch.blocks <= LONGEST:
            return self._pass(*key)
        if key not in self._passes:
            few = tuple(self._pass(which, one, *key[2:]) for one in _short(stretch))
            self._passes[key] = longer(few, stretch.blocks)  # type: ignore[arg-type]
        return self._passes[key]

    def facts(self, stretch: BlockStretch) -> StretchFacts:
        """What is known of a stretch besides.

        Raises:
            NoBlocks: blocks do not add alike.
        """
        if stretch not in self._facts:
            self._facts[stretch] = self._known(stretch)
        return self._facts[stretch]

    def optimizer(self) -> tuple[list[int], StepChain]:
        """Rows of the optimizer that run, and the chain that knows them."""
        ((of, *_), _), *_ = self._stages.values()
        phase = self.step.step.trace.operators.phase
        rows = np.flatnonzero((phase == Phase.OPTIMIZER) & ~np.array(of.job.skipped)).tolist()
        return rows, of.chain

    def _pass(
        self, which: int, stretch: BlockStretch, what: Pass, final: bool, needs: Missing, leads: bool
    ) -> BlockPass:  # fmt: skip
        key = (which, stretch, what, final, needs, leads)
        if key not in self._few:
            of, part = self._stage(stretch)
            of[which].leads = leads
            self._few[key] = BlockPass.of(of[which].pass_of(part.chunk, what, final, needs))
        return self._few[key]

    def _stage(self, stretch: BlockStretch) -> tuple[list[StageContraction], PartFacts]:
        if stretch not in self._stages:
            self._stages[stretch] = self._contraction(stretch)
        return self._stages[stretch]

    def _contraction(self, stretch: BlockStretch) -> tuple[list[StageContraction], PartFacts]:
        step, priced = self.step.step, self.job
        stages = cut(step.trace, self.step.places(stretch, stretch.blocks), step.homes)
        axes = tuple((name, stages.count if name == "pp" else size) for name, size in priced.mesh.axes)
        schedule = SCHEDULES.get("1f1b")()
        job = JobFacts(
            step, self.costs, stages, schedule, priced.plan, replace(priced.mesh, axes=axes), self.step.grads
        )  # fmt: skip
        if any(abs(b.target - b.source) != 1 for b in stages.boundaries):
            raise NoBlocks("values that cross several stages")
        facts = StageFacts(job, 0 if stretch.begin is None else 1)
        chains = [StepChain(job, self.launching, self.slowdown, self.called, self.tensor, own) for own in self.seconds]
        boundaries = {id(b): number for number, b in enumerate(stages.boundaries)}
        return [StageContraction(facts, chain, self.ways, boundaries) for chain in chains], facts.parts[0]

    def _known(self, stretch: BlockStretch) -> StretchFacts:
        if stretch.blocks <= LONGEST:
            return self._at(stretch)
        few = [self._at(one) for one in _short(stretch)]
        last = few[-1]
        if any(one.arriving != last.arriving or one.leaving != last.leaving for one in few):
            raise NoBlocks("blocks that send differently")
        share = tuple(c + (stretch.blocks - LONGEST) * (c - b) for b, c in zip(few[1].share, last.share, strict=True))
        rows = [[_BlockRow(axis, 0, 0, size, 1.0, 0, (), None) for size, axis in one.groups] for one in few]
        groups = tuple((row.ticks, row.kind) for row in _longer_run(rows, stretch.blocks))
        stays, held = (
            getattr(last, name) + (stretch.blocks - LONGEST) * (getattr(last, name) - getattr(few[1], name))
            for name in ("stays", "held")
        )
        return replace(last, share=share, groups=groups, stays=stays, held=held)

    def _at(self, stretch: BlockStretch) -> StretchFacts:
        (of, *_), part = self._stage(stretch)
        facts, job = of.facts, of.job
        size = job.step.trace.values.bytes()
        crossing = job.stages.boundaries
        updates = np.flatnonzero(job.step.trace.operators.phase == Phase.OPTIMIZER)
        groups = part.groups() if job.sharing > 1 else []
        storages, phase = job.storages, job.step.trace.operators.phase
        where, first, last = storages.touched([*part.forward, *part.backward])
        passing = ~(storages.persistent | storages.given | storages.gradient)[where]
        kept = passing & (phase[first] == Phase.FORWARD) & (phase[last] != Phase.FORWARD)
        everything = float(storages.size[storages.persistent | storages.gradient].sum())
        return StretchFacts(
            leads=any(of.chain.leads(rows) for rows in part.rows.values()),
            gathers=bool(part.units),
            arriving=tuple(b.bytes for b in crossing if b.target == part.number),
            leaving=tuple(b.bytes for b in crossing if b.source == part.number),
            share=tuple(facts.share[updates].tolist()),
            stays=everything * float(facts.share[updates].mean()),
            held=float(storages.size[where[kept]].sum()),
            largest=_largest(job, [*part.forward, *part.backward]),
            groups=tuple(
                (int(sum(size[g.parameter] for g in group)), job.mesh.row(job.gathering_axis(group[0].parameter)))
                for group in groups
            ),
            tied=tuple((g.parameter, g.bytes) for g in part.grads if facts.elsewhere(g)),
        )


def _largest(job: JobFacts, rows: list[int]) -> int:
    """Bytes of all that one of some operators touches, at most."""
    operators, size = job.step.trace.operators, job.step.trace.values.bytes()
    touched = np.zeros(len(operators), np.int64)
    for table in (operators.inputs, operators.outputs):
        np.add.at(touched, table.rows(), size[table.values])
    return int(touched[rows].max(initial=0))


def _short(stretch: BlockStretch) -> list[BlockStretch]:
    """The stretches from which a longer one is told."""
    return [stretch._replace(blocks=SHORTEST + more) for more in range(3)]
