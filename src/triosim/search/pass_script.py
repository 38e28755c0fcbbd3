"""Scripts of passes: what a pass of a stage does in order, whatever its operators and transfers take.

What :class:`triosim.schedule.pass_writer.MicroBatchPassWriter` writes operator by operator is said here from event to
event: operators that are run one after another, and what is sent, received, gathered or reduced between them.
Parameters that are gathered and gradients that are scattered come from the same
:class:`triosim.schedule.gathering.Gathering`.  A script is written once for all sizes of a micro-batch;
:mod:`triosim.search.contracted_passes` runs it with what everything takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.memory.liveness import BlockUseRecorder
from triosim.partition.gradients import Gradient, total_bytes
from triosim.schedule._stage import PartFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.crossing import Boundary
from triosim.schedule.gathering import Gathering, UngatheredUnits
from triosim.schedule.program import COMPUTE, DP, Op, ProgramBuilder
from triosim.search.isolated_transfers import Call
from triosim.search.operator_chain import leading_calls, leads
from triosim.search.stage_classes import MessagePort

COMPUTE_STREAM, DATA_STREAM, SEND_STREAM, REPLICA_STREAM, EARLY_STREAM, READY_STREAM, TIED_STREAM = range(7)
STREAMS = 7
"""Streams of a worker: what it computes, the data axis, its sends, between groups of replicas, collectives that begin
before their pass, and two that tell the update that gradients are there, and those that another stage has too: they
hold up none of the others."""


class GradientsReady(NamedTuple):
    """Signal to the optimizer that the gradients of a chunk are complete."""

    chunk: int


class TiedGradientReady(NamedTuple):
    """Signal to the optimizer that the gradient of a parameter that another stage shares is complete."""

    chunk: int
    parameter: int


class TiedGradientExchange(NamedTuple):
    """Transfer of the gradient of a parameter that two stages share (a tied embedding)."""

    parameter: int
    source: int
    target: int
    bytes: int


class LocalTransfer(NamedTuple):
    """A transfer of a stage to itself beside its passes."""


PortTarget = MessagePort | GradientsReady | TiedGradientReady | TiedGradientExchange | LocalTransfer


class StepKind(IntEnum):
    """Steps of a script, with what their two numbers mean."""

    RECEIVE = 0
    """Something has arrived."""
    LEAD = 1
    """A collective (number of the chain) that waits for no operator of the pass."""
    CALL = 2
    """A collective of another axis than that which divides operators (row of the transfers); it waits for ``late``."""
    COPY = 3
    """What is gathered is copied out, or in: ticks, and whether a gap follows."""
    PLAY = 4
    """Operators begin to run one after another: places of the first and after the last."""
    WORK = 5
    """Those between two places of them have run."""
    SEND = 6
    """What is sent (row of the transfers) after the operator before a place."""
    FOLLOW = 7
    """Collectives of the next operators begin at once: the place of the first."""
    ASIDE = 8
    """Collectives of the next pass that wait for nothing follow upon this one, if the stage has any."""
    REDUCE = 9
    """All gradients are there but for those that are still exchanged along the axis that divides operators."""
    READY = 10
    """Something else is told that gradients are there."""


NOTHING, COMPLETE = -1, -2
"""What steps wait for besides others: nothing, and the last row before gradients are reduced."""


@dataclass(frozen=True, eq=False)
class PassScript:
    """A pass of a micro-batch through a chunk, with the reductions after the last.

    Attributes:
        rows: its operators, in order, int32.
        steps: kind, two numbers, stream and row of ``ports`` of each (-1 for none), shape ``(steps, 5)``, int64.
        before: earlier steps that each waits for, the work until where it is for :attr:`StepKind.REDUCE`, int32.
        late: collectives (numbers of the chain) whose bytes are part of what each sends, or reduces, int32.
        ports: where steps lead that send or receive.
        transfers: collectives of other axes, and rows of the boundaries of what is sent.
        called: collectives (numbers of the chain) that its operators call.
        once: those of complete gradients, int32.
        final: whether gradients are complete then.
        fine: whether work is cut where what is done beside it changes.
        backward: whether it goes backward.
    """

    rows: NDArray[np.int32]
    steps: NDArray[np.int64]
    before: Ragged
    late: Ragged
    ports: tuple[PortTarget, ...]
    transfers: tuple[Call | int, ...]
    called: tuple[int, ...]
    once: NDArray[np.int32]
    final: bool
    fine: bool
    backward: bool

    @cached_property
    def columns(self) -> tuple[Any, ...]:
        """What C++ reads of it."""
        return self.rows, self.steps, self.before, self.late, self.once, self.final, self.fine


class StageScripts:
    """The scripts of the passes of a stage, and what else of it is the same for all sizes of a micro-batch.

    Args:
        facts: of the stage, in the sizes of any micro-batch.

    Attributes:
        boundaries: row of each boundary, by its identity.
    """

    def __init__(self, facts: StageFacts) -> None:
        self.facts = facts
        self.boundaries = {id(b): number for number, b in enumerate(facts.job.stages.boundaries)}
        self._known: dict[tuple[int, Pass, bool, UngatheredUnits], PassScript] = {}

    @cached_property
    def calling(self) -> Hashable:
        """Equal for stages between whose operators collectives are called, and waited for, alike."""
        job = self.facts.job
        tables = (job.issued_after, job.issued_before, job.needed_before)
        return *(tuple((row, *calls) for row, calls in table.items()) for table in tables), frozenset(job.once)

    @cached_property
    def leads(self) -> bool:
        """Whether a pass calls a collective before anything that it receives is there."""
        return any(leads(self.facts.job, rows) for part in self.facts.parts for rows in part.rows.values())

    def of(self, chunk: int, what: Pass, final: bool, needs: UngatheredUnits) -> PassScript:
        """That of a pass of a chunk, ``final`` where it is the last of its kind, ``needs`` what is to be gathered."""
        key = chunk, what, final, needs
        if key not in self._known:
            self._known[key] = _ScriptWriter(self, self.facts.parts[chunk], what, final, needs).script()
        return self._known[key]


class _ScriptWriter:
    """Writes one script."""

    def __init__(self, of: StageScripts, part: PartFacts, what: Pass, final: bool, needs: UngatheredUnits) -> None:
        self.of, self.part, self.final, self.job = of, part, final, part.job
        self.backward = what is not Pass.FORWARD
        self.rows = part.rows[what]
        self.index = {row: place for place, row in enumerate(self.rows)}
        self.receives: dict[int, list[int]] = {}  # place of the operator that needs it -> steps
        self.going = part.returning if self.backward else part.leaving
        self.ended = {0: NOTHING}  # place after which a stretch of work ended -> its step
        self.builder = ProgramBuilder(of.facts.stage, of.facts.ranks)
        self.written: list[int] = []  # rows of the builder as steps
        self.units: Gathering | None = None
        if part.units:
            scatters = self.backward and self.job.stages.count == 1
            self.units = of.facts.gathering(part, self.builder, BlockUseRecorder(), self.backward, needs, scatters)
        self.fine = final or self.units is not None
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.before: list[list[int]] = []
        self.late: dict[int, Sequence[int]] = {}
        self.ports: dict[PortTarget, int] = {}
        self.transfers: dict[Call | int, int] = {}

    def script(self) -> PassScript:
        """All of it."""
        self._receive()
        groups = self._groups() if self.final else []
        ready = [max((self.index[g.ready] + 1 for g in group if g.ready in self.index), default=0) for group in groups]
        starts = self._starts()
        for first, last in pairwise([*starts, len(self.rows)]):
            self._range(first, last, ready)
        if self.final:
            self._reduce(groups, ready)
        late = [self.late.get(step, ()) for step in range(len(self.steps))]
        return PassScript(
            np.array(self.rows, np.int32), np.array(self.steps, np.int64).reshape(-1, 5),
            Ragged.of(self.before, np.int32), Ragged.of(late, np.int32), tuple(self.ports), tuple(self.transfers),
            tuple(self._called()), np.array(sorted(self.job.once) if self.final else [], np.int32), self.final,
            self.fine, self.backward,
        )  # fmt: skip

    def _step(
        self, kind: StepKind, one: int = 0, two: int = 0, stream: int = -1, port: PortTarget | None = None,
        before: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """One more step; returns its number."""
        at = -1 if port is None else self.ports.setdefault(port, len(self.ports))
        self.steps.append((int(kind), one, two, stream, at))
        self.before.append([step for step in before if step != NOTHING])
        return len(self.steps) - 1

    def _called(self) -> list[int]:
        """Collectives that operators call."""
        called = [
            call for row in self.rows for table in (self.job.issued_before, self.job.issued_after)
            for call in table.get(row, ())
        ]  # fmt: skip
        return called if self.final else [call for call in called if call not in self.job.once]

    def _groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together, but for those that are scattered unit by unit."""
        if self.job.sharing == 1:
            return []
        gathered = self.job.modules if self.part.units else None
        groups = self.part.groups()
        return [group for group in groups if gathered is None or group[0].parameter not in gathered]

    def _receive(self) -> None:
        if self.backward:
            boundaries = [(0, b) for own in self.part.leaving.values() for b in own if b.returned >= 0]
        else:
            boundaries = [(self.index[row], b) for row, own in sorted(self.part.arriving.items()) for b in own]
        for place, boundary in boundaries:
            step = self._step(StepKind.RECEIVE, port=self._port(boundary, sends=False))
            self.receives.setdefault(place, []).append(step)

    def _port(self, boundary: Boundary, sends: bool) -> MessagePort:
        return MessagePort(self.of.boundaries[id(boundary)], self.backward, sends)

    def _starts(self) -> list[int]:
        """Places where work begins anew, as something is gathered or scattered there."""
        begins = {0}
        if self.units is not None:
            begins |= {self.index[row] for row in {self.units.prefetch_at, *self.units.begins} - {-1}}
            begins |= {self.index[row] + 1 for row in self.units.ends} - {len(self.rows)}
        return sorted(begins)

    def _range(self, first: int, last: int, ready: Sequence[int]) -> None:
        """Work between two places at which parameters are gathered, or all of it."""
        if self.units is not None:
            self.units.before(self.rows[first], len(self.builder) - 1)
            self._take_over()
        self._step(StepKind.PLAY, first, last)
        marks = {last, *(place for place in (*ready, *self.receives) if first < place < last)}
        events = [*self.going, *(self.units.ends if self.units is not None else ())]
        marks |= {self.index[row] + 1 for row in events if first <= self.index[row] < last}
        before, place = [] if first else self._lead(last), first
        for mark in sorted(marks):
            before += self.receives.get(place, ())
            step = self._step(StepKind.WORK, place, mark, port=LocalTransfer(), before=before)
            self.ended[mark], before, place = step, [], mark
            if self.units is not None:
                self._step(StepKind.FOLLOW, mark)
                self.written.append(step)
                self.builder.add(Op.COMPUTE, COMPUTE, operator=self.rows[mark - 1])
                self.units.after(self.rows[mark - 1])
                self._take_over()
            self._send(mark)
        if self.fine and last == len(self.rows):
            self._step(StepKind.ASIDE, port=LocalTransfer(), before=[self.ended[last]])

    def _lead(self, last: int) -> list[int]:
        """Collectives that wait for no operator of the pass; returns what its work waits for."""
        step = NOTHING
        for call, waits in leading_calls(self.job, self.rows[:last], self.final):
            before = [step, *(self.receives.get(0, ()) if waits else ())]
            step = self._step(StepKind.LEAD, call, port=LocalTransfer(), before=before)
        return [step] if step != NOTHING else []

    def _take_over(self) -> None:
        """What the units have written."""
        for number in range(len(self.written), len(self.builder)):
            op, stream, _, _, _, seconds, size, what, axis, *_ = self.builder.row(number)
            before = [self.written[row] for row in self.builder.before(number)]
            if op == Op.COMPUTE:
                step = self._step(StepKind.COPY, int(picoseconds(seconds, "a copy")), int(seconds > 0), before=before)
            else:
                on = COMPUTE_STREAM if stream == COMPUTE else DATA_STREAM if stream == DP else REPLICA_STREAM
                step = self._call((what, size, axis), on, before)
            self.written.append(step)

    def _call(self, call: Call, stream: int, before: Sequence[int]) -> int:
        """One more collective of another axis than that which divides operators."""
        return self._step(StepKind.CALL, self._transfer(call), 0, stream, before=before)

    def _transfer(self, what: Call | int) -> int:
        return self.transfers.setdefault(what, len(self.transfers))

    def _send(self, mark: int) -> None:
        row = self.rows[mark - 1] if mark else -1  # of a part none of whose operators has a backward there is no row
        for boundary in self.going.get(row, ()):
            port = self._port(boundary, sends=True)
            sent = self._transfer(port.boundary)
            step = self._step(StepKind.SEND, sent, mark, port=port, before=[self.ended[mark]])
            self.late[step] = self.job.issued_after.get(row, ())

    def _reduce(self, groups: Sequence[Sequence[Gradient]], ready: Sequence[int]) -> None:
        """What follows the last backward of a chunk, and what the update waits for."""
        job, facts = self.job, self.of.facts
        self._step(StepKind.REDUCE, before=[self.ended[len(self.rows)]])
        reduced: dict[int, int] = {}
        if self.units is not None and job.stages.count > 1:
            self.units = facts.gathering(self.part, self.builder, BlockUseRecorder(), True, UngatheredUnits(), False)
            for number, unit in enumerate(self.part.units):
                if unit.scatter_bytes:
                    row = self.units.reduce(number, max(unit.backward[1], -1))
                    self._take_over()
                    reduced.update(dict.fromkeys(unit.gradients, self.written[row]))
        for group, place in zip(groups, ready, strict=True):
            storages = {gradient.storage for gradient in group}
            exchanged = [call for call in sorted(job.once) if job.exchanged_storage(call) in storages]
            before, stream, step = [self.ended[place]], DATA_STREAM, NOTHING
            for what, axis, parts in job.reductions(group[0].parameter):
                step = self._call((what, -(-total_bytes(group) // parts), axis), stream, before)
                if stream == DATA_STREAM:
                    self.late[step] = exchanged
                before, stream = [step], REPLICA_STREAM
            if step != NOTHING:
                reduced.update(dict.fromkeys(storages, step))
        away = {gradient.storage for gradient in self.part.grads if facts.elsewhere(gradient)}
        waits = [step for storage, step in reduced.items() if storage not in away]
        chunk = self.part.chunk
        self._step(StepKind.READY, stream=READY_STREAM, port=GradientsReady(chunk), before=[COMPLETE, *waits])
        for gradient in self.part.grads:
            if gradient.storage in away:
                port = TiedGradientReady(chunk, gradient.parameter)
                before = [reduced.get(gradient.storage, COMPLETE)]
                self._step(StepKind.READY, stream=TIED_STREAM, port=port, before=before)
