"""Classes of stages that do the same: the passes of each class are written once.

Two stages are of one kind if their operators, seen from their first, take the same times, exchange the same bytes, send
and receive at the same places and reduce the same gradients: most stages of a pipeline are.  What one of them runs is
written by the same code that writes whole programs (:mod:`triosim.schedule.job`), for two micro-batches; what the
others run differs in whom they talk to only, their *ports*.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.composition.issuing import issue_shares
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Action, Pass, Schedule
from triosim.schedule.crossing import Boundary
from triosim.schedule.fragments import Fragment
from triosim.schedule.job import StageWriter
from triosim.schedule.program import Program
from triosim.trace.tables import Phase

MICRO_BATCHES = 2
"""So many show every kind of pass: those before the last, and the last."""


@dataclass(frozen=True)
class WrittenFragment:
    """Instructions of one pass, or of what ends an iteration, written for a class of stages.

    Attributes:
        fragment: ``before`` counts from its first row, and what :func:`~triosim.schedule.program.of_iteration` makes of
            a number is a row of the iteration that was written.
        start: where it is in that iteration.
    """

    fragment: Fragment
    start: int

    @property
    def rows(self) -> Program:
        """Its instructions."""
        return self.fragment.rows


@dataclass(frozen=True)
class StageClass:
    """Programs of stages that do the same.

    Attributes:
        writer: wrote it, for the first stage of the kind.
        passes: by pass, chunk and whether it is the last such one.
        reductions: by chunk, what follows its last backward.
        update: what ends the iteration.
        length: rows of the iteration that was written.
    """

    writer: StageWriter
    passes: dict[tuple[Pass, int, bool], WrittenFragment]
    reductions: dict[int, WrittenFragment]
    update: WrittenFragment
    length: int

    def pass_of(self, what: Pass, chunk: int) -> WrittenFragment:
        """A pass that is not the last of its kind."""
        return self.passes[what, chunk, False]


@dataclass(frozen=True)
class MessagePort:
    """One message of a pass.

    Attributes:
        boundary: row of the boundaries.
        back: whether it is the gradient that comes back.
        sends: whether the pass sends it, or receives it.
    """

    boundary: int
    back: bool
    sends: bool


class _TwoMicroBatches(Schedule):
    """All forwards, then all backwards of two micro-batches.

    Args:
        like: the schedule whose passes and chunks are meant.
    """

    def __init__(self, like: Schedule) -> None:
        self.splits_backward = like.splits_backward  # type: ignore[misc]
        self._chunks = like.chunks_per_stage

    @property
    def chunks_per_stage(self) -> int:
        return self._chunks

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        backward = (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT) if self.splits_backward else (Pass.BACKWARD,)
        order = [Action(Pass.FORWARD, m, c) for m in range(micro_batches) for c in range(self._chunks)]
        for m in range(micro_batches):
            order += [Action(what, m, c) for c in reversed(range(self._chunks)) for what in backward]
        return order


class StageClasses:
    """The classes of the stages of a job.

    Args:
        job: what is run; its schedule and numbers of micro-batches do not matter here.
        launching: what launching costs.

    Attributes:
        of: kind of each stage, named by the first stage of the kind.
        ports: messages of each pass of each part, in the order of the rows that send or receive them.
    """

    def __init__(self, job: JobFacts, launching: HostCosts) -> None:
        mesh = job.mesh
        parts = min(MICRO_BATCHES, mesh.micro_batches)  # the only one of an iteration makes gradients and adds to none
        two = replace(mesh, micro_batches=parts, batch_size=mesh.micro_batch_size * parts)
        self.job = job.running(_TwoMicroBatches(job.schedule), two)
        self._launching = picoseconds(issue_shares(job.step.trace, launching), "issuing an operator")
        self._rows = _PartOperators(job)
        self.ports = {
            (what, part): self._ports_of(what, part) for part in range(job.stages.count) for what in self._rows.passes
        }
        first: dict[Hashable, int] = {}
        self.of = [first.setdefault(self._key(stage), stage) for stage in range(mesh.stages)]

    def written(self, stage: int) -> StageClass:
        """What a stage runs."""
        writer = StageWriter(StageFacts(self.job, stage))
        made = writer.iterations[0]
        passes: dict[tuple[Pass, int, bool], WrittenFragment] = {}
        reductions: dict[int, WrittenFragment] = {}
        left = [sum(kind.chunk == chunk for kind in writer.kinds) for chunk in range(self.job.chunks)]
        at = 1  # after what is fetched
        for kind in writer.kinds:
            passes.setdefault((kind.what, kind.chunk, kind.final), WrittenFragment(made.fragments[at], made.start[at]))
            at += 1
            left[kind.chunk] -= 1
            if not left[kind.chunk]:
                reductions[kind.chunk] = WrittenFragment(made.fragments[at], made.start[at])
                at += 1
        return StageClass(
            writer, passes, reductions, WrittenFragment(made.fragments[at], made.start[at]), made.length
        )  # fmt: skip

    # --- what tells stages apart --------------------------------------------------------------------------------------

    def _key(self, stage: int) -> Hashable:
        job, rows = self.job, self._rows
        parts = job.parts(stage)
        grads = [g for part in parts for g in job.grads_of.get(part, ())]
        tied = tuple(
            (g.parameter, stage) for g in grads if {job.stage(p) for p in job.stages.parameters[g.parameter]} != {stage}
        )
        updates = np.flatnonzero(job.step.trace.operators.phase == Phase.OPTIMIZER)
        ticks = picoseconds(rows.seconds[updates] * job.stages.share[updates][:, parts].sum(axis=1), "the optimizer")
        return (tied, ticks.tobytes(), *(self._part_key(part, rows) for part in parts))

    def _part_key(self, part: int, rows: _PartOperators) -> Hashable:
        forward, backward = rows.of[part]
        seconds, first = rows.seconds, (forward[0] if len(forward) else 0)
        begin = backward[0] if len(backward) else 0
        grads = [(g.ready - begin, g.bytes, rows.weight_bytes[g.parameter]) for g in self.job.grads_of.get(part, ())]
        talks: list[tuple] = []
        columns = (seconds, rows.skips, self._launching)
        for _, b in rows.arriving[part]:
            talks.append((0, b.read - first, b.bytes, b.returned - begin if b.returned >= 0 else None))
        for _, b in rows.leaving[part]:
            talks.append((1, b.made - first, b.bytes, b.returned >= 0))
        return (
            tuple(grads), tuple(talks),
            *(column[own].tobytes() for own in (forward, backward) for column in columns),
            *((own - own[0] if len(own) else own).tobytes() for own in (forward, backward)),
            tuple(rows.talk[row] for own in (forward, backward) for row in own.tolist() if row in rows.talk),
        )  # fmt: skip

    # --- who talks to whom --------------------------------------------------------------------------------------------

    def _ports_of(self, what: Pass, part: int) -> tuple[MessagePort, ...]:
        rows = self._rows
        if what is Pass.FORWARD:
            events = [(b.read, 0, number, MessagePort(number, False, False)) for number, b in rows.arriving[part]]
            events += [(b.made, 1, number, MessagePort(number, False, True)) for number, b in rows.leaving[part]]
            return tuple(port for *_, port in sorted(events, key=lambda event: event[:3]))
        if what is Pass.WEIGHT_GRADIENT:
            return ()
        receives = [MessagePort(number, True, False) for number, b in rows.leaving[part] if b.returned >= 0]
        back = sorted((b.returned, number) for number, b in rows.arriving[part] if b.returned >= 0)
        return (*receives, *(MessagePort(number, True, True) for _, number in back))


class _PartOperators:
    """Operators of each part and what is known of each operator.

    Attributes:
        of: forward and backward operators of each part.
        seconds, skips: of each operator.
        talk: for operators beside which something is exchanged: what, seen from it.
        arriving, leaving: boundaries of each part, with their rows.
        weight_bytes: of each value.
    """

    def __init__(self, job: JobFacts) -> None:
        operators, stages = job.step.trace.operators, job.stages
        self.seconds, self.skips = np.array(job.seconds), np.array(job.skipped)
        self.passes = (Pass.FORWARD, Pass.BACKWARD)
        if job.schedule.splits_backward:
            self.passes = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)  # type: ignore[assignment]
        forward = operators.phase == Phase.FORWARD
        backward = (operators.phase == Phase.BACKWARD) | (operators.phase == Phase.RECOMPUTE)
        halves = [_by_part(stages.of, which, stages.count) for which in (forward, backward)]
        self.of = list(zip(*halves, strict=True))
        self.weight_bytes = job.step.trace.values.bytes().tolist()
        self.talk = _talk(job)
        self.arriving: list[list[tuple[int, Boundary]]] = [[] for _ in range(stages.count)]
        self.leaving: list[list[tuple[int, Boundary]]] = [[] for _ in range(stages.count)]
        for number, boundary in enumerate(stages.boundaries):
            if job.stage(boundary.source) != job.stage(boundary.target):
                self.arriving[boundary.target].append((number, boundary))
                self.leaving[boundary.source].append((number, boundary))


def _by_part(of: NDArray[np.int32], which: NDArray[np.bool_], count: int) -> list[NDArray[np.int64]]:
    """Rows of each part among those asked for, ascending."""
    rows = np.flatnonzero(which)
    order = np.argsort(of[rows], kind="stable")
    ends = np.searchsorted(of[rows][order], np.arange(count + 1))
    return [rows[order[a:b]] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _talk(job: JobFacts) -> dict[int, tuple]:
    """What is exchanged before and after operators, and what they wait for, seen from each."""
    issued: dict[int, int] = {}
    found: dict[int, list[tuple]] = {}
    for when, table in ((0, job.issued_before), (1, job.issued_after)):
        for row, numbers in table.items():
            for number in numbers:
                issued[number] = row
                found.setdefault(row, []).append((when, *job.exchanged[number], number in job.once))
    for row, numbers in job.needed_before.items():
        if row < len(job.phase):
            away = [
                (2, row - issued[n] if job.phase[issued[n]] == job.phase[row] else 0) for n in numbers if n in issued
            ]
            found.setdefault(row, []).extend(away)
    return {row: tuple(talk) for row, talk in found.items()}
