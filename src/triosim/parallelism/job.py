"""The Job: the programs of all rank classes, assembled from the step, its times and the plan.

Ranks are numbered with the tensor axis fastest, then data, then pipeline, so that the peers that talk most sit next to
each other.  Ranks of one pipeline stage do the same work and form one class.

What a stage does for one micro-batch is the same for each, so it is written once, as a :class:`Piece`, and laid out for
all micro-batches and iterations at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.errors import PlanError
from triosim.memory.lifetimes import Lifetimes
from triosim.parallelism.gathered import Spent, gathered_lifetimes
from triosim.parallelism.gathering import ALL_GATHER, REDUCE_SCATTER, Gathering, Marks, Missing, missing
from triosim.parallelism.gradients import Gradient, buckets, gradients, total_bytes
from triosim.parallelism.occupancy import Occupancy, Ran, Spell
from triosim.parallelism.offload import HOST as HOST_PLACE
from triosim.parallelism.offload import Shuttle, Trip, activation_trips, on_host, parameter_trips, update_of
from triosim.parallelism.pieces import Piece, Placed, Tags, lay_out
from triosim.parallelism.program import (
    AXES,
    COLLECTIVES,
    COMPUTE,
    COPY,
    DP,
    HOST,
    SEND,
    TP,
    Op,
    Program,
    ProgramBuilder,
)
from triosim.parallelism.schedule import SCHEDULES, Turn
from triosim.parallelism.sharded import GATHERED, Sharding, Unit, resident
from triosim.parallelism.stages import Boundary, Stages
from triosim.parallelism.step import Step
from triosim.plan import Mesh, Plan
from triosim.workload.trace import Category, Phase

DP_AXIS, PP_AXIS = AXES.index("dp"), AXES.index("pp")
ALL_REDUCE = COLLECTIVES.index("all_reduce")
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


@dataclass(frozen=True)
class Costs:
    """What parallelism needs to know of times; it computes none itself.

    Attributes:
        seconds: of each operator of the step, for one micro-batch.
        gathered_seconds: of each operator at the global batch (torch's ``DataParallel`` computes the loss on it), or
            None where no plan needs it.
        copy_s_per_byte: of a copy within the device's memory (what is gathered or scattered goes through a buffer).
        update_s_per_byte: of the host's processor for what it reads and writes where it runs the optimizer.
    """

    seconds: NDArray[np.float64]
    gathered_seconds: NDArray[np.float64] | None = None
    copy_s_per_byte: float = 0.0
    update_s_per_byte: float = 0.0


def stage_ranks(mesh: Mesh, stage: int) -> NDArray[np.int32]:
    """Ranks of a pipeline stage."""
    width = mesh.tp * mesh.dp
    return np.arange(stage * width, (stage + 1) * width, dtype=np.int32)


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
    job = _Job(step, costs, stages, plan, mesh, grads)
    written = [_Stage(job, stage) for stage in range(stages.count)]
    return [stage.program() for stage in written]  # tags are known when all stages have been written


class _Job:
    """What all stages share."""

    def __init__(self, step: Step, costs: Costs, stages: Stages, plan: Plan, mesh: Mesh, grads: list[Gradient]) -> None:
        self.step, self.stages, self.plan, self.mesh, self.grads = step, stages, plan, mesh, grads
        operators, values = step.trace.operators, step.trace.values
        self.tags = Tags()
        self.seconds, self.copy_s_per_byte = costs.seconds.tolist(), costs.copy_s_per_byte
        self.update_s_per_byte = costs.update_s_per_byte
        self.sharding = Sharding(step.trace, mesh.dp) if plan.zero >= GATHERED and mesh.dp > 1 else None
        self.phase = operators.phase.tolist()
        self.skipped = operators.view.tolist()
        self.storage = values.storage.tolist()
        self.inputs = operators.inputs.lists()
        exchanges = step.exchanges
        self.exchanged = list(
            zip(exchanges.bytes.tolist(), exchanges.what.tolist(), exchanges.axis.tolist(), strict=True)
        )
        self.issued_after: dict[int, list[int]] = {}
        self.needed_before: dict[int, list[int]] = {}
        self.once: set[int] = set()
        pairs = zip(exchanges.after.tolist(), exchanges.before.tolist(), strict=True)
        for number, (after, before) in enumerate(pairs):
            self.issued_after.setdefault(after if after >= 0 else before, []).append(number)
            self.needed_before.setdefault(before, []).append(number)
            if before < len(self.phase) and self.phase[before] == Phase.OPTIMIZER:
                self.once.add(number)  # gradients are exchanged when they are complete


class _Stage:
    """Writes the pieces of one stage and lays them out."""

    def __init__(self, job: _Job, stage: int) -> None:
        self.job, self.stage, self.plan, self.mesh = job, stage, job.plan, job.mesh
        trace, stages = job.step.trace, job.stages
        mine, phases = stages.of == stage, trace.operators.phase
        self.forward = np.flatnonzero(mine & (phases == Phase.FORWARD)).tolist()
        self.backward = np.flatnonzero(mine & ((phases == Phase.BACKWARD) | (phases == Phase.RECOMPUTE))).tolist()
        self.optimizer = np.flatnonzero((phases == Phase.OPTIMIZER) & (stages.share[:, stage] > 0)).tolist()
        self.turns = SCHEDULES.get(self.plan.schedule)().turns(stage, stages.count, self.mesh.micro_batches)
        if not np.any(phases == Phase.BACKWARD):
            self.turns = [Turn(False, m) for m in range(self.mesh.micro_batches)]
        self.grads = [g for g in job.grads if stage in stages.parameters.get(g.parameter, ())]
        self.arriving: dict[int, list[Boundary]] = {}
        self.leaving: dict[int, list[Boundary]] = {}
        self.returning: dict[int, list[Boundary]] = {}
        for boundary in stages.boundaries:
            if boundary.target == stage:
                self.arriving.setdefault(boundary.read, []).append(boundary)
                if boundary.returned >= 0:
                    self.returning.setdefault(boundary.returned, []).append(boundary)
            if boundary.source == stage:
                self.leaving.setdefault(boundary.made, []).append(boundary)
        self.units: list[Unit] = []
        if job.sharding is not None:
            used = [p for p, users in stages.parameters.items() if stage in users]
            self.units = job.sharding.units(used, self.grads, self.forward, self.backward)
        self.places: dict[str, int] = {}
        self.trips = self._trips()
        self.builder = self._new()
        self.done: dict[int, int] = {}  # exchange -> instruction, in the piece being written
        self.fetches: dict[int, int] = {}  # storage -> instruction that fetches it
        self.first = self._write(first=True)
        # Later iterations fetch only what is new in each.
        self.later = self._write(first=False) if self.plan.places and self.plan.iterations > 1 else self.first

    def _trips(self) -> dict[bool, list[Trip]]:
        """What travels to the host and back in forwards (False) and backwards (True)."""
        trace, away = self.job.step.trace, self.plan.offload
        trips: dict[bool, list[Trip]] = {False: [], True: []}
        if "activations" in away:
            sent = {b.storage for boundaries in self.leaving.values() for b in boundaries}
            kept = activation_trips(trace, self.forward, self.backward, sent)
            trips[False] += kept
            trips[True] += kept
        if "parameters" in away:
            mine = {p: users for p, users in self.job.stages.parameters.items() if self.stage in users}
            for backward, visits in zip(
                (False, True), parameter_trips(trace, self.forward, self.backward, mine), strict=True
            ):
                trips[backward] += visits
        if away:
            self.places.setdefault(HOST_PLACE, len(self.places))
        return trips

    def _new(self) -> ProgramBuilder:
        return ProgramBuilder(self.stage, stage_ranks(self.mesh, self.stage), self.places)

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
            for number, turn in enumerate(self.turns):
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
        made = lay_out(self._new().build(), placed)
        return replace(made, places=tuple(self.places), lifetimes=self._lifetimes(spells, spent, optimized, end))

    def _lifetimes(
        self, spells: list[Spell], spent: list[Spent], optimized: NDArray[np.int64], instructions: int
    ) -> Lifetimes:
        trace, stages, mesh, level = self.job.step.trace, self.job.stages, self.mesh, self.plan.zero
        if self.job.sharding is not None:
            kept = resident(trace, mesh.dp, [g.storage for g in self.grads])
            away = on_host(trace, self.plan.offload, ())
            stay = Occupancy(kept, stages, self.stage, mesh, 0, away).lifetimes(spells, optimized, instructions)
            pass_ = gathered_lifetimes(trace, self.units, spent, level, mesh.dp, stages.count > 1, instructions)
            return Lifetimes.joined([stay, pass_])
        buckets_held = mesh.dp > 1 and self.plan.training and self.plan.overlap and not level
        held = total_bytes(self.grads) if buckets_held else 0
        away = on_host(trace, self.plan.offload, self.trips[False])
        return Occupancy(trace, stages, self.stage, mesh, held, away).lifetimes(spells, optimized, instructions)

    def _kind(self, number: int, turn: Turn) -> Kind:
        needs = Missing()
        if self.units:
            directions = [turn.backward for turn in self.turns[:number]]
            needs = missing(directions, number, self.plan.zero, self.job.stages.count > 1)
        return Kind(turn.backward, number == len(self.turns) - 1, needs)

    def _write(self, first: bool) -> dict[Kind | str, Piece]:
        """The pieces of an iteration: what is fetched, forwards, backwards, and what follows the last of them."""
        written: dict[Kind | str, Piece] = {FETCH: self._fetch(first)}
        kinds = [self._kind(number, turn) for number, turn in enumerate(self.turns)]
        for kind in sorted(dict.fromkeys(kinds), key=lambda kind: (kind.final, kind.backward)):
            written[kind] = self._run(kind)
        written[TAIL] = self._tail(written[kinds[-1]])
        return written

    # --- one micro-batch ----------------------------------------------------------------------------------------------

    def _run(self, kind: Kind) -> Piece:
        """One micro-batch's forward or backward."""
        job, builder, backward = self.job, self._new(), kind.backward
        self.builder, self.done = builder, {}
        units = self._gathering(backward, kind.needs, backward and job.stages.count == 1) if self.units else None
        shuttle = Shuttle(self.trips[backward], backward, builder, self.places.get(HOST_PLACE, -1), self._stream(COPY))
        at, arrivals = np.full(len(job.phase), -1, np.int64), {}
        previous = -1
        waits = self._receive_gradients() if backward else []
        for row in self.backward if backward else self.forward:
            before = waits
            waits = []
            for boundary in self.arriving.get(row, ()):
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
            going = (self.returning if backward else self.leaving).get(row, ())
            if going:
                done = [self.done[n] for n in job.issued_after.get(row, ()) if n in self.done]
                done += [previous] if previous >= 0 else []
                for boundary in going:
                    self._send(boundary, backward, done)
        marks = units.marks if units is not None else Marks()
        return Piece(builder.build(), Ran(at, arrivals, shuttle.travelled), marks)

    def _gathering(self, backward: bool, needs: Missing, scatters: bool, first: int = 0) -> Gathering:
        return Gathering(
            self.units, self.builder, backward, needs, scatters, self.plan.overlap, self.mesh.dp,
            self.job.copy_s_per_byte, first,
        )  # fmt: skip

    def _stream(self, own: int) -> int:
        """With overlap off every transfer blocks compute."""
        return own if self.plan.overlap else COMPUTE

    def _exchange(self, number: int, row: int, after: int) -> None:
        size, what, axis = self.job.exchanged[number]
        before = [after] if after >= 0 else []
        self.done[number] = self.builder.add(
            Op.COLLECTIVE, self._stream(TP), operator=row, size=size, what=what, axis=axis, before=before
        )

    def _send(self, b: Boundary, back: bool, before: list[int]) -> None:
        """Send a boundary value to the stage that reads it, or (``back``) its gradient to the stage that made it."""
        self.builder.add(
            Op.SEND,
            self._stream(SEND),
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
        sent = [b for boundaries in self.leaving.values() for b in boundaries if b.returned >= 0]
        return [self._receive(b, True) for b in sent]

    # --- what starts elsewhere ----------------------------------------------------------------------------------------

    def _fetch(self, first: bool) -> Piece:
        """Bring what starts elsewhere: parameters and states once, inputs in every iteration."""
        self.builder, self.fetches = self._new(), {}
        wanted = {name: p for name, p in self.plan.places.items() if first or name in ("input", "label")}
        if wanted:
            self._fetch_from(wanted)
        return Piece(self.builder.build())

    def _fetch_from(self, wanted: dict[str, str]) -> None:
        values, operators = self.job.step.trace.values, self.job.step.trace.operators
        size = values.storage_bytes()
        category, of = values.category.tolist(), values.of.tolist()
        written: set[int] = set()
        for row in (*self.forward, *self.backward, *self.optimizer):
            for value in self.job.inputs[row]:
                storage = self.job.storage[value]
                place = wanted.get(Category(category[value]).name.lower())
                if place is None or storage in written or storage in self.fetches:
                    continue
                owner = of[value] if category[value] == Category.OPTIMIZER_STATE else value
                stages = self.job.stages.parameters.get(owner)
                if stages is None or self.stage in stages:
                    where = self.places.setdefault(place, len(self.places))
                    fetch = self.builder.add(
                        Op.FETCH, self._stream(COPY), operator=row, size=int(size[storage]), peer=where
                    )
                    self.fetches[storage] = fetch
            written.update(self.job.storage[v] for v in operators.outputs[row].tolist())

    def _fetched_for(self, row: int) -> list[int]:
        """Rows of the fetches that an operator needs, written so that :func:`lay_out` finds them."""
        storages = {self.job.storage[v] for v in self.job.inputs[row]}
        return [-1 - self.fetches[s] for s in storages if s in self.fetches]

    # --- gradients and optimizer --------------------------------------------------------------------------------------

    def _tail(self, last: Piece) -> Piece:
        """What follows the last turn: gradients are reduced and shared, the optimizer runs."""
        self.builder = self._new()
        self.offset = len(last)  # rows of the tail count from the start of the last turn
        ready, marks = last.ran.at, Marks()
        reduced: dict[int, int] = {}  # storage of a gradient -> instruction
        if self.units and self.job.stages.count > 1:
            marks, reduced = self._scatter_gradients()
        elif not self.units and self.mesh.dp > 1 and self.grads:
            reduced = self._reduce_gradients(ready)
        self._share_tied_weights(ready, reduced)
        updated = self._update_on_host(ready, reduced) if "optimizer" in self.plan.offload else self._optimize(reduced)
        ran = Ran(updated, {})
        if self.plan.zero and not self.units and self.mesh.dp > 1:
            self._gather_parameters()
        return Piece(self.builder.build(), ran, marks)

    def _scatter_gradients(self) -> tuple[Marks, dict[int, int]]:
        """Reduce-scatter the gradients of all micro-batches of a pipeline, unit by unit."""
        units, reduced = self._gathering(True, Missing(), False, self.offset), {}
        for number, unit in enumerate(self.units):
            if unit.scatter_bytes:
                reduced.update(dict.fromkeys(unit.gradients, units.reduce(number, max(unit.backward[1], -1))))
        return units.marks, reduced

    def _groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together."""
        if self.plan.overlap:
            return buckets(self.grads, self.plan.first_bucket_bytes, self.plan.bucket_bytes)
        return [list(self.grads)]

    def _gather_parameters(self) -> None:
        """All-gather the parameters that each rank has updated a part of, in the groups of their gradients."""
        size = self.job.step.trace.values.bytes()
        for group in reversed(self._groups() if self.grads else []):
            self.builder.add(
                Op.COLLECTIVE,
                COMPUTE,
                operator=self.optimizer[-1] if self.optimizer else group[0].ready,
                size=int(sum(size[g.parameter] for g in group)),
                what=ALL_GATHER,
                axis=DP_AXIS,
            )

    def _reduce_gradients(self, ready: NDArray[np.int64]) -> dict[int, int]:
        """Reduce the gradients over the data axis; returns for each gradient's storage the instruction."""
        reduced = {}
        for group in self._groups():
            last = max(group, key=lambda g: g.ready)
            after = sorted({int(ready[g.ready]) for g in group if ready[g.ready] >= 0})
            after += [self.done[n] for n in self.job.once if n in self.done]
            instruction = self.offset + self.builder.add(
                Op.COLLECTIVE,
                self._stream(DP),
                operator=last.ready,
                size=total_bytes(group),
                what=REDUCE_SCATTER if self.plan.zero else ALL_REDUCE,
                axis=DP_AXIS,
                before=after,
            )
            reduced.update({g.storage: instruction for g in group})
        return reduced

    def _share_tied_weights(self, ready: NDArray[np.int64], reduced: dict[int, int]) -> None:
        """A parameter used on several stages has a gradient on each; they exchange them and each adds up."""
        for gradient in self.grads:
            stages = self.job.stages.parameters[gradient.parameter]
            if len(stages) < 2:
                continue
            after = [reduced[gradient.storage]] if gradient.storage in reduced else [int(ready.max(initial=-1))]
            operator, size = gradient.ready, gradient.bytes
            if self.plan.zero:  # each rank has its part of both
                size = -(-size // self.mesh.dp)
            peers = [peer for peer in stages if peer != self.stage]
            for peer in peers:
                tag = self.job.tags("tied", gradient.parameter, self.stage, peer)
                self.builder.add(
                    Op.SEND, self._stream(SEND), operator=operator, size=size, axis=PP_AXIS, peer=peer, tag=tag,
                    before=[i for i in after if i >= 0],
                )  # fmt: skip
            for peer in peers:
                tag = self.job.tags("tied", gradient.parameter, peer, self.stage)
                arrived = self.offset + self.builder.add(
                    Op.RECEIVE, -1, operator=operator, size=size, axis=PP_AXIS, peer=peer, tag=tag
                )
            reduced[gradient.storage] = arrived

    def _update_on_host(self, ready: NDArray[np.int64], reduced: dict[int, int]) -> NDArray[np.int64]:
        """Gradients go to the host when they are complete; when all are there it updates, and parameters come back.

        Gradients travel in the groups in which they are reduced; a group's parameters do while the next is updated.
        """
        mine = [p for p, users in self.job.stages.parameters.items() if self.stage in users]
        update, place = update_of(self.job.step.trace, mine), self.places[HOST_PLACE]
        stream = COMPUTE if self.units else self._stream(COPY)  # the backward of units ends with waiting for them
        last = self.optimizer[-1] if self.optimizer else -1
        sizes = (
            [sum(update.gradients.get(g.storage, 0) for g in group) for group in self._groups()] if self.grads else []
        )
        stored = []
        for group, size in zip(self._groups() if self.grads else [], sizes, strict=True):
            after = {reduced[g.storage] if g.storage in reduced else int(ready[g.ready]) for g in group}
            if size:
                stored.append(
                    self.offset
                    + self.builder.add(
                        Op.STORE, stream, operator=group[-1].ready, size=size, peer=place,
                        before=sorted(i for i in after if i >= 0),
                    )
                )  # fmt: skip
        visiting = {storage for trip in self.trips[False] if trip.leaves < 0 for storage in trip.storages}
        storage = self.job.storage
        staying = 1.0
        if visiting:  # parameters of blocks are on the host already
            size_of = self.job.step.trace.values.bytes()
            whole = sum(int(size_of[p]) for p in mine)
            staying = sum(int(size_of[p]) for p in mine if storage[p] not in visiting) / whole if whole else 0.0
        parts = [size / sum(sizes) for size in sizes if size] or [1.0]
        for part in parts:
            seconds = update.touched_bytes * self.job.update_s_per_byte * part
            updated = self.offset + self.builder.add(Op.ISSUE, HOST, operator=last, seconds=seconds, before=stored)
            size = round(update.parameters * part * staying)
            if size:
                self.builder.add(Op.FETCH, COMPUTE, operator=last, size=size, peer=place, before=[updated])
        return np.full(len(self.job.phase), -1, np.int64)

    def _optimize(self, reduced: dict[int, int]) -> NDArray[np.int64]:
        """The optimizer begins when every gradient is reduced: DDP's backward ends by waiting for all its buckets."""
        job = self.job
        at = np.full(len(job.phase), -1, np.int64)
        share = job.stages.share[:, self.stage].tolist()
        before = set(reduced.values())
        for row in self.optimizer:
            before |= {self.done[n] for n in job.needed_before.get(row, ()) if n in self.done}
            if self.fetches:
                before.update(self._fetched_for(row))
            if job.skipped[row]:
                continue
            seconds = job.seconds[row] * share[row]
            at[row] = self.offset + self.builder.add(
                Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=sorted(before)
            )
            before = set()
        return at
