"""torch's ``DataParallel``: one process drives whole replicas, gathers outputs on device 0 and updates only there.

Each iteration: device 0 scatters the batch and broadcasts parameters and buffers; all devices run forward; device 0
gathers the outputs, computes the loss on the whole batch and scatters its gradient; all devices run backward; the
gradients are reduced to device 0, which runs the optimizer (torch.nn.parallel.data_parallel and comm, PyTorch
documentation).  Every transfer is on the stream that computes, so nothing overlaps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.errors import PlanError
from triosim.memory.blocks import RankBlocks, StepStorages
from triosim.memory.liveness import Scheduled, liveness
from triosim.operators import kind
from triosim.partition.gradients import gradients, total_bytes
from triosim.partition.resolve import JobMesh
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.schedule.job import Costs
from triosim.schedule.program import COLLECTIVES, COMPUTE, Op, Program, ProgramBuilder
from triosim.schedule.stages import Stages
from triosim.trace.tables import Category, Phase, Trace


def replicated(step: Step, costs: Costs, stages: Stages, plan: Plan, mesh: JobMesh) -> list[Program]:
    """Programs of device 0 and of the other devices.

    Raises:
        PlanError: the trace does not show where the model ends and the loss begins.
    """
    first = _Replica(step, costs, stages, plan, mesh, root=True).build()
    return [first, _Replica(step, costs, stages, plan, mesh, root=False).build()] if mesh.replicas > 1 else [first]


def loss_rows(trace: Trace) -> tuple[list[int], list[int]]:
    """Forward operators of the loss (from the first loss or the softmax before it to the end), and their backward.

    The model's output is what the loss reads; ``DataParallel`` gathers it.
    """
    operators = trace.operators
    forward = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
    losses = [row for row in forward if kind(operators.name[row]) == "loss"]
    if not losses:
        return [], []
    start = losses[0]
    position = forward.index(start)
    while position > 0 and kind(operators.name[forward[position - 1]]) in ("softmax", "view"):
        position -= 1
        start = forward[position]
    rows = [row for row in forward if row >= start]
    backward = np.flatnonzero(operators.phase == Phase.BACKWARD).tolist()
    mine = set(rows)
    linked = [row for row in backward if int(operators.forward[row]) in mine]
    if linked:  # whatever runs before the last of them belongs to the loss too
        return rows, [row for row in backward if row <= max(linked)]
    return rows, []


class _Replica:
    """Writes the program of one kind of replica."""

    def __init__(self, step: Step, costs: Costs, stages: Stages, plan: Plan, mesh: JobMesh, root: bool) -> None:
        self.trace, self.costs, self.plan, self.mesh, self.root = step.trace, costs, plan, mesh, root
        ranks = np.array([0]) if root else np.arange(1, mesh.replicas)
        self.builder = ProgramBuilder(0, ranks.astype(np.int32))
        mine = dict.fromkeys(stages.parameters, True)
        self.blocks = RankBlocks(StepStorages(step.trace), mine, np.flatnonzero(stages.of == 0), True, 1)
        self.runs: list[Scheduled] = []
        self.optimized = np.full(len(step.trace), -1, np.int64)
        operators = self.trace.operators
        self.loss, self.loss_backward = loss_rows(self.trace)
        if plan.training and not self.loss:
            raise PlanError(
                f"dp-style dataparallel: no loss operator was found in {self.trace.meta.workload!r}, so what to gather "
                "is not known: use dp-style ddp"
            )
        skipped = operators.view

        def rows(*phases: Phase) -> list[int]:
            return [r for r in np.flatnonzero(np.isin(operators.phase, phases)).tolist() if not skipped[r]]

        outside = {*self.loss, *self.loss_backward}
        self.forward = [r for r in rows(Phase.FORWARD) if r not in outside]
        self.backward = [r for r in rows(Phase.BACKWARD, Phase.RECOMPUTE) if r not in outside]
        self.loss = [r for r in self.loss if not skipped[r]]
        self.loss_backward = [r for r in self.loss_backward if not skipped[r]]
        self.optimizer = rows(Phase.OPTIMIZER)
        size, category = self.trace.values.storage_bytes(), self.trace.values.category
        storage = self.trace.values.storage
        self.inputs = int(size[np.unique(storage[category == Category.INPUT])].sum())
        kept = (category == Category.WEIGHT) | (category == Category.BUFFER)
        self.state = int(size[np.unique(storage[kept])].sum())
        self.output = self._output_bytes()
        self.grads = total_bytes(gradients(self.trace))

    def _output_bytes(self) -> int:
        """Bytes of what the loss reads of the model (its largest input), or of the last output without a loss."""
        size = self.trace.values.bytes()
        operators = self.trace.operators
        if self.loss:
            made = {v for r in self.forward for v in operators.outputs[r].tolist()}
            reads = [v for r in self.loss for v in operators.inputs[r].tolist()]
            made_storage = {int(self.trace.values.storage[v]) for v in made}
            return max((int(size[v]) for v in reads if int(self.trace.values.storage[v]) in made_storage), default=0)
        last = operators.outputs[self.forward[-1]].tolist() if self.forward else []
        return max((int(size[v]) for v in last), default=0)

    def _collective(self, what: str, size: int) -> None:
        if self.mesh.replicas > 1 and size:
            kind, axis = COLLECTIVES.index(what), self.mesh.data_axis
            self.builder.add(Op.COLLECTIVE, COMPUTE, size=size, what=kind, axis=axis, root=0)

    def _run(self, rows: list[int], gathered: bool = False) -> dict[int, int]:
        seconds = (
            self.costs.gathered_seconds if gathered and self.costs.gathered_seconds is not None else self.costs.seconds
        )
        return {r: self.builder.add(Op.COMPUTE, COMPUTE, operator=r, seconds=float(seconds[r])) for r in rows}

    def build(self) -> Program:
        """All iterations."""
        for iteration in range(self.plan.iterations):
            self.builder.iteration = iteration
            self._iteration()
        program = self.builder.build()
        update = self.blocks.once("update", self.optimized, np.ones(len(self.trace)))
        runs = [*self.runs, Scheduled(update, 0, 0)]
        return replace(program, lifetimes=liveness(self.blocks.build(), runs, 1, len(program)))

    def _iteration(self) -> None:
        n = self.mesh.replicas
        self._collective("scatter", self.inputs * n)
        self._collective("broadcast", self.state)
        at = self._run(self.forward)
        self._collective("gather", self.output * n)
        if self.root:
            at |= self._run(self.loss, gathered=True)
        self._told(False, at)
        if self.plan.training:
            at = self._run(self.loss_backward, gathered=True) if self.root else {}
            self._collective("scatter", self.output * n)
            at |= self._run(self.backward)
            self._told(True, at)
            self._collective("reduce", self.grads)
        at = self._run(self.optimizer) if self.root else {}
        if self.builder.iteration == 0:
            self.optimized[list(at)] = list(at.values())

    def _told(self, backward: bool, at: dict[int, int]) -> None:
        """Note where a phase of the first iteration ran; an operator that did not run here counts as the one before."""
        if self.builder.iteration:
            return
        operators = self.trace.operators
        phases = (Phase.BACKWARD, Phase.RECOMPUTE) if backward else (Phase.FORWARD,)
        complete, previous = np.full(len(self.trace), -1, np.int64), min(at.values(), default=-1)
        rows = np.flatnonzero(np.isin(operators.phase, phases)).tolist()
        for row in rows:
            complete[row] = previous = at.get(row, previous)
        self.runs.append(Scheduled(self.blocks.storages.uses(rows, complete, {}), 0, 0))
