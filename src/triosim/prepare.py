"""A prediction up to the playing: what every rank will run, and how long each piece takes.

Here the road goes from the workload through parallelism and kernels to priced programs; see
:mod:`triosim.simulate` for the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triosim.composition.host import Host, crowding, default_mode, host, launch
from triosim.composition.interference import Interference, interference
from triosim.composition.residual import Residual
from triosim.composition.residual import load as residual_of
from triosim.composition.update import update_s_per_byte
from triosim.errors import InputError, PlanError
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.hardware.catalog import accelerator, identify
from triosim.hardware.system import System
from triosim.kernels.copying import copy_s_per_byte
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import Job, Recording
from triosim.kernels.pricing import price
from triosim.memory.footprint import Footprint, footprint
from triosim.network.placement import Placement, place
from triosim.network.routes import Router
from triosim.parallelism.job import Costs, programs
from triosim.parallelism.program import Op, Program
from triosim.parallelism.replicas import replicated
from triosim.parallelism.sharded import GATHERED, sharded
from triosim.parallelism.stages import Stages, split
from triosim.parallelism.step import Step
from triosim.parallelism.tensor import shard
from triosim.plan import Mesh, Plan, resolve
from triosim.timeline import CATEGORIES
from triosim.workload.aligned import aligned
from triosim.workload.blocks import blocks
from triosim.workload.inference import forward_only
from triosim.workload.recompute import recomputed
from triosim.workload.rescale import rescale
from triosim.workload.trace import Trace

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be played.

    Attributes:
        job: what was priced, on the slowest device: the recorded step and one rank's share of it.
        step, stages, launching: how the step was divided, cut and launched.
        residual: what measured iterations taught of composition, None without any.
        system, plan, mesh, placement: on what and how.
        times: operator times on the slowest device.
        programs: one for each rank class.
        feet: memory of each program.
        router: finds routes on the system.
        interferes: what collectives cost what computes beside them, for each program.
    """

    job: Job
    step: Step
    system: System
    plan: Plan
    mesh: Mesh
    placement: Placement
    times: Estimates
    stages: Stages
    launching: Host
    residual: Residual | None
    programs: list[Program]
    feet: list[Footprint]
    router: Router
    interferes: list[Interference]


