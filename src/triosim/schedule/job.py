"""The Job: the programs of all rank classes, assembled from the step, its times and the plan.

Ranks are numbered with the tensor axis fastest, then data, then pipeline, so that the peers that talk most sit next to
each other.  Ranks of one pipeline stage do the same work and form one class.

What a stage does for one micro-batch is the same for each, so it is written once, as a :class:`Fragment`, and repeated
for all micro-batches and iterations at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import BlockUseRecorder, BlockUses, ScheduledFragment, liveness
from triosim.partition.gradients import reduced_gradients
from triosim.partition.resolve import JobMesh
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER
from triosim.plan import Plan
from triosim.schedule._epilogue import LastPassRows, reductions, update
from triosim.schedule._stage import JobFacts, PartFacts, StageFacts
from triosim.schedule.actions import Pass, Schedule
from triosim.schedule.costs import ScheduleCosts as Costs
from triosim.schedule.crossing import Boundary
from triosim.schedule.fragments import Fragment, PlacedFragment, concatenate
from triosim.schedule.gathering import UngatheredUnits, missing
from triosim.schedule.host_copies import CopyWriter
from triosim.schedule.interleaving import in_place, pairs, places, reordered
from triosim.schedule.program import COMPUTE, COPY, DP, SEND, TP, Op, Program, of_iteration
from triosim.schedule.stages import Stages
from triosim.trace.tables import Category, Phase

_HALVES = {Pass.BACKWARD: (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)}
"""What a whole pass consists of."""


class PassKind(NamedTuple):
    """What tells one pass of a micro-batch through a chunk from another.

    Attributes:
        what, chunk: of the action.
        final: whether it is the last such pass of the iteration.
        needs: what has to be gathered in it.
    """

    what: Pass
    chunk: int
    final: bool
    needs: UngatheredUnits


@dataclass
class _FragmentedIteration:
    """The fragments of one iteration in order, and where they are.

    Attributes:
        fragments, micro_batch, start: what begins at which row and works on which micro-batch.
        length: rows.
        in_turn: fragments that are run in turn with the one after them -> where the rows of both go.
    """

    fragments: list[Fragment] = field(default_factory=list)
    micro_batch: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    length: int = 0
    in_turn: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def append(self, fragment: Fragment, micro_batch: int) -> int:
        """Put a fragment at the end; returns the row at which it begins."""
        self.fragments.append(fragment)
        self.micro_batch.append(micro_batch)
        self.start.append(self.length)
        self.length += len(fragment)
        return self.start[-1]

    def place(self) -> NDArray[np.int64]:
        """Where each row goes."""
        found = np.arange(self.length)
        for at, place in self.in_turn.items():
            found[self.start[at] : self.start[at] + len(place)] = self.start[at] + place
        return found

    def scheduled(self) -> list[ScheduledFragment]:
        """What the fragments use of memory, from where on."""
        found, moved = [], dict[tuple[int, int], BlockUses]()
        for at, (fragment, start, micro_batch) in enumerate(
            zip(self.fragments, self.start, self.micro_batch, strict=True)
        ):
            uses = fragment.uses
            for first in (at, at - 1):
                if first in self.in_turn:
                    place, begin = self.in_turn[first], self.start[first]
                    key = id(uses), id(place)  # micro-batches that do the same share what they use
                    uses = moved.setdefault(key, in_place(uses, place, start - begin))
                    start = begin
            found.append(ScheduledFragment(uses, start, micro_batch))
        return found


def programs(step: Step, costs: Costs, stages: Stages, schedule: Schedule, plan: Plan, mesh: JobMesh) -> list[Program]:
    """One program for each pipeline stage; see :func:`each_program`."""
    return list(each_program(step, costs, stages, schedule, plan, mesh))


def each_program(
    step: Step, costs: Costs, stages: Stages, schedule: Schedule, plan: Plan, mesh: JobMesh
) -> Iterator[Program]:
    """One program for each pipeline stage, written out when it is asked for.

    Args:
        step: one rank's share of a micro-batch.
        costs: what it takes.
        stages: the parts of the model, as many for each stage as the schedule has chunks.
        schedule: in which order a stage runs micro-batches.
        plan, mesh: how the work is divided.

    Raises:
        PlanError: data parallelism is asked for but the trace has no gradients to reduce, or the schedule cannot do it.
    """
    grads = reduced_gradients(step.trace, plan.stack) if plan.training else []
    if plan.training and mesh.replicas > 1 and not grads and np.any(step.trace.operators.phase == Phase.BACKWARD):
        raise PlanError(
            f"dp {mesh.replicas}: no gradient of a parameter was found in {step.trace.meta.workload!r}, so there is "
            "nothing to reduce: record the step with triosim trace record, or import it with its execution trace"
        )
    if step.replication.rooted:
        plan = replace(plan, overlap=False)  # one process waits for every transfer
    job = JobFacts(step, costs, stages, schedule, plan, mesh, grads)
    if schedule.splits_backward:
        away = job.replication.away
        whole = away[0].name if away else job.replication.name if job.modules else ""
        if whole:
            raise PlanError(
                f"schedule {plan.schedule} splits the backward in two, and {whole} is bound to whole ones: use "
                "1f1b or interleaved-1f1b, or leave it out"
            )
    kinds = ((True, False) if mesh.replicas > 1 else (True,)) if step.replication.rooted else (None,)
    written = [StageWriter(StageFacts(job, stage, root)) for stage in range(mesh.stages) for root in kinds]
    return (stage.program() for stage in written)  # tags are known when all stages have been written


class StageWriter:
    """Writes the fragments of one stage and puts them in order.

    Attributes:
        of: the stage.
        kinds: of each action.
        iterations: each of them.
        scattered: parts, one for each tensor-parallel rank, in which a value is sent to another stage.
    """

    def __init__(self, of: StageFacts) -> None:
        self.of, self.job, self.plan, self.mesh = of, of.job, of.plan, of.mesh
        whole = "sequence" not in self.plan.parallelism  # else every rank has its part of the sequence anyway
        scatters = self.plan.stack is not None and self.plan.stack.scattered_transfers and whole
        self.scattered = self.mesh.size("tp") if scatters else 1
        self.builder = of.new()
        self.skips = np.array(of.skipped, bool)
        self.done: dict[int, int] = {}  # exchange -> instruction, in the fragment being written
        self.fetches: dict[int, int] = {}  # storage -> instruction that fetches it
        self.ahead: dict[int, list[int]] = {}  # forward operator -> gathers of parameters that it is the first to read
        self.kinds = self._kinds()
        self.written: dict[tuple[bool, bool], _FragmentedIteration] = {}
        self.iterations = [self._numbered(number) for number in range(self.plan.iterations)]

    def _numbered(self, number: int) -> _FragmentedIteration:
        """An iteration; later ones fetch only what is new in each, and not in all gradients are reduced."""
        kind = (not number or not self.plan.places, not (number + 1) % self.job.replication.every)
        if kind not in self.written:
            self.written[kind] = self._iteration(*kind)
        return self.written[kind]

    # --- order --------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """All iterations, and what the first keeps in memory."""
        stride = len(self.job.tags)
        placed: list[PlacedFragment] = []
        end = 0
        for number in range(self.plan.iterations):
            iteration, begin = self.iterations[number], end
            for fragment, micro_batch in zip(iteration.fragments, iteration.micro_batch, strict=True):
                tag = (number * self.mesh.micro_batches + micro_batch) * stride
                placed.append(PlacedFragment(fragment, begin, micro_batch, number, tag))
            end += iteration.length
        made = concatenate(self.of.new().build(), placed)
        if any(iteration.in_turn for iteration in self.iterations):
            begins = np.cumsum([0, *(iteration.length for iteration in self.iterations)]).tolist()
            made = reordered(
                made, np.concatenate([it.place() + at for it, at in zip(self.iterations, begins, strict=False)])
            )
        held = liveness(self.of.blocks.build(), self.iterations[0].scheduled(), self.mesh.micro_batches, end)
        places = tuple(self.of.places)
        return replace(
            made, places=places, lifetimes=held.at(MemoryLocation.DEVICE),
            host_bytes=held.at(MemoryLocation.HOST).peak_bytes(),
            nvme_bytes=held.at(MemoryLocation.NVME).peak_bytes(),
        )  # fmt: skip

    def _iteration(self, first: bool, reduces: bool) -> _FragmentedIteration:
        """One iteration: what is fetched, the schedule's actions, and the optimizer.

        What reduces the gradients of a chunk comes right after its last backward, for it runs beside other chunks.
        """
        of, made = self.of, _FragmentedIteration()
        made.append(self._fetch(first), 0)
        written = {kind: self._run(kind) for kind in sorted(set(self.kinds), key=lambda k: (k.final, k.what, k.chunk))}
        final = {part.chunk: LastPassRows(len(self.job.phase)) for part in of.parts}
        left = [sum(kind.chunk == part.chunk for kind in self.kinds) for part in of.parts]
        reduced: dict[int, int] = {}
        combined = set(pairs(of.actions)) if self.job.trains and self.job.schedule.combines else set()
        in_turn: dict[tuple[PassKind, PassKind], NDArray[np.int64]] = {}
        for number, (action, kind) in enumerate(zip(of.actions, self.kinds, strict=True)):
            fragment, part = written[kind], of.parts[action.chunk]
            if number in combined:
                both = kind, self.kinds[number + 1]
                if both not in in_turn:
                    in_turn[both] = places(*(written[one].rows for one in both))
                made.in_turn[len(made.fragments)] = in_turn[both]
            start = made.append(fragment, action.micro_batch)
            if kind.final:
                final[part.chunk].add(start, fragment, self.job.once)
            left[part.chunk] -= 1
            if not left[part.chunk] and reduces:
                offset = made.length
                following, known = reductions(of, part, offset, final[part.chunk])
                reduced.update(known)
                made.append(following, self.mesh.micro_batches - 1)
        last = update(of, made.length, final, reduced, self._fetched_for)
        made.append(last, self.mesh.micro_batches - 1)
        return made

    def _kinds(self) -> list[PassKind]:
        """The kind of each action."""
        actions, before = self.of.actions, [list[bool]() for _ in self.of.parts]
        last = {(half, a.chunk): number for number, a in enumerate(actions) for half in _HALVES.get(a.what, (a.what,))}
        kinds = []
        for number, action in enumerate(actions):
            needs, past = UngatheredUnits(), before[action.chunk]
            past.append(action.what is not Pass.FORWARD)
            if self.of.parts[action.chunk].units:
                needs = missing(past, len(past) - 1, self.job.replication.regathers, self.job.stages.count > 1)
            ends = action.what is not Pass.FORWARD or not self.job.trains
            half = _HALVES.get(action.what, (action.what,))[0]
            kinds.append(PassKind(action.what, action.chunk, ends and last[half, action.chunk] == number, needs))
        return kinds

    # --- one micro-batch ----------------------------------------------------------------------------------------------

    def _run(self, kind: PassKind) -> Fragment:
        """One pass of a micro-batch through a part."""
        job, builder, part = self.job, self.of.new(), self.of.parts[kind.chunk]
        backward = kind.what is not Pass.FORWARD
        self.builder, self.done, recorder, alone = builder, {}, BlockUseRecorder(), job.stages.count == 1
        units = (
            self.of.gathering(part, builder, recorder, backward, kind.needs, backward and alone) if part.units else None
        )
        copies = part.host_copies[backward] + (self.of.sent if backward and kind.final else [])
        copy_writer = CopyWriter(
            copies,
            backward,
            builder,
            recorder,
            self.of.blocks,
            self.of.places,
            self.of.stream(COPY),
        )
        at, arrivals = np.full(len(job.phase), -1, np.int64), {}
        previous, end, left = -1, 0, dict[int, float]()
        self.part = part
        waits = self._receive_gradients(part) if kind.what in (Pass.BACKWARD, Pass.INPUT_GRADIENT) else []
        rows = np.array(part.rows[kind.what], np.int64)
        marked = np.ones(len(rows), bool)
        if not self.fetches:
            marked = self._marked(part, backward, copy_writer, units.rows() if units else ())[rows]
        for place in [*np.flatnonzero(marked).tolist(), len(rows)]:
            if end < place:  # nothing happens next to these
                between = rows[end:place]
                runs = ~self.skips[between]
                ran = np.cumsum(runs)
                at[between] = np.where(ran > 0, len(builder) - 1 + ran, previous)
                if ran[-1]:
                    builder.compute(between[runs], job.takes_s[between[runs]], waits)
                    previous, waits = len(builder) - 1, []
            end = place + 1
            if place == len(rows):
                break
            row = int(rows[place])
            before, share = waits, 1.0
            waits = []
            for boundary in part.arriving.get(row, ()):
                arrivals[boundary.storage] = self._receive(boundary, False)
                before = [*before, arrivals[boundary.storage]]
            for number in job.issued_before.get(row, ()):
                self._exchange(number, row, [*before, previous])
            if not backward and row in self.ahead:
                before = [*before, *self.ahead[row]]
            if row in part.in_pieces and part.in_pieces[row][0] in self.done:
                previous = self._begin_pieces(*part.in_pieces[row], before, left)
                before = []
            if row in job.needed_before:
                before = before + [self.done[n] for n in job.needed_before[row] if n in self.done]
            if self.fetches:
                before = before + self._fetched_for(row)
            if units is not None:
                units.before(row, previous)
            before = before + copy_writer.before(row, previous)
            if self.of.skipped[row]:
                waits = before
            else:
                share = left.get(row, self._first_piece(row))
                seconds = job.seconds[row] * share
                previous = builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=before)
            at[row] = previous
            copy_writer.after(row, previous)
            if units is not None:
                units.after(row)
            for number in job.issued_after.get(row, ()):
                if number not in job.once or kind.final:
                    self._exchange(number, row, [previous])
                    if share < 1 and row not in left:
                        at[row] = previous = self._end_pieces(number, row, 1 - share)
            going = (part.returning if backward else part.leaving).get(row, ())
            if going:
                done = [self.done[n] for n in job.issued_after.get(row, ()) if n in self.done]
                done += [previous] if previous >= 0 else []
                for boundary in going:
                    scattered = part.scattered(boundary) if backward else ()
                    self._send(boundary, backward, done + [self.done[n] for n in scattered if n in self.done])
        if units is not None:
            units.finish(at, alone if backward else job.replication.regathers)
        uses = recorder.build(job.storages.uses(part.rows[kind.what], at, arrivals))
        return Fragment(builder.build(), at, uses, self.done, copy_writer.sent)

    def _marked(
        self, part: PartFacts, backward: bool, copy_writer: CopyWriter, gathers: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Operators next to which something else than operators happens."""
        marked = self.job.around.copy()
        crossing = part.returning if backward else part.leaving
        products = [row for _, rows in part.in_pieces.values() for row in rows]
        waits = () if backward else self.ahead
        for rows in (part.arriving, crossing, gathers, products, waits, *copy_writer.rows()):
            marked[list(rows)] = True
        return marked

    def _begin_pieces(
        self, number: int, rows: Sequence[int], before: list[int], left: dict[int, float]
    ) -> int:  # fmt: skip
        """Run the pieces of some products, beside which others are gathered; ``left`` is told what is left of each."""
        share, last = 1 / self.job.pieces[number], -1
        for row in rows:
            seconds = self.job.seconds[row] * (1 - share)
            last = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=before)
            left[row], before = share, []
        return last

    def _first_piece(self, row: int) -> float:
        """The part of a product after which what it makes begins to be scattered, 1 for all of it."""
        numbers = [n for n in self.job.issued_after.get(row, ()) if self.job.exchanged[n][1] == REDUCE_SCATTER]
        return min((1 / self.job.pieces[n] for n in numbers if self.job.pieces[n] > 1), default=1.0)

    def _end_pieces(self, number: int, row: int, share: float) -> int:
        """Run the other pieces of a product beside their scattering; what copy engines bring is added up after it."""
        last = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=self.job.seconds[row] * share)
        if self.job.copied[number]:
            size, what, _ = self.job.exchanged[number]
            touched = size * (1 + 1 / self.job.pieces[number])
            last = self.done[number] = self.builder.add(
                Op.COMPUTE, COMPUTE, operator=row, seconds=touched / 2 * self.job.copy_s_per_byte, what=what,
                before=[self.done[number]],
            )  # fmt: skip
        return last

    def _exchange(self, number: int, row: int, after: list[int]) -> None:
        size, what, axis = self.job.exchanged[number]
        stream = self.of.stream(self.job.exchange_stream[number])
        before = [instruction for instruction in after if instruction >= 0]
        if self.job.copied[number] and what == ALL_GATHER:  # each rank puts its part where the others find it
            seconds = size / self.job.pieces[number] * self.job.copy_s_per_byte
            before = [self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, what=what, before=before)]
        self.done[number] = self.builder.add(
            Op.COLLECTIVE, stream, operator=row, size=size, what=what, axis=axis, before=before
        )

    def _send(self, b: Boundary, back: bool, before: list[int]) -> None:
        """Send a boundary value to the stage that reads it, or (``back``) its gradient to the stage that made it."""
        self.builder.add(
            Op.SEND,
            self.of.stream(SEND),
            operator=b.returned if back else b.made,
            size=-(-b.bytes // self.scattered),
            axis=self.mesh.pipeline_axis,
            peer=self.part.stage_of(b.source if back else b.target),
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
            before=before,
        )

    def _receive(self, b: Boundary, back: bool) -> int:
        """The arrival of what :meth:`_send` sends, or the gathering of its parts."""
        operator = b.returned if back else b.made
        arrived = self.builder.add(
            Op.RECEIVE,
            -1 if self.plan.overlap else COMPUTE,
            operator=operator,
            size=-(-b.bytes // self.scattered),
            axis=self.mesh.pipeline_axis,
            peer=self.part.stage_of(b.target if back else b.source),
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
        )
        if self.scattered == 1:
            return arrived
        return self.builder.add(
            Op.COLLECTIVE, self.of.stream(TP), operator=operator, size=b.bytes, what=ALL_GATHER,
            axis=self.mesh.row("tp"), before=[arrived],
        )  # fmt: skip

    def _receive_gradients(self, part: PartFacts) -> list[int]:
        """Gradients of what a part sent; its backward begins when they are there."""
        sent = [b for boundaries in part.leaving.values() for b in boundaries if b.returned >= 0]
        return [self._receive(b, True) for b in sent]

    # --- what starts elsewhere ----------------------------------------------------------------------------------------

    def _fetch(self, first: bool) -> Fragment:
        """Bring what starts elsewhere: parameters and states once, inputs in every iteration."""
        self.builder, self.fetches = self.of.new(), {}
        wanted = {name: p for name, p in self.plan.places.items() if first or name in ("input", "label")}
        if wanted:
            self._fetch_from(wanted)
        self.ahead = self._gather_ahead() if self.job.gathers_ahead else {}
        return Fragment(self.builder.build())

    def _gather_ahead(self) -> dict[int, list[int]]:
        """Gather what the iteration before has updated, in the order in which the forward reads it.

        Gatherings follow each other from the begin of the iteration on; Megatron-Core launches each when the forward
        reaches what the one before has brought, which ends no earlier.

        Returns:
            For the first forward operator of each part that reads of a group, the rows of the iteration that gather it.
        """
        gathered = self.of.gather_parameters(self.builder, self.of.stream(DP))
        by_storage = {self.job.storage[parameter]: row for parameter, row in gathered.items()}
        found: dict[int, list[int]] = {}
        for part in self.of.parts:
            waited = set[int]()
            for row in part.rows[Pass.FORWARD]:
                storages = {self.job.storage[value] for value in self.job.inputs[row].tolist()}
                reads = {by_storage[storage] for storage in storages & by_storage.keys()}
                if reads - waited and not self.of.skipped[row]:
                    found[row] = [of_iteration(gather) for gather in sorted(reads - waited)]
                    waited |= reads
        return found

    def _fetch_from(self, wanted: dict[str, str]) -> None:
        values, operators = self.job.step.trace.values, self.job.step.trace.operators
        size = values.storage_bytes()
        category, of = values.category.tolist(), values.of.tolist()
        written: set[int] = set()
        mine = set(self.of.parameters)
        rows = [part.rows[what] for what in (Pass.FORWARD, Pass.BACKWARD) for part in self.of.parts]
        for row in (*(row for part in rows for row in part), *self.of.optimizer):
            for value in self.job.inputs[row].tolist():
                storage = self.job.storage[value]
                place = wanted.get(Category(category[value]).name.lower())
                if place is None or storage in written or storage in self.fetches:
                    continue
                owner = of[value] if category[value] == Category.OPTIMIZER_STATE else value
                if owner not in self.job.stages.parameters or owner in mine:
                    where = self.of.places.setdefault(place, len(self.of.places))
                    fetch = self.builder.add(
                        Op.FETCH, self.of.stream(COPY), operator=row, size=int(size[storage]), peer=where
                    )
                    self.fetches[storage] = fetch
            written.update(self.job.storage[v] for v in operators.outputs[row].tolist())

    def _fetched_for(self, row: int) -> list[int]:
        """The fetches that an operator needs, as rows of the iteration."""
        storages = {self.job.storage[v] for v in self.job.inputs[row].tolist()}
        return [of_iteration(self.fetches[s]) for s in storages if s in self.fetches]
