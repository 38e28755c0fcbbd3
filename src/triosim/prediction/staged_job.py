"""A priced job cut into pipeline stages, with the schedule that runs them and what launching costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import configured
from triosim.core.registry import is_ours
from triosim.hardware.system import System
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import PricingJob
from triosim.network.device_assignment import DeviceAssignment
from triosim.partition.resolve import JobMesh
from triosim.plan import Plan
from triosim.prediction.launching import launching_costs
from triosim.prediction.priced_job import PricedJob, mean_run, run_shares
from triosim.schedule.actions import SCHEDULES, Schedule, check
from triosim.schedule.backward import split_backward
from triosim.schedule.cutting import even_cuts
from triosim.schedule.stages import Stages, split
from triosim.stacks import BALANCED, EVEN_WITH_ENDS
from triosim.trace.blocks import blocks
from triosim.trace.tables import Phase, Trace

WORTH_TELLING = 0.01
"""Part of the backward from which on it is told that it cannot be split."""


@dataclass(frozen=True, kw_only=True)
class StagedJob(PricedJob):
    """A job that is divided, priced and cut into stages; its programs are not written yet.

    Attributes:
        slowest: the slowest kind of device, row of the system's models.
        stages, launching: how the step was cut and launched.
        schedule: in which order stages run micro-batches.
    """

    slowest: int
    stages: Stages
    launching: HostCosts
    schedule: Schedule

    @property
    def job(self) -> PricingJob:
        """What was priced, on the slowest device: the recorded step and one rank's share of it."""
        return self.jobs[self.slowest]

    @property
    def times(self) -> Estimates:
        """Operator times on the slowest device."""
        return self.all_times[self.slowest]

    def mean_seconds(self, micro_batches: int) -> NDArray[np.float64]:
        """Seconds of each operator at the full clock in the mean of so many micro-batches, on the slowest device."""
        shares = run_shares(self.step, self.plan, self.mesh, micro_batches, self.named)
        device = self.system.models[self.slowest]
        return mean_run(self.each_run[self.slowest].seconds, shares, device, self.residual)


def stage_job(job: PricedJob) -> StagedJob:
    """Cut a priced job into stages, under the schedule and with the launching costs that its plan asks for.

    Raises:
        PlanError: the schedule or the stages that the plan names do not go together with the job.
    """
    plan, mesh, step, times, models = job.plan, job.mesh, job.step, job.all_times, job.models
    slowest = max(models, key=lambda m: float(times[m].seconds.sum()))
    per_byte = job.seconds_per_byte
    schedule = schedule_of(plan, mesh)
    chunks = schedule.chunks_per_stage
    of_parts = [schedule.stage_of(part, mesh.stages) for part in range(mesh.stages * chunks)]
    count = mesh.stages * schedule.model_parts
    of_copies = _by_stage(times, job.system, job.assignment, mesh)[of_parts].reshape(schedule.directions, count, -1)
    costs = of_copies.max(axis=0)  # (parts of the model, operators): where it runs on two devices, on the slower one
    if mesh.stages > 1 and plan.stages is not None and isinstance(plan.cuts, str):
        _check_even(step.trace, count, plan.cuts)
    launching = launching_costs(job, chunks)
    device_s, issue_s = launching.apart(costs)
    stages = split(step.trace, device_s, count, plan.cuts, per_byte, step.homes, issue_s, mesh.micro_batches)
    if schedule.times_matter and plan.training:
        from triosim.schedule.pass_times import pass_times

        schedule = schedule.timed(pass_times(step, stages, costs, per_byte))
    if schedule.splits_backward:
        step = replace(step, notes=(*step.notes, *_unsplit(step.homes, stages, times[slowest].seconds, plan.schedule)))
    return StagedJob(
        **{**vars(job), "plan": plan, "step": step}, slowest=slowest, stages=stages, schedule=schedule,
        launching=launching,
    )  # fmt: skip


def schedule_of(plan: Plan, mesh: JobMesh) -> Schedule:
    """The pipeline schedule.

    Raises:
        PlanError: it has chunks and there is one stage, or the stages that the user named are too few or too many.
    """
    part = SCHEDULES.chosen(plan.schedule)
    schedule: Schedule = configured(part, plan.schedule_options, f"schedule {plan.schedule}")
    chunks = schedule.chunks_per_stage
    if chunks > 1 and mesh.stages == 1:
        raise PlanError(
            f"schedule {plan.schedule} runs {chunks} chunks in turn on each of several stages: use pp 2 or more"
        )
    cuts = mesh.stages * schedule.model_parts - 1
    if not isinstance(plan.cuts, str) and len(plan.cuts) != cuts:
        raise PlanError(
            f"stages names {len(plan.cuts)} cut(s) but pp {mesh.stages} x {schedule.model_parts} chunk(s) needs "
            f"{cuts}: name the module at which each part but the first begins"
        )
    if plan.training and not is_ours(part):
        check(schedule, plan.schedule, mesh.stages, mesh.micro_batches)
        from triosim.schedule.deadlock import check_circles

        check_circles(schedule, plan.schedule, mesh.stages, mesh.micro_batches)
    return schedule


def _check_even(trace: Trace, count: int, how: str) -> None:
    """Refuse stages of equally many blocks where there are too few.

    Raises:
        PlanError: how many there are.
    """
    if how == BALANCED:
        return
    block = blocks(trace).of(trace)[trace.operators.phase == Phase.FORWARD].astype(np.int64)
    if even_cuts(block, count, how == EVEN_WITH_ENDS) is None:
        raise PlanError(
            f"stages {how} needs a repeated block for each of {count} parts, and {trace.meta.workload!r} has "
            f"{len(blocks(trace))}: use stages balanced, or fewer parts"
        )


def _unsplit(trace: Trace, stages: Stages, seconds: NDArray[np.float64], schedule: str) -> tuple[str, ...]:
    """A note where much of the backward cannot be split."""
    backward = np.isin(trace.operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))
    parts = [np.flatnonzero(backward & (stages.of == part)).tolist() for part in range(1, stages.count)]
    fused = [row for part in parts for row in split_backward(trace, part).fused]
    share = float(seconds[fused].sum() / max(float(seconds[backward].sum()), 1e-300))
    if share < WORTH_TELLING:
        return ()
    return (
        f"schedule {schedule}: {share:.0%} of the backward computes gradients of inputs and of weights in one operator "
        f"(as {trace.operators.name[fused[0]]!r}), which cannot be split: trace the operators below autograd",
    )


def _by_stage(
    times: dict[int, Estimates], system: System, assignment: DeviceAssignment, mesh: JobMesh
) -> NDArray[np.float64]:
    """Seconds of each operator on the devices of each stage, shape ``(stages, operators)``.

    Ranks of a stage wait for each other, so the slowest of its devices counts.
    """
    models = [system.device_model[assignment.devices[mesh.of_stage(stage)]] for stage in range(mesh.stages)]
    total = {m: float(found.seconds.sum()) for m, found in times.items()}
    return np.stack([times[max(own.tolist(), key=total.__getitem__)].seconds for own in models])