def prepare(
    workload: Trace, system: System, plan: Plan, tell: Progress = lambda words: None, also: Sequence[Trace] = ()
) -> Prepared:
    """Divide a workload among the devices of a system and price it.

    Args:
        workload: one step on one device.
        system: the machine.
        plan: how the work is divided.
        tell: told what is being done, in a few words.
        also: the same step recorded on other devices.

    Raises:
        InputError: the workload, the system and the plan do not go together; the message says how they would.
    """
    if not plan.training or not np.any(workload.operators.phase):
        plan = plan.model_copy(update={"training": False})
        workload = forward_only(workload)
        if plan.recompute != "none":
            raise PlanError(f"recompute {plan.recompute}: without a backward nothing is run again: leave it out")
        if plan.offload:
            raise PlanError(f"offload {plan.offload[0]}: inference has nothing to bring back: leave it out")
    workload = recomputed(workload, plan.recompute)
    named = workload.meta.made_by == "triosim.model"
    mesh = resolve(plan, system.devices, None if named else workload.meta.batch_size)

    tell("dividing the step")
    whole = _at_batch(workload, mesh, plan)
    step = shard(whole, mesh.tp, plan.tp_style, plan.tp_plan, vocabulary=named)
    step = sharded(step, mesh.dp, plan.zero)
    placement = place(mesh.tp, mesh.dp, mesh.pp, system.devices, plan.placement)
    system, recorded_on = _devices(workload, system)
    router = Router(system)
    tell("pricing operators")
    models = np.unique(system.device_model[placement.devices]).tolist()
    others = tuple(_recording(workload, other) for other in also)
    jobs = {m: Job(step.trace, system.models[m], workload, recorded_on, others) for m in models}
    residual = residual_of(plan.composition) if plan.composition else None
    times = {m: price(job, plan.operator_times) for m, job in jobs.items()}
    if residual is not None:
        times = {m: replace(found, seconds=found.seconds * residual.terms.scale) for m, found in times.items()}
    slowest = max(models, key=lambda m: float(times[m].seconds.sum()))
    per_byte = _seconds_per_byte(router, placement, mesh)
    block_wise = plan.recompute == "full" or plan.offload
    together = blocks(step.trace).of(step.trace) if mesh.pp > 1 and block_wise else None
    stages = split(step.trace, times[slowest].seconds, mesh.pp, plan.stages, per_byte, together)

    tell("writing the programs of the ranks")
    classes = _programs(step, times, stages, plan, mesh, system, placement, jobs[models[0]])
    mode = plan.host or default_mode(workload, jobs[slowest].device.kind)
    driven = mesh.dp if plan.dp_style == "dataparallel" else 1
    alone = driven * crowding(_processes(placement, system) // driven, system.server_cores)
    launching = host(step.trace, mode, alone) if residual is None else residual.host(step.trace, alone)
    classes = launch(classes, step.trace, launching)
    feet = [footprint(p.lifetimes, len(CATEGORIES)) for p in classes if p.lifetimes is not None]
    devices = [system.model(int(placement.devices[p.ranks.min()])) for p in classes]
    interferes = [interference(device, plan.slowdown) for device in devices]
    return Prepared(
        jobs[slowest], step, system, plan, mesh, placement, times[slowest], stages, launching, residual,
        classes, feet, router, interferes,
    )  # fmt: skip


def _at_batch(workload: Trace, mesh: Mesh, plan: Plan) -> Trace:
    """The step of one micro-batch."""
    unknown = workload.meta.batch_size is None
    if unknown and plan.batch_size is None and plan.global_batch_size is None and plan.micro_batches == 1:
        return rescale(workload, None, plan.sequence_length)
    return rescale(workload, mesh.micro_batch_size, plan.sequence_length)


def _recording(workload: Trace, other: Trace) -> Recording:
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
    return Recording(aligned(workload, other), accelerator(known))


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
        return replace(system, name=title, models=tuple(recorded_on for _ in system.models)), recorded_on
    return system, recorded_on if name else system.models[0]


def _processes(placement: Placement, system: System) -> int:
    """Ranks on the server that has most of them."""
    return int(np.bincount(system.device_server[placement.devices]).max(initial=1))


def _seconds_per_byte(router: Router, placement: Placement, mesh: Mesh) -> float:
    """What a byte costs between neighbouring stages, for balancing them."""
    if mesh.pp == 1:
        return 0.0
    here, there = int(placement.devices[0]), int(placement.devices[mesh.tp * mesh.dp])
    rates = [float(router.system.bandwidth[edge]) for edge in router.route(here, there)]
    return 1 / min(rates) if rates else 0.0


def _programs(
    step: Step,
    times: dict[int, Estimates],
    stages: Stages,
    plan: Plan,
    mesh: Mesh,
    system: System,
    placement: Placement,
    job: Job,
) -> list[Program]:
    """Programs of all rank classes; ranks of a class on different devices become classes of their own."""
    base = next(iter(times))
    if plan.dp_style == "dataparallel":
        gathered = rescale(job.recorded, mesh.global_batch_size, plan.sequence_length)
        at_once = price(replace(job, trace=gathered, device=system.models[base]), plan.operator_times).seconds
        made = replicated(step, Costs(times[base].seconds, at_once), stages, plan, mesh)
    else:
        copies = copy_s_per_byte(system.models[base]) if plan.zero >= GATHERED else 0.0
        update = update_s_per_byte(system, placement.devices) if "optimizer" in plan.offload else 0.0
        costs = Costs(times[base].seconds, copy_s_per_byte=copies, update_s_per_byte=update)
        made = programs(step, costs, stages, plan, mesh)
    if len(times) == 1:
        return made
    divided = []
    for program in made:
        models = system.device_model[placement.devices[program.ranks]]
        for model in np.unique(models).tolist():
            ratio = np.divide(
                times[model].seconds, times[base].seconds, out=np.ones(len(step.trace)), where=times[base].seconds > 0
            )
            computes = program.op == Op.COMPUTE
            seconds = np.where(computes, program.seconds * ratio[np.maximum(program.operator, 0)], program.seconds)
            divided.append(replace(program, ranks=program.ranks[models == model], seconds=seconds))
    return divided
