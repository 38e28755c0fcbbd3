"""The Job: the programs of all rank classes, assembled from the step, its times and the plan.

Ranks are numbered with the tensor axis fastest, then data, then pipeline, so that the peers that talk most sit next to
each other.  Ranks of one pipeline stage do the same work and form one class.

What a stage does for one micro-batch is the same for each, so it is written once, as a :class:`Piece`, and laid out for
all micro-batches and iterations at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.errors import PlanError
from triosim.memory.lifetimes import Lifetimes
from triosim.parallelism._stage import JobFacts, StageFacts
from triosim.parallelism._tail import Tail
from triosim.parallelism.costs import Costs as Costs
from triosim.parallelism.gathered import Spent, gathered_lifetimes
from triosim.parallelism.gathering import Marks, Missing, missing
from triosim.parallelism.gradients import gradients, total_bytes
from triosim.parallelism.occupancy import Occupancy, Ran, Spell
from triosim.parallelism.offload import HOST as HOST_PLACE
from triosim.parallelism.offload import Shuttle, host_bytes, on_host
from triosim.parallelism.pieces import Piece, Placed, lay_out
from triosim.parallelism.program import AXES, COMPUTE, COPY, SEND, TP, Op, Program
from triosim.parallelism.schedule import Turn
from triosim.parallelism.sharded import resident
from triosim.parallelism.stages import Boundary, Stages
from triosim.parallelism.step import Step
from triosim.plan import Mesh, Plan
from triosim.workload.trace import Category, Phase

PP_AXIS = AXES.index("pp")
FETCH, TAIL = "fetch", "tail"


class Kind(NamedTuple):
    """What tells one forward or backward of a stage from another.

    Attributes:
        backward: which of the two.
        final: whether it is the last turn of the iteration.
        needs: what has to be gathered in it.
    """

    backward: bool
    final: bool
    needs: Missing


def programs(step: Step, costs: Costs, stages: Stages, plan: Plan, mesh: Mesh) -> list[Program]:
    """One program for each pipeline stage.

    Raises:
        PlanError: data parallelism is asked for but the trace has no gradients to reduce.
    """
    grads = gradients(step.trace) if plan.training else []
    if plan.training and mesh.dp > 1 and not grads and np.any(step.trace.operators.phase == Phase.BACKWARD):
        raise PlanError(
            f"dp {mesh.dp}: no gradient of a parameter was found in {step.trace.meta.workload!r}, so there is nothing "
            "to reduce: record the step with triosim trace record, or import it together with its execution trace"
        )
    job = JobFacts(step, costs, stages, plan, mesh, grads)
    written = [_Stage(StageFacts(job, stage)) for stage in range(stages.count)]
    return [stage.program() for stage in written]  # tags are known when all stages have been written


class _Stage:
    """Writes the pieces of one stage and lays them out."""

    def __init__(self, of: StageFacts) -> None:
        self.of, self.job, self.plan, self.mesh = of, of.job, of.plan, of.mesh
        self.builder = of.new()
        self.done: dict[int, int] = {}  # exchange -> instruction, in the piece being written
        self.fetches: dict[int, int] = {}  # storage -> instruction that fetches it
        self.first = self._write(first=True)
        # Later iterations fetch only what is new in each.
        self.later = self._write(first=False) if self.plan.places and self.plan.iterations > 1 else self.first

    # --- layout -------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """All iterations, and what the first keeps in memory."""
        last_micro_batch, stride = self.mesh.micro_batches - 1, len(self.job.tags)
        placed: list[Placed] = []
        spells: list[Spell] = []
        spent: list[Spent] = []
        end = 0

        def place(piece: Piece, base: int, begin: int, micro_batch: int, iteration: int) -> None:
            tag = (iteration * self.mesh.micro_batches + micro_batch) * stride
            placed.append(Placed(piece, base, begin, micro_batch, iteration, tag))

        for iteration in range(self.plan.iterations):
            pieces = self.later if iteration else self.first
            begin = last = end
            place(pieces[FETCH], begin, begin, 0, iteration)
            end += len(pieces[FETCH])
            for number, turn in enumerate(self.of.turns):
                piece, last = pieces[self._kind(number, turn)], end
                place(piece, last, begin, turn.micro_batch, iteration)
                if iteration == 0:
                    spells.append(Spell(turn.backward, turn.micro_batch, last, piece.ran))
                    spent.append(Spent(turn.backward, last, last + len(piece) - 1, piece.ran.at, piece.marks))
                end += len(piece)
            tail = pieces[TAIL]
            place(tail, last, begin, last_micro_batch, iteration)
            end += len(tail)
            if iteration == 0:
                optimized = np.where(tail.ran.at >= 0, tail.ran.at + last, -1)
                spent.append(Spent(True, last, end - 1, None, tail.marks))
        made = lay_out(self.of.new().build(), placed)
        lifetimes = self._lifetimes(spells, spent, optimized, end)
        return replace(made, places=tuple(self.of.places), lifetimes=lifetimes, host_bytes=self._host_bytes())

    def _host_bytes(self) -> int:
        """What a rank keeps in host memory."""
        if not self.plan.offload:
            return 0
        turns = [turn.backward for turn in self.of.turns]
        return host_bytes(self.plan.offload, self.of.trips[False], self.of.update(), turns)

    def _lifetimes(
        self, spells: list[Spell], spent: list[Spent], optimized: NDArray[np.int64], instructions: int
    ) -> Lifetimes:
        trace, stages, mesh, level = self.job.step.trace, self.job.stages, self.mesh, self.plan.zero
        if self.job.sharding is not None:
            kept = resident(trace, mesh.dp, [g.storage for g in self.of.grads])
            away = on_host(trace, self.plan.offload, ())
            stay = Occupancy(kept, stages, self.of.stage, mesh, 0, away).lifetimes(spells, optimized, instructions)
            pass_ = gathered_lifetimes(trace, self.of.units, spent, level, mesh.dp, stages.count > 1, instructions)
            return Lifetimes.joined([stay, pass_])
        buckets_held = mesh.dp > 1 and self.plan.training and self.plan.overlap and not level
        held = total_bytes(self.of.grads) if buckets_held else 0
        away = on_host(trace, self.plan.offload, self.of.trips[False])
        own = Occupancy(trace, stages, self.of.stage, mesh, held, away, self.job.storages)
        return own.lifetimes(spells, optimized, instructions)

    def _kind(self, number: int, turn: Turn) -> Kind:
        needs = Missing()
        if self.of.units:
            directions = [turn.backward for turn in self.of.turns[:number]]
            needs = missing(directions, number, self.plan.zero, self.job.stages.count > 1)
        return Kind(turn.backward, number == len(self.of.turns) - 1, needs)

    def _write(self, first: bool) -> dict[Kind | str, Piece]:
        """The pieces of an iteration: what is fetched, forwards, backwards, and what follows the last of them."""
        written: dict[Kind | str, Piece] = {FETCH: self._fetch(first)}
        kinds = [self._kind(number, turn) for number, turn in enumerate(self.of.turns)]
        for kind in sorted(dict.fromkeys(kinds), key=lambda kind: (kind.final, kind.backward)):
            written[kind] = self._run(kind)
        written[TAIL] = Tail(self.of, written[kinds[-1]], self.done, self._fetched_for).piece()
        return written

    # --- one micro-batch ----------------------------------------------------------------------------------------------

    def _run(self, kind: Kind) -> Piece:
        """One micro-batch's forward or backward."""
        job, builder, backward = self.job, self.of.new(), kind.backward
        self.builder, self.done = builder, {}
        units = (
            self.of.gathering(builder, backward, kind.needs, backward and job.stages.count == 1)
            if self.of.units
            else None
        )
        trips = self.of.trips[backward] + (self.of.sent if backward and kind.final else [])
        shuttle = Shuttle(trips, backward, builder, self.of.places.get(HOST_PLACE, -1), self.of.stream(COPY))
        at, arrivals = np.full(len(job.phase), -1, np.int64), {}
        previous = -1
        waits = self._receive_gradients() if backward else []
        for row in self.of.backward if backward else self.of.forward:
            before = waits
            waits = []
            for boundary in self.of.arriving.get(row, ()):
                arrivals[boundary.storage] = self._receive(boundary, False)
                before = [*before, arrivals[boundary.storage]]
            if row in job.needed_before:
                before = before + [self.done[n] for n in job.needed_before[row] if n in self.done]
            if self.fetches:
                before = before + self._fetched_for(row)
            if units is not None:
                units.before(row, previous)
            before = before + shuttle.before(row, previous)
            if job.skipped[row]:
                waits = before
            else:
                previous = builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=job.seconds[row], before=before)
            at[row] = previous
            shuttle.after(row, previous)
            if units is not None:
                units.after(row)
            for number in job.issued_after.get(row, ()):
                if number not in job.once or kind.final:
                    self._exchange(number, row, previous)
            going = (self.of.returning if backward else self.of.leaving).get(row, ())
            if going:
                done = [self.done[n] for n in job.issued_after.get(row, ()) if n in self.done]
                done += [previous] if previous >= 0 else []
                for boundary in going:
                    self._send(boundary, backward, done)
        marks = units.marks if units is not None else Marks()
        return Piece(builder.build(), Ran(at, arrivals, shuttle.travelled), marks)

    def _exchange(self, number: int, row: int, after: int) -> None:
        size, what, axis = self.job.exchanged[number]
        before = [after] if after >= 0 else []
        self.done[number] = self.builder.add(
            Op.COLLECTIVE, self.of.stream(TP), operator=row, size=size, what=what, axis=axis, before=before
        )

    def _send(self, b: Boundary, back: bool, before: list[int]) -> None:
        """Send a boundary value to the stage that reads it, or (``back``) its gradient to the stage that made it."""
        self.builder.add(
            Op.SEND,
            self.of.stream(SEND),
            operator=b.returned if back else b.made,
            size=b.bytes,
            axis=PP_AXIS,
            peer=b.source if back else b.target,
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
            before=before,
        )

    def _receive(self, b: Boundary, back: bool) -> int:
        """The arrival of what :meth:`_send` sends."""
        return self.builder.add(
            Op.RECEIVE,
            -1 if self.plan.overlap else COMPUTE,
            operator=b.returned if back else b.made,
            size=b.bytes,
            axis=PP_AXIS,
            peer=b.target if back else b.source,
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
        )

    def _receive_gradients(self) -> list[int]:
        """Gradients of what this stage sent; its backward begins when they are there."""
        sent = [b for boundaries in self.of.leaving.values() for b in boundaries if b.returned >= 0]
        return [self._receive(b, True) for b in sent]

    # --- what starts elsewhere ----------------------------------------------------------------------------------------

    def _fetch(self, first: bool) -> Piece:
        """Bring what starts elsewhere: parameters and states once, inputs in every iteration."""
        self.builder, self.fetches = self.of.new(), {}
        wanted = {name: p for name, p in self.plan.places.items() if first or name in ("input", "label")}
        if wanted:
            self._fetch_from(wanted)
        return Piece(self.builder.build())

    def _fetch_from(self, wanted: dict[str, str]) -> None:
        values, operators = self.job.step.trace.values, self.job.step.trace.operators
        size = values.storage_bytes()
        category, of = values.category.tolist(), values.of.tolist()
        written: set[int] = set()
        for row in (*self.of.forward, *self.of.backward, *self.of.optimizer):
            for value in self.job.inputs[row]:
                storage = self.job.storage[value]
                place = wanted.get(Category(category[value]).name.lower())
                if place is None or storage in written or storage in self.fetches:
                    continue
                owner = of[value] if category[value] == Category.OPTIMIZER_STATE else value
                stages = self.job.stages.parameters.get(owner)
                if stages is None or self.of.stage in stages:
                    where = self.of.places.setdefault(place, len(self.of.places))
                    fetch = self.builder.add(
                        Op.FETCH, self.of.stream(COPY), operator=row, size=int(size[storage]), peer=where
                    )
                    self.fetches[storage] = fetch
            written.update(self.job.storage[v] for v in operators.outputs[row].tolist())

    def _fetched_for(self, row: int) -> list[int]:
        """Rows of the fetches that an operator needs, written so that :func:`lay_out` finds them."""
        storages = {self.job.storage[v] for v in self.job.inputs[row]}
        return [-1 - self.fetches[s] for s in storages if s in self.fetches]
