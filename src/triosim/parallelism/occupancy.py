"""What a stage keeps in memory: from which instruction to which each storage of its step lives."""

from __future__ import annotations

import numpy as np

from triosim.memory.lifetimes import Lifetimes
from triosim.parallelism.gradients import gradients
from triosim.parallelism.schedule import Turn
from triosim.parallelism.stages import Boundary, Stages
from triosim.plan import Mesh, Plan
from triosim.workload.trace import PERSISTENT, Category, Phase, Trace

_STAYS = -2
"""End of what stays to the end of the iteration."""


class Occupancy:
    """Collects, while a stage's program is written, when its storages come and go (first iteration).

    * Parameters, buffers and optimizer states of the stage are there throughout; so is the whole input batch.
    * Gradients of parameters are made by the first backward and stay to the end of the iteration.
    * DDP's buckets hold a copy of the gradients throughout.
    * Everything else lives, once for each micro-batch, from the operator that makes it to the last that reads it:
      what the backward reads is exactly what it needs, for the trace says so.
    """

    def __init__(self, trace: Trace, stages: Stages, stage: int, mesh: Mesh, plan: Plan) -> None:
        self.trace, self.stage, self.mesh = trace, stage, mesh
        values, operators = trace.values, trace.operators
        self.size = values.storage_bytes()
        count = len(self.size)
        self.category = np.full(count, int(Category.TEMPORARY), np.int8)
        order = np.argsort(values.version, kind="stable")[::-1]
        self.category[values.storage[order]] = values.category[order]
        storage = values.storage
        gradient_of = (values.category == Category.GRADIENT) & (values.of >= 0)
        self.gradient = np.zeros(count, bool)
        self.gradient[storage[gradient_of]] = True
        self.persistent = np.isin(self.category, [int(c) for c in PERSISTENT])
        self.given = np.isin(self.category, [int(Category.INPUT), int(Category.LABEL)])
        self.rows: list[tuple[int, int, int, int]] = []  # bytes, category, start, end
        self.ended = False
        self._static(stages, plan)
        rows = np.flatnonzero((stages.of == stage) | (operators.phase == Phase.OPTIMIZER))
        forward = rows[operators.phase[rows] == Phase.FORWARD]
        backward = rows[(operators.phase[rows] == Phase.BACKWARD) | (operators.phase[rows] == Phase.RECOMPUTE)]
        self.first_forward, self.last_forward = self._uses(forward)
        self.first_backward, self.last_backward = self._uses(backward)
        self.pending: dict[int, dict[int, int]] = {}  # micro-batch -> storage -> instruction that made it
        self.arrivals: dict[tuple[int, int], int] = {}
        self.gradient_start: dict[int, int] = {}
        self.iteration_over = False

    def _static(self, stages: Stages, plan: Plan) -> None:
        """What is there before the first instruction and stays."""
        values = self.trace.values
        mine = {p for p, users in stages.parameters.items() if self.stage in users}
        first_value: dict[int, int] = {}
        for value, where in enumerate(values.storage.tolist()):
            first_value.setdefault(where, value)
        of = values.of.tolist()
        used = self._storages_used(stages)
        weights = set(stages.parameters)
        for where, value in first_value.items():
            if self.persistent[where]:
                owner = value if value in weights else of[value]
                keep = owner in mine if owner in weights else (where in used or self.stage == 0)
                if keep:
                    self._add(where, -1, None)
            elif self.given[where] and where in used:
                self._add(where, -1, None, self.mesh.micro_batches)
        if self.mesh.dp > 1 and plan.training and plan.overlap and plan.dp_style == "ddp":
            held = sum(g.bytes for g in gradients(self.trace) if g.parameter in mine)
            if held:
                self.rows.append((held, int(Category.TEMPORARY), -1, _STAYS))

    def _storages_used(self, stages: Stages) -> set[int]:
        storage = self.trace.values.storage
        inputs = self.trace.operators.inputs
        at_stage = np.isin(inputs.rows(), np.flatnonzero(stages.of == self.stage))
        return set(storage[inputs.values[at_stage]].tolist())

    def _uses(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last of these operators that touch each storage (-1 for none)."""
        operators, storage = self.trace.operators, self.trace.values.storage
        first = np.full(len(self.size), np.iinfo(np.int32).max, np.int64)
        last = np.full(len(self.size), -1, np.int64)
        member = np.zeros(len(operators), bool)
        member[rows] = True
        for table in (operators.inputs, operators.outputs):
            row = table.rows()
            keep = member[row]
            where = storage[table.values[keep]]
            np.minimum.at(first, where, row[keep])
            np.maximum.at(last, where, row[keep])
        first[last < 0] = -1
        return first, last

    def _add(self, where: int, start: int, end: int | None, times: int = 1) -> None:
        size = int(self.size[where]) * times
        if size:
            self.rows.append((size, int(self.category[where]), start, _STAYS if end is None else end))

    # --- told by the program's writer ---------------------------------------------------------------------------------

    def received(self, boundary: Boundary, micro_batch: int, instruction: int) -> None:
        """A value sent by another stage has a place here from its arrival on."""
        if not self.iteration_over:
            self.arrivals[(micro_batch, boundary.storage)] = instruction

    def ran(self, turn: Turn, at: dict[int, int]) -> None:
        """A micro-batch went forward or backward; ``at`` is the instruction of each operator."""
        if self.iteration_over or not at:
            return
        if turn.backward:
            self._backward(turn.micro_batch, at)
        else:
            self._forward(turn.micro_batch, at)

    def _forward(self, micro_batch: int, at: dict[int, int]) -> None:
        held = self.pending.setdefault(micro_batch, {})
        for where in np.flatnonzero(self.last_forward >= 0).tolist():
            if self.persistent[where] or self.given[where]:
                continue
            start = self.arrivals.pop((micro_batch, where), max(at[int(self.first_forward[where])], 0))
            if self.last_backward[where] >= 0:
                held[where] = start
            else:
                self._add(where, start, max(at[int(self.last_forward[where])], 0))

    def _backward(self, micro_batch: int, at: dict[int, int]) -> None:
        held = self.pending.pop(micro_batch, {})
        for where in np.flatnonzero(self.last_backward >= 0).tolist():
            if self.persistent[where] or self.given[where]:
                continue
            start = held.pop(where, max(at[int(self.first_backward[where])], 0))
            if self.gradient[where]:
                if where not in self.gradient_start:
                    self.gradient_start[where] = start
                    self._add(where, start, None)
            else:
                self._add(where, start, max(at[int(self.last_backward[where])], 0))

    def optimized(self, at: dict[int, int]) -> None:
        """The optimizer ran; ends the first iteration."""
        if self.iteration_over:
            return
        made: dict[int, list[int]] = {}
        storage = self.trace.values.storage
        for row, instruction in at.items():
            for value in (*self.trace.operators.inputs[row].tolist(), *self.trace.operators.outputs[row].tolist()):
                where = int(storage[value])
                if not (self.persistent[where] or self.given[where] or self.gradient[where]):
                    span = made.setdefault(where, [instruction, instruction])
                    span[1] = instruction
        for where, (start, end) in made.items():
            self._add(where, start, end)
        self.iteration_over = True

    def lifetimes(self, instructions: int) -> Lifetimes:
        """The collected lifetimes; what stays ends after the last instruction."""
        for held in self.pending.values():  # forward only: nothing reads it any more
            for where, start in held.items():
                self._add(where, start, start)
        table = np.array(self.rows, np.int64).reshape(-1, 4)
        ends = np.where(table[:, 3] == _STAYS, instructions, table[:, 3])
        return Lifetimes(table[:, 0], table[:, 1].astype(np.int8), table[:, 2].astype(np.int32), ends.astype(np.int32))
