"""What is known of a job and of each of its pipeline stages before their programs are written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.parallelism.costs import Costs
from triosim.parallelism.gathering import Gathering, Missing
from triosim.parallelism.gradients import Gradient, buckets
from triosim.parallelism.occupancy import Storages
from triosim.parallelism.offload import (
    HOST,
    Trip,
    Update,
    activation_trips,
    gradient_trips,
    parameter_trips,
    update_of,
)
from triosim.parallelism.pieces import Tags
from triosim.parallelism.program import COMPUTE, ProgramBuilder
from triosim.parallelism.schedule import SCHEDULES, Turn
from triosim.parallelism.sharded import GATHERED, Sharding, Unit
from triosim.parallelism.stages import Boundary, Stages
from triosim.parallelism.step import Step
from triosim.plan import Mesh, Plan
from triosim.workload.trace import Phase


def stage_ranks(mesh: Mesh, stage: int) -> NDArray[np.int32]:
    """Ranks of a pipeline stage."""
    width = mesh.tp * mesh.dp
    return np.arange(stage * width, (stage + 1) * width, dtype=np.int32)


class JobFacts:
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
        self.storages = Storages.of(step.trace)
        self.issued_after: dict[int, list[int]] = {}
        self.needed_before: dict[int, list[int]] = {}
        self.once: set[int] = set()
        pairs = zip(exchanges.after.tolist(), exchanges.before.tolist(), strict=True)
        for number, (after, before) in enumerate(pairs):
            self.issued_after.setdefault(after if after >= 0 else before, []).append(number)
            self.needed_before.setdefault(before, []).append(number)
            if before < len(self.phase) and self.phase[before] == Phase.OPTIMIZER:
                self.once.add(number)  # gradients are exchanged when they are complete


class StageFacts:
    """What one stage runs, in which order, and what it shares with others."""

    def __init__(self, job: JobFacts, stage: int) -> None:
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
        self.sent = self._sent_gradients()

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
            self.places.setdefault(HOST, len(self.places))
        return trips

    def _sent_gradients(self) -> list[Trip]:
        """Gradients that go to the host beside the last backward: those that no other rank has a part of."""
        shared = any(len(self.job.stages.parameters[g.parameter]) > 1 for g in self.grads)
        if "optimizer" not in self.plan.offload or self.mesh.dp > 1 or shared or not self.plan.overlap:
            return []
        return gradient_trips(
            self.groups(), self.update().gradients, [row for row in self.backward if not self.job.skipped[row]]
        )

    def update(self) -> Update:
        """What the host updates."""
        mine = [p for p, users in self.job.stages.parameters.items() if self.stage in users]
        return update_of(self.job.step.trace, mine)

    def new(self) -> ProgramBuilder:
        """An empty program of this stage."""
        return ProgramBuilder(self.stage, stage_ranks(self.mesh, self.stage), self.places)

    def stream(self, own: int) -> int:
        """Where a transfer runs: with overlap off every transfer blocks compute."""
        return own if self.plan.overlap else COMPUTE

    def gathering(
        self, builder: ProgramBuilder, backward: bool, needs: Missing, scatters: bool, first: int = 0
    ) -> Gathering:
        """Writes what belongs to the units of sharding into a piece, see :class:`Gathering`."""
        return Gathering(
            self.units, builder, backward, needs, scatters, self.plan.overlap, self.mesh.dp, self.job.copy_s_per_byte,
            first,
        )  # fmt: skip

    def groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together."""
        if not self.grads:
            return []
        if self.plan.overlap:
            return buckets(self.grads, self.plan.first_bucket_bytes, self.plan.bucket_bytes)
        return [list(self.grads)]
