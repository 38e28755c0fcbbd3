"""A prediction up to the playing: what every rank will run, and how long each piece takes.

Here the road goes from the workload through parallelism and kernels to priced programs; see
:mod:`triosim.prediction.simulate` for the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.composition.captured import captured, counts_of_experts
from triosim.composition.host import (
    HostCosts,
    crowding,
    default_mode,
    further_kernels,
    host,
    kernel_by_kernel,
    launch,
    launched_one_by_one,
    rank_by_rank,
)
from triosim.composition.interference import Interference, interference
from triosim.composition.update import nvme_s_per_byte, update_s_per_byte
from triosim.core.caching import IdentityKey
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, PlanError, quoted
from triosim.core.limits import check_tasks
from triosim.core.options import configured
from triosim.core.registry import is_ours
from triosim.core.result_cache import ResultCache, content
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.energy.governor import governed
from triosim.energy.work import operator_work
from triosim.fidelity import Fidelity
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.hardware.catalog import accelerator, identify
from triosim.hardware.system import System
from triosim.kernels.copying import copy_s_per_byte
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import MeasuredTrace, PricingJob
from triosim.kernels.physical.attention import check as check_attention
from triosim.kernels.pricing import price
from triosim.memory.footprint import Footprint, footprint
from triosim.network.placement import Placement, place
from triosim.network.routes import Router, router_of
from triosim.partition.main_gradients import often
from triosim.partition.replication import Replication
from triosim.partition.residence import NVME
from triosim.partition.resolve import JobMesh, replication, resolve, rules_of
from triosim.partition.rule import Rule
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.prediction.partitioning import divided
from triosim.prediction.pricing import priced
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule.actions import SCHEDULES, Schedule, check
from triosim.schedule.backward import split_backward
from triosim.schedule.cutting import even_cuts
from triosim.schedule.job import Costs, each_program
from triosim.schedule.program import Op, Program
from triosim.schedule.stages import Stages, split
from triosim.stacks import ASSUMED, BALANCED, COUNTED_BY_HOST, EVEN_WITH_ENDS, ONE_BY_ONE
from triosim.trace.blocks import blocks
from triosim.trace.tables import Phase, Trace
from triosim.transform import quantization
from triosim.transform.layout import laid_out
from triosim.transform.optimizing import needs_whole_tensors, optimized
from triosim.transform.recompute import recomputed
from triosim.transform.rescale import rescale

if TYPE_CHECKING:
    from triosim.composition.residual import CalibratedOverhead

Progress = Callable[[str], None]
PASS_TASKS = 6
"""What a pass through a stage costs beside its operators, in tasks: it is sent, received and remembered."""
NAMED = "triosim.model"
"""What made the workload where it is a model by name."""
WORTH_TELLING = 0.01
"""Part of the backward from which on it is told that it cannot be split."""


@dataclass(frozen=True, kw_only=True)
class PricedJob:
    """A job that is divided and priced; it is not cut into stages yet.

    Attributes:
        whole: the step of one micro-batch of a replica, before it was divided among its ranks.
        step: one rank's share of it.
        system, plan, fidelity, mesh, placement: on what and how.
        residual: what measured iterations taught of composition, None without any.
        router: finds routes on the system.
        workload: the step that was divided, as the plan runs it.
        recorded_on: the device on which it was recorded, None if it holds no times.
        named: whether the workload is a model by name.
        models: kinds of device that take part, rows of the system's models.
        jobs, all_times: what was priced and what it takes, for each kind of device.
        full_clock: operator times at the full clock, by row of ``system.models``.
        each_run: the same where each operator runs.
        clocks: clock over the boost clock, and how much the power cap stretches all beside, by the same; only of
            devices that a cap or a clock holds back.
    """

    whole: Trace
    step: Step
    system: System
    plan: Plan
    fidelity: Fidelity
    mesh: JobMesh
    placement: Placement
    residual: CalibratedOverhead | None
    router: Router
    workload: Trace
    recorded_on: Accelerator | None
    named: bool
    models: tuple[int, ...]
    jobs: dict[int, PricingJob]
    all_times: dict[int, Estimates]
    full_clock: Mapping[int, Estimates]
    each_run: Mapping[int, Estimates]
    clocks: Mapping[int, tuple[float, float]]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is not as a user would expect of operator times, on any of the devices."""
        return tuple(dict.fromkeys(word for model in self.models for word in self.all_times[model].warnings))

    @property
    def seconds_per_byte(self) -> float:
        """What a byte costs between neighbouring stages, for balancing them."""
        return _seconds_per_byte(self.router, self.placement, self.mesh)

    def launched(self, chunks: int) -> HostCosts:
        """What launching costs where each stage has so many chunks."""
        plan, placement, stack = self.plan, self.placement, self.plan.stack or ASSUMED
        asked = self.fidelity.host or (plan.stack.host if plan.stack and self.named and self.residual is None else "")
        devices = [job.device for job in self.jobs.values()]
        mode, why = (asked, "") if asked else default_mode(self.workload, devices, self.recorded_on)
        driven = self.mesh.replicas if self.step.replication.rooted else 1
        alone = driven * crowding(_processes(placement, self.system) // driven, self.system.server_cores)
        trace = self.step.trace
        if self.residual is None:
            launching = host(trace, mode, alone, why)
        else:
            launching = self.residual.host(trace, alone)
        if self.named:
            launching = captured(trace, launching, stack.graphs)
            counted = stack.expert_counts == COUNTED_BY_HOST and launching.mode not in ("none", "graph")
            if counted and not any(rule.pads_experts for rule in rules_of(plan, self.named)):
                launching = replace(launching, read=counts_of_experts(trace))
            if stack.experts == ONE_BY_ONE:
                launching = launched_one_by_one(launching, _further_kernels(trace, plan))
        if self.named and stack.blocking_launches and launching.mode != "none":
            launching = replace(launching, blocking=True)
        if self.named and self.step.replication.weights and launching.mode not in ("none", "graph"):
            if stack.listed_collectives:
                axis = self.step.replication.axis
                launching = rank_by_rank(launching, self.mesh.row(axis), self.mesh.size(axis))
            launching = replace(launching, gathering=stack.blocking_gathers)
        if self.named and stack.blocking_transfers and launching.mode not in ("none", "graph"):
            launching = replace(launching, exchanging="pair" if chunks > 1 else "pass")
        return launching


def _further_kernels(trace: Trace, plan: Plan) -> NDArray[np.float64]:
    """Kernels beyond the first where experts are gone through one by one.

    Transformer Engine casts for all experts at once where scales are those of earlier iterations.
    """
    return further_kernels(trace, casts=plan.quantize != "fp8-delayed")


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
        seconds = self.each_run[self.slowest].seconds
        for share in run_shares(self.step, self.plan, self.mesh, micro_batches, self.named):
            seconds = seconds * share
        slowdown = self.system.models[self.slowest].slowdown
        if slowdown != 1:
            seconds = seconds * slowdown
        return seconds if self.residual is None else seconds * self.residual.terms.scale


@dataclass(frozen=True, kw_only=True)
class CompiledJob(StagedJob):
    """A job that is ready to be played.

    Attributes:
        programs: one for each rank class.
        footprints: memory of each program.
        interferes: what collectives cost what computes beside them, for each program.
    """

    programs: list[Program]
    footprints: list[Footprint]
    interferes: list[Interference]


def prepare(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    progress: Progress = lambda words: None,
    other_recordings: Sequence[Trace] = (),
    drawn: Mapping[str, DeviceEnergy] | None = None,
) -> CompiledJob:
    """Divide a workload among the devices of a system, price it and write what every rank runs.

    Args:
        workload: one step on one device.
        system: the machine.
        plan: how the work is divided.
        fidelity: which models price it.
        progress: called with what is being done, in a few words.
        other_recordings: the same step recorded on other devices.
        drawn: what devices draw, by name, where that is not what their datasheet and the table of constants say.

    Raises:
        InputError: the workload, the system and the plan do not go together; the message says how they would.
    """
    return written(arrange(workload, system, plan, fidelity, progress, other_recordings, drawn), progress)


def written(made: StagedJob, progress: Progress = lambda words: None, memory: bool = True) -> CompiledJob:
    """A job with its programs.

    Args:
        made: as it was arranged.
        progress: as of :func:`prepare`.
        memory: whether the footprints are wanted too.

    Raises:
        InputError: as of :func:`prepare`.
    """
    progress("writing the programs of the ranks")
    _check_length(made.step.trace, made.plan, made.mesh, made.schedule.chunks_per_stage, made.launching.mode)
    costs = _costs(made)

    def write() -> tuple[list[Program], list[Footprint]]:
        classes = _programs(made, costs)
        return classes, footprints(classes) if memory else []

    key = (_what_is_written(made, costs), memory)
    classes, found = _WRITTEN.get(key, write) if is_ours(type(made.schedule)) else write()
    devices = [made.system.model(int(made.placement.devices[p.ranks.min()])) for p in classes]
    interferes = [interference(device, made.fidelity.slowdown) for device in devices]
    return CompiledJob(**vars(made), programs=classes, footprints=found, interferes=interferes)


def footprints(programs: Sequence[Program]) -> list[Footprint]:
    """Memory of each program that has any."""
    return [footprint(p.lifetimes, len(CATEGORIES)) for p in programs if p.lifetimes is not None]


def check_arguments(workload: object, system: object) -> None:
    """Refuse what is no workload or no system, most often the name of one.

    Raises:
        InputError: it says what makes one of a name.
    """
    if not isinstance(workload, Trace):
        raise InputError(
            f"the workload must be a Trace, not {workload!r:.60}: make one with triosim.model(NAME), of a model, or "
            "triosim.load(FILE)"
        )
    if not isinstance(system, System):
        raise InputError(f"the system must be a System, not {system!r:.60}: make one with triosim.system(NAME)")


def price_job(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    progress: Progress = lambda words: None,
    other_recordings: Sequence[Trace] = (),
    drawn: Mapping[str, DeviceEnergy] | None = None,
) -> PricedJob:
    """Divide a workload among the devices of a system and price it.

    Args:
        workload, system, plan, fidelity, progress, other_recordings, drawn: as of :func:`prepare`.

    Raises:
        InputError: as of :func:`prepare`.
    """
    fidelity = fidelity or Fidelity()
    if not plan.training or not np.any(workload.operators.phase):
        from triosim.transform.inference import forward_only

        plan = plan.replaced(training=False)
        workload = forward_only(workload)
        if plan.recompute != "none":
            raise PlanError(f"recompute {plan.recompute}: without a backward nothing is run again: leave it out")
    if workload.operators.view.all():
        raise InputError(f"trace {quoted(workload.meta.workload)}: none of its operators runs: record a whole step")
    workload = optimized(workload, plan.optimizer)
    workload = laid_out(workload, plan.layout)
    either_way = all(map(quantization.reads_either_way, system.models))
    named = workload.meta.made_by == NAMED
    rules = rules_of(plan, named)
    stack = plan.stack or ASSUMED
    padded = named and stack.expert_padding and not any(rule.pads_experts for rule in rules)
    workload = recomputed(quantization.quantized(workload, plan.quantize, either_way, padded), plan.recompute)
    own_batch = None if named else _samples(workload)
    mesh = resolve(plan, system.devices, own_batch, workload.meta.micro_batches, rules, system.devices_per_server)
    placed = replication(rules, mesh)
    if placed.away and not plan.training:
        raise PlanError(f"{placed.away[0].name}: inference has nothing to bring back: leave it out")
    if placed.rooted and mesh.micro_batches > 1:
        raise PlanError("dp-style dataparallel runs the batch in one piece: use micro-batches 1, or dp-style ddp")
    if plan.training and (plan.optimizer or named) and needs_whole_tensors(workload):
        placed = _of_whole_tensors(mesh, placed)
    progress("dividing the step")
    made = divided(workload, rules, mesh, plan, placed, stack if named and plan.training else None)
    workload, whole, step = made.workload, made.whole, made.step
    placement = place(mesh, system.devices, plan.placement)
    system, recorded_on = _devices(workload, system)
    router = router_of(system)
    progress("pricing operators")
    models = distinct(system.device_model[placement.devices]).tolist()
    others = tuple(_recording(workload, other) for other in other_recordings)
    plain = {m: replace(system.models[m], slowdown=1.0) for m in models}
    jobs = {m: PricingJob(step.trace, plain[m], workload, recorded_on, others) for m in models}
    for device in {m: system.models[m] for m in models}.values():
        check_attention(step.trace, device)
        quantization.check(plan.quantize, device)
    residual = None
    if fidelity.composition:
        from triosim.composition.residual import load as residual_of

        residual = residual_of(fidelity.composition)
    times = {m: priced(job, fidelity, made.short) for m, job in jobs.items()}
    if named and stack.experts == ONE_BY_ONE and plan.quantize != "none":
        more = _further_kernels(step.trace, plan)
        times = {m: replace(t, seconds=kernel_by_kernel(t.seconds, step.trace, more)) for m, t in times.items()}
    each_run = times
    for share in run_shares(step, plan, mesh, mesh.micro_batches, named):
        times = {m: replace(found, seconds=found.seconds * share) for m, found in times.items()}
    if any(system.models[m].slowdown != 1 for m in times):
        times = {m: replace(found, seconds=found.seconds * system.models[m].slowdown) for m, found in times.items()}
    if residual is not None:
        times = {m: replace(found, seconds=found.seconds * residual.terms.scale) for m, found in times.items()}
    full_clock = times
    times, clocks = _held_back(times, jobs, mesh, drawn or {})
    return PricedJob(
        whole=whole, step=step, system=system, plan=plan, fidelity=fidelity, mesh=mesh, placement=placement,
        residual=residual, router=router, workload=workload, recorded_on=recorded_on, named=named,
        models=tuple(models), jobs=jobs, all_times=times, full_clock=full_clock, each_run=each_run, clocks=clocks,
    )  # fmt: skip


def arrange(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    progress: Progress = lambda words: None,
    other_recordings: Sequence[Trace] = (),
    drawn: Mapping[str, DeviceEnergy] | None = None,
) -> StagedJob:
    """Divide a workload among the devices of a system, price it and cut it into stages.

    Args:
        workload, system, plan, fidelity, progress, other_recordings, drawn: as of :func:`prepare`.

    Raises:
        InputError: as of :func:`prepare`.
    """
    job = price_job(workload, system, plan, fidelity, progress, other_recordings, drawn)
    plan, mesh, step, times, models = job.plan, job.mesh, job.step, job.all_times, job.models
    slowest = max(models, key=lambda m: float(times[m].seconds.sum()))
    per_byte = job.seconds_per_byte
    schedule = schedule_of(plan, mesh)
    chunks = schedule.chunks_per_stage
    of_parts = [schedule.stage_of(part, mesh.stages) for part in range(mesh.stages * chunks)]
    count = mesh.stages * schedule.model_parts
    of_copies = _by_stage(times, job.system, job.placement, mesh)[of_parts].reshape(schedule.directions, count, -1)
    costs = of_copies.max(axis=0)  # (parts of the model, operators): where it runs on two devices, on the slower one
    if mesh.stages > 1 and plan.stages is not None and isinstance(plan.cuts, str):
        _check_even(step.trace, count, plan.cuts)
    stages = split(step.trace, costs, count, plan.cuts, per_byte, step.homes)
    if schedule.times_matter and plan.training:
        from triosim.schedule.pass_times import pass_times

        schedule = schedule.timed(pass_times(step, stages, costs, per_byte))
    if schedule.splits_backward:
        step = replace(step, notes=(*step.notes, *_unsplit(step.homes, stages, times[slowest].seconds, plan.schedule)))
    return StagedJob(
        **{**vars(job), "plan": plan, "step": step}, slowest=slowest, stages=stages, launching=job.launched(chunks),
        schedule=schedule,
    )  # fmt: skip


def run_shares(step: Step, plan: Plan, mesh: JobMesh, micro_batches: int, named: bool) -> list[NDArray[np.float64]]:
    """Parts of the micro-batches in which operators run, one factor after another, each of shape ``(operators,)``.

    Args:
        step: one rank's share of a micro-batch.
        plan, mesh: of the job.
        micro_batches: how many there are.
        named: whether the workload is a model by name.
    """
    found, placed = [], step.replication
    if named and plan.training:
        found.append(often(step.trace, plan.stack or ASSUMED, micro_batches))
    if plan.quantize != "none":
        found.append(quantization.shares(step.trace, micro_batches, bool(placed.weights) and placed.ranks(mesh) > 1))
    return found


def _held_back(
    times: dict[int, Estimates], jobs: dict[int, PricingJob], mesh: JobMesh, drawn: Mapping[str, DeviceEnergy]
) -> tuple[dict[int, Estimates], dict[int, tuple[float, float]]]:
    """Operator times under the power caps and clocks of the devices, and those clocks.

    Raises:
        InputError: a device cannot keep its cap or clock.
    """
    found, clocks = dict(times), {}
    for m, job in jobs.items():
        device = job.device
        if device.power_cap_w is None and device.clock_limit_hz is None:
            continue
        energy = drawn.get(device.name) or device_energy(device, EnergyConstants())
        once = job.trace.operators.phase == Phase.OPTIMIZER
        repeats = np.where(job.trace.operators.view, 0.0, np.where(once, 1.0, mesh.micro_batches))
        clocked = governed(operator_work(job.trace, device, energy, times[m]), device, energy, repeats)
        found[m] = replace(times[m], seconds=clocked.seconds)
        clocks[m] = clocked.clock, clocked.brake
    return found, clocks


def _of_whole_tensors(mesh: JobMesh, placed: Replication) -> Replication:
    """The placements where an optimizer multiplies whole matrices: replicas have some of these each, and need the whole
    of their gradients.

    Raises:
        PlanError: replicas have parts of parameters, or of gradients, or keep them elsewhere.
    """
    if not placed.states or placed.ranks(mesh) == 1:
        return placed
    if placed.weights or placed.replicas or placed.away:
        raise PlanError(
            f"{placed.name}: the optimizer multiplies whole matrices, and what each rank would do of it is not known: "
            "use zero 1, which deals them to the replicas, or choose one that goes element by element (optimizer adamw)"
        )
    return replace(placed, path=(("all_reduce", placed.axis),))


def _check_length(trace: Trace, plan: Plan, mesh: JobMesh, chunks: int, mode: str) -> None:
    """Refuse programs that memory does not hold, before they are written.

    Raises:
        InputError: there are so many micro-batches or iterations.
    """
    runs = ~trace.operators.view
    once = int(np.count_nonzero(runs & (trace.operators.phase == Phase.OPTIMIZER)))
    again = int(np.count_nonzero(runs)) - once + PASS_TASKS * mesh.stages * chunks
    tasks = (again * mesh.micro_batches + once) * plan.iterations * (1 if mode in ("none", "graph") else 2)
    numbers = [(plan.iterations, "iteration"), (mesh.micro_batches, "micro-batch")]
    most = max(numbers)[1]
    what = " of ".join(f"{n:,} {name}{'es' if name.endswith('ch') else 's'}" for n, name in numbers if n > 1)
    check_tasks(tasks, what or "a step of so many operators", f"use fewer {most}{'es' if most.endswith('ch') else 's'}")


def _samples(workload: Trace) -> int | None:
    """Samples of the recorded step, all its micro-batches together; None where they are not known."""
    batch = workload.meta.batch_size
    return None if batch is None else batch * workload.meta.micro_batches


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


def _recording(workload: Trace, other: Trace) -> MeasuredTrace:
    """Another recording of the workload, on the device that it names.

    Raises:
        InputError: it was not measured, names no device of the catalog, or is of another step.
    """
    name = other.meta.device
    known = identify(name) if name else None
    if other.meta.clock == "none" or known is None:
        what = "has no measured times" if other.meta.clock == "none" else f"names no known device ({name or 'none'})"
        raise InputError(
            f"{other.meta.workload or 'the other recording'} {what}: give a trace recorded on a device of the catalog"
        )
    from triosim.transform.alignment import aligned

    return MeasuredTrace(aligned(workload, other), accelerator(known))


def _devices(workload: Trace, system: System) -> tuple[System, Accelerator | None]:
    """The system, and the device on which the workload was recorded (None if it holds no times).

    A trace that names no device counts as recorded on the system's device, and a system that names none consists of
    the trace's.
    """
    if workload.meta.clock == "none":
        return system, None
    name = workload.meta.device
    known = identify(name) if name else None
    kind = "cpu" if workload.meta.clock == "cpu" else UNNAMED.kind
    recorded_on = accelerator(known) if known else replace(UNNAMED, name=name or "", kind=kind)
    if all(not model.name for model in system.models):
        title = system.name.replace("x device", f"x {recorded_on.name or 'device'}")
        models = tuple(replace(recorded_on, slowdown=model.slowdown) for model in system.models)
        return replace(system, name=title, models=models), recorded_on
    return system, recorded_on if name else system.models[0]


def _processes(placement: Placement, system: System) -> int:
    """Ranks on the server that has most of them."""
    return int(np.bincount(system.device_server[placement.devices]).max(initial=1))


def mesh_of(workload: Trace, system: System, plan: Plan) -> tuple[list[Rule], JobMesh]:
    """The rules and the mesh of a plan.

    Raises:
        InputError: as of :func:`arrange`.
    """
    named = workload.meta.made_by == NAMED
    rules = rules_of(plan, named)
    batch = None if named else _samples(workload)
    parts = workload.meta.micro_batches
    return rules, resolve(plan, system.devices, batch, parts, rules, system.devices_per_server)


def seconds_per_byte(workload: Trace, system: System, plan: Plan) -> NDArray[np.float64]:
    """What a byte costs from each stage of a plan to the next, nothing else moving, shape ``(stages - 1,)``.

    Raises:
        InputError: as of :func:`arrange`.
    """
    _, mesh = mesh_of(workload, system, plan)
    router, placement = router_of(system), place(mesh, system.devices, plan.placement)
    return np.array([_seconds_per_byte(router, placement, mesh, stage) for stage in range(mesh.stages - 1)])


def _seconds_per_byte(router: Router, placement: Placement, mesh: JobMesh, stage: int = 0) -> float:
    """What a byte costs from a stage to the next; that from the first is what stages are balanced by."""
    if mesh.stages == 1:
        return 0.0
    here, there = (int(placement.devices[mesh.of_stage(s)[0]]) for s in (stage, stage + 1))
    rates = [float(router.system.bandwidth[edge]) for edge in router.route(here, there)]
    return 1 / min(rates) if rates else 0.0


def _by_stage(times: dict[int, Estimates], system: System, placement: Placement, mesh: JobMesh) -> NDArray[np.float64]:
    """Seconds of each operator on the devices of each stage, shape ``(stages, operators)``.

    Ranks of a stage wait for each other, so the slowest of its devices counts.
    """
    models = [system.device_model[placement.devices[mesh.of_stage(stage)]] for stage in range(mesh.stages)]
    total = {m: float(found.seconds.sum()) for m, found in times.items()}
    return np.stack([times[max(own.tolist(), key=total.__getitem__)].seconds for own in models])


def _costs(made: StagedJob) -> Costs:
    """What programs need to know of times, on the first of the devices."""
    step, mesh, system, base = made.step, made.mesh, made.system, made.models[0]
    at_once = None
    if step.root_only:
        job, fidelity = made.jobs[base], made.fidelity
        gathered = rescale(job.recorded, batch=mesh.global_batch_size, sequence=made.plan.sequence_length)
        gathered_job = replace(job, trace=gathered, device=system.models[base])
        at_once = price(gathered_job, fidelity.operator_times, fidelity.operator_options).seconds
    placed = step.replication
    copied = placed.weights or placed.compression is not None or placed.outer is not None
    copied = copied or bool(step.transfers.copied.any())
    copies = copy_s_per_byte(system.models[base]) if copied else 0.0
    update = update_s_per_byte(system, made.placement.devices) if placed.updates_on_host else 0.0
    on_drives = any(stay.place == NVME for stay in placed.away)
    drives = nvme_s_per_byte(system, made.placement.devices) if on_drives else (0.0, 0.0)
    return Costs(
        made.all_times[base].seconds, at_once, copy_s_per_byte=copies, update_s_per_byte=update, nvme_s_per_byte=drives
    )


MOST_KEPT = 2_000_000
"""Programs of up to so many instructions are kept for the next prediction; more need gigabytes."""

_WRITTEN = ResultCache[tuple[list[Program], list[Footprint]]](1, MOST_KEPT, lambda made: sum(map(len, made[0])))


def _what_is_written(made: StagedJob, costs: Costs) -> Hashable:
    """All that the programs of a job depend on."""
    step, placement = made.step, made.placement
    traces = tuple(
        IdentityKey(getattr(part, column.name))
        for trace in (step.trace, step.homes)
        for part in (trace.operators, trace.values, trace.modules)
        for column in fields(part)
    )
    divided = tuple((m, content(found.seconds)) for m, found in made.all_times.items())
    devices = content(made.system.device_model[placement.devices]) if len(divided) > 1 else None
    steps = content((step.transfers, step.replication, step.root_only, step.origin, step.apart))
    return (
        traces, steps, divided, devices, content(costs), content(made.stages), type(made.schedule), made.plan,
        made.mesh, content(made.launching),
    )  # fmt: skip


def _programs(made: StagedJob, costs: Costs) -> list[Program]:
    """Programs of all rank classes; ranks of a class on different devices become classes of their own."""
    step, system, placement, times = made.step, made.system, made.placement, made.all_times
    base = made.models[0]
    classes = each_program(step, costs, made.stages, made.schedule, made.plan, made.mesh)
    if len(times) == 1:
        return launch(classes, step.trace, made.launching)
    divided = []
    for program in classes:
        models = system.device_model[placement.devices[program.ranks]]
        for model in distinct(models).tolist():
            ratio = np.divide(
                times[model].seconds, times[base].seconds, out=np.ones(len(step.trace)), where=times[base].seconds > 0
            )
            computes = program.op == Op.COMPUTE
            seconds = np.where(computes, program.seconds * ratio[np.maximum(program.operator, 0)], program.seconds)
            divided.append(replace(program, ranks=program.ranks[models == model], seconds=seconds))
    return launch(divided, step.trace, made.launching)
