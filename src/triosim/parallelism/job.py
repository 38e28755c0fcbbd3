"""The Job: the programs of all rank classes, assembled from the step, its times and the plan.

Ranks are numbered with the tensor axis fastest, then data, then pipeline, so that the peers that talk most sit next to
each other.  Ranks of one pipeline stage do the same work and form one class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.errors import PlanError
from triosim.parallelism.gradients import Gradient, buckets, gradients, total_bytes
from triosim.parallelism.occupancy import Occupancy
from triosim.parallelism.program import AXES, COLLECTIVES, COMPUTE, COPY, DP, SEND, TP, Op, Program, ProgramBuilder
from triosim.parallelism.schedule import SCHEDULES, Turn
from triosim.parallelism.stages import Boundary, Stages
from triosim.parallelism.step import Step
from triosim.plan import Mesh, Plan
from triosim.workload.trace import Category, Phase

DP_AXIS, PP_AXIS = AXES.index("dp"), AXES.index("pp")
ALL_REDUCE = COLLECTIVES.index("all_reduce")


@dataclass(frozen=True)
class Costs:
    """What parallelism needs to know of times; it computes none itself.

    Attributes:
        seconds: of each operator of the step, for one micro-batch.
        gathered_seconds: of each operator at the global batch (torch's ``DataParallel`` computes the loss on it), or
            None where no plan needs it.
    """

    seconds: NDArray[np.float64]
    gathered_seconds: NDArray[np.float64] | None = None


class Tags:
    """Numbers by which the two ends of a transfer find each other."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}

    def __call__(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


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
    tags = Tags()
    return [_StageProgram(step, costs, stages, plan, mesh, stage, grads, tags).build() for stage in range(stages.count)]


class _StageProgram:
    """Writes the program of one stage."""

    def __init__(
        self,
        step: Step,
        costs: Costs,
        stages: Stages,
        plan: Plan,
        mesh: Mesh,
        stage: int,
        grads: list[Gradient],
        tags: Tags,
    ) -> None:
        self.step, self.costs, self.stages, self.plan, self.mesh, self.stage = step, costs, stages, plan, mesh, stage
        self.tags = tags
        self.builder = ProgramBuilder(stage, stage_ranks(mesh, stage))
        trace = step.trace
        self.seconds = costs.seconds.tolist()
        self.phase = trace.operators.phase.tolist()
        self.skipped = trace.operators.view.tolist()
        self.storage = trace.values.storage.tolist()
        mine = stages.of == stage
        phases = trace.operators.phase
        self.forward = np.flatnonzero(mine & (phases == Phase.FORWARD)).tolist()
        self.backward = np.flatnonzero(mine & ((phases == Phase.BACKWARD) | (phases == Phase.RECOMPUTE))).tolist()
        self.optimizer = np.flatnonzero((phases == Phase.OPTIMIZER) & (stages.share[:, stage] > 0)).tolist()
        self.turns = SCHEDULES.get(plan.schedule)().turns(stage, stages.count, mesh.micro_batches)
        if not self.backward and not any(self.phase[r] == Phase.BACKWARD for r in range(len(self.phase))):
            self.turns = [Turn(False, m) for m in range(mesh.micro_batches)]
        self.grads = [g for g in grads if stage in stages.parameters.get(g.parameter, ())]
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
        self.issued_after: dict[int, list[int]] = {}
        self.needed_before: dict[int, list[int]] = {}
        self.once: set[int] = set()
        self._sort_exchanges()
        self.done: dict[int, int] = {}  # exchange -> instruction, in the current micro-batch
        self.fetches: dict[int, int] = {}  # storage -> instruction that fetches it
        self.occupancy = Occupancy(step.trace, stages, stage, mesh, plan)

    def _sort_exchanges(self) -> None:
        """Exchanges by the operator after which they are issued and before which they must be done."""
        exchanges = self.step.exchanges
        pairs = zip(exchanges.after.tolist(), exchanges.before.tolist(), strict=True)
        for number, (after, before) in enumerate(pairs):
            anchor = after if after >= 0 else before
            self.issued_after.setdefault(anchor, []).append(number)
            self.needed_before.setdefault(before, []).append(number)
            if before < len(self.phase) and self.phase[before] == Phase.OPTIMIZER:
                self.once.add(number)  # gradients are exchanged when they are complete

    # --- one iteration ------------------------------------------------------------------------------------------------

    def build(self) -> Program:
        """All iterations, and what they keep in memory."""
        for iteration in range(self.plan.iterations):
            self.builder.iteration = iteration
            self._iteration(iteration)
        program = self.builder.build()
        return replace(program, lifetimes=self.occupancy.lifetimes(len(program)))

    def _iteration(self, iteration: int) -> None:
        self._fetch(iteration)
        last = max((t.micro_batch for t in self.turns if t.backward), default=self.mesh.micro_batches - 1)
        final_turn = max((i for i, t in enumerate(self.turns) if t.backward), default=len(self.turns) - 1)
        ready: dict[int, int] = {}
        for number, turn in enumerate(self.turns):
            self.builder.micro_batch = turn.micro_batch
            self.done.clear()
            rows = self.backward if turn.backward else self.forward
            at = self._run(
                rows, iteration, turn, final=number == final_turn or (not turn.backward and turn.micro_batch == last)
            )
            if number == final_turn:
                ready = at
        self.builder.micro_batch = self.mesh.micro_batches - 1
        reduced = self._reduce_gradients(ready) if self.mesh.dp > 1 and self.grads else {}
        self._share_tied_weights(iteration, ready, reduced)
        self._optimize(reduced)

    def _run(self, rows: list[int], iteration: int, turn: Turn, final: bool) -> dict[int, int]:
        """Emit one micro-batch's forward or backward; returns the instruction of each operator."""
        builder, at = self.builder, {}
        previous = -1
        waits = self._receive_gradients(iteration, turn.micro_batch) if turn.backward else []
        for row in rows:
            before = waits
            waits = []
            for boundary in self.arriving.get(row, ()):
                arrival = self._receive(boundary, False, iteration, turn.micro_batch)
                self.occupancy.received(boundary, turn.micro_batch, arrival)
                before = [*before, arrival]
            before += [self.done[n] for n in self.needed_before.get(row, ()) if n in self.done]
            if self.fetches:
                before += self._fetched_for(row)
            if self.skipped[row]:
                waits = before
                instruction = previous
            else:
                instruction = builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=self.seconds[row], before=before)
                previous = instruction
            at[row] = instruction
            for number in self.issued_after.get(row, ()):
                if number not in self.once or final:
                    self._exchange(number, row, instruction)
            going = (self.returning if turn.backward else self.leaving).get(row, ())
            if going:
                done = [self.done[n] for n in self.issued_after.get(row, ()) if n in self.done]
                done += [instruction] if instruction >= 0 else []
                for boundary in going:
                    self._send(boundary, turn.backward, iteration, turn.micro_batch, done)
        self.occupancy.ran(turn, at)
        return at

    # --- transfers ----------------------------------------------------------------------------------------------------

    def _stream(self, own: int) -> int:
        """With overlap off every transfer blocks compute."""
        return own if self.plan.overlap else COMPUTE

    def _exchange(self, number: int, row: int, after: int) -> None:
        exchanges = self.step.exchanges
        self.done[number] = self.builder.add(
            Op.COLLECTIVE,
            self._stream(TP),
            operator=row,
            size=int(exchanges.bytes[number]),
            what=int(exchanges.what[number]),
            axis=int(exchanges.axis[number]),
            before=[after] if after >= 0 else [],
        )

    def _send(self, b: Boundary, back: bool, iteration: int, micro_batch: int, before: list[int]) -> None:
        """Send a boundary value to the stage that reads it, or (``back``) its gradient to the stage that made it."""
        self.builder.add(
            Op.SEND,
            self._stream(SEND),
            operator=b.returned if back else b.made,
            size=b.bytes,
            axis=PP_AXIS,
            peer=b.source if back else b.target,
            tag=self._tag(b, back, iteration, micro_batch),
            before=before,
        )

    def _receive(self, b: Boundary, back: bool, iteration: int, micro_batch: int) -> int:
        """The arrival of what :meth:`_send` sends."""
        return self.builder.add(
            Op.RECEIVE,
            -1 if self.plan.overlap else COMPUTE,
            operator=b.returned if back else b.made,
            size=b.bytes,
            axis=PP_AXIS,
            peer=b.target if back else b.source,
            tag=self._tag(b, back, iteration, micro_batch),
        )

    def _tag(self, b: Boundary, back: bool, iteration: int, micro_batch: int) -> int:
        return self.tags("boundary", back, iteration, micro_batch, b.storage, b.made, b.target)

    def _receive_gradients(self, iteration: int, micro_batch: int) -> list[int]:
        """Gradients of what this stage sent; its backward begins when they are there."""
        sent = [b for boundaries in self.leaving.values() for b in boundaries if b.returned >= 0]
        return [self._receive(b, True, iteration, micro_batch) for b in sent]

    def _fetch(self, iteration: int) -> None:
        """Bring what starts elsewhere: parameters and states once, inputs in every iteration."""
        if not self.plan.places:
            return
        values, size = self.step.trace.values, self.step.trace.values.storage_bytes()
        wanted = {
            name: place for name, place in self.plan.places.items() if iteration == 0 or name in ("input", "label")
        }
        if iteration:
            self.fetches = {}
        category, of = values.category.tolist(), values.of.tolist()
        written: set[int] = set()
        inputs, outputs = self.step.trace.operators.inputs.lists(), self.step.trace.operators.outputs.lists()
        for row in (*self.forward, *self.backward, *self.optimizer):
            for value in inputs[row]:
                storage = self.storage[value]
                place = wanted.get(Category(category[value]).name.lower())
                if place is None or storage in written or storage in self.fetches:
                    continue
                owner = of[value] if category[value] == Category.OPTIMIZER_STATE else value
                stages = self.stages.parameters.get(owner)
                if stages is None or self.stage in stages:
                    self.fetches[storage] = self.builder.add(
                        Op.FETCH,
                        self._stream(COPY),
                        operator=row,
                        size=int(size[storage]),
                        peer=self.builder.place(place),
                    )
            written.update(self.storage[v] for v in outputs[row])

    def _fetched_for(self, row: int) -> list[int]:
        inputs = self.step.trace.operators.inputs
        return [self.fetches[s] for s in {self.storage[v] for v in inputs[row].tolist()} if s in self.fetches]

    # --- gradients and optimizer --------------------------------------------------------------------------------------

    def _reduce_gradients(self, ready: dict[int, int]) -> dict[int, int]:
        """All-reduce the gradients over the data axis; returns for each gradient's storage the instruction."""
        if self.plan.overlap:
            groups = buckets(self.grads, self.plan.first_bucket_bytes, self.plan.bucket_bytes)
        else:
            groups = [list(self.grads)]
        reduced = {}
        for group in groups:
            last = max(group, key=lambda g: g.ready)
            after = sorted({ready[g.ready] for g in group if ready.get(g.ready, -1) >= 0})
            after += [self.done[n] for n in self.once if n in self.done]
            instruction = self.builder.add(
                Op.COLLECTIVE,
                self._stream(DP),
                operator=last.ready,
                size=total_bytes(group),
                what=ALL_REDUCE,
                axis=DP_AXIS,
                before=after,
            )
            reduced.update({g.storage: instruction for g in group})
        return reduced

    def _share_tied_weights(self, iteration: int, ready: dict[int, int], reduced: dict[int, int]) -> None:
        """A parameter used on several stages has a gradient on each; they exchange them and each adds up."""
        for gradient in self.grads:
            stages = self.stages.parameters[gradient.parameter]
            if len(stages) < 2:
                continue
            after = [reduced[gradient.storage]] if gradient.storage in reduced else [max(ready.values(), default=-1)]
            arrived = []
            for peer in stages:
                if peer == self.stage:
                    continue
                self.builder.add(
                    Op.SEND,
                    self._stream(SEND),
                    operator=gradient.ready,
                    size=gradient.bytes,
                    axis=PP_AXIS,
                    peer=peer,
                    tag=self.tags("tied", iteration, gradient.parameter, self.stage, peer),
                    before=[i for i in after if i >= 0],
                )
            for peer in stages:
                if peer != self.stage:
                    tag = self.tags("tied", iteration, gradient.parameter, peer, self.stage)
                    arrived.append(
                        self.builder.add(
                            Op.RECEIVE,
                            -1,
                            operator=gradient.ready,
                            size=gradient.bytes,
                            axis=PP_AXIS,
                            peer=peer,
                            tag=tag,
                        )
                    )
            self.done[-1 - gradient.parameter] = arrived[-1]
            reduced[gradient.storage] = arrived[-1]

    def _optimize(self, reduced: dict[int, int]) -> None:
        """The optimizer begins when every gradient is reduced: DDP's backward ends by waiting for all its buckets."""
        at: dict[int, int] = {}
        for row in self.optimizer:
            before = set() if at else set(reduced.values())
            before |= {self.done[n] for n in self.needed_before.get(row, ()) if n in self.done}
            if self.fetches:
                before.update(self._fetched_for(row))
            if self.skipped[row]:
                continue
            seconds = self.seconds[row] * float(self.stages.share[row, self.stage])
            at[row] = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=sorted(before))
        self.occupancy.optimized(at)
