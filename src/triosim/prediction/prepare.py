"""A prediction up to the playing: a job that is divided, priced and cut, with the programs of its ranks.

The road so far: :mod:`triosim.prediction.priced_job`, :mod:`triosim.prediction.staged_job`, and here; see
:mod:`triosim.prediction.simulate` for the whole of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from triosim.composition.interference import Interference, interference
from triosim.composition.issuing import launch
from triosim.composition.update import nvme_s_per_byte, update_s_per_byte
from triosim.core.caching import IdentityKey
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.limits import check_tasks
from triosim.core.registry import is_ours
from triosim.core.result_cache import ResultCache, content
from triosim.energy.device import DeviceEnergy
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.kernels.copying import copy_s_per_byte
from triosim.kernels.pricing import price
from triosim.memory.footprint import Footprint, footprint
from triosim.partition.residence import NVME
from triosim.partition.resolve import JobMesh
from triosim.plan import Plan
from triosim.prediction.priced_job import Progress, price_job
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule.job import Costs, each_program
from triosim.schedule.program import Op, Program
from triosim.trace.tables import Phase, Trace
from triosim.transform.rescale import rescale

PASS_TASKS = 6
"""What a pass through a stage costs beside its operators, in tasks: it is sent, received and remembered."""


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
    return written(stage_job(price_job(workload, system, plan, fidelity, progress, other_recordings, drawn)), progress)


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
    devices = [made.system.model(int(made.assignment.devices[p.ranks.min()])) for p in classes]
    interferes = [interference(device, made.fidelity.slowdown) for device in devices]
    return CompiledJob(**vars(made), programs=classes, footprints=found, interferes=interferes)


def footprints(programs: Sequence[Program]) -> list[Footprint]:
    """Memory of each program that has any."""
    return [footprint(p.lifetimes, len(CATEGORIES)) for p in programs if p.lifetimes is not None]


def check_arguments(workload: object, system: object, plan: object = None, fidelity: object = None) -> None:
    """Refuse what is no workload, system, plan or fidelity, most often the name of one, or its fields as a dictionary.

    Raises:
        InputError: it says what makes one.
    """
    if not isinstance(workload, Trace):
        raise InputError(
            f"the workload must be a Trace, not {workload!r:.60}: make one with triosim.model(NAME), of a model, or "
            "triosim.load(FILE)"
        )
    if not isinstance(system, System):
        raise InputError(f"the system must be a System, not {system!r:.60}: make one with triosim.system(NAME)")
    for name, value, kind in (("plan", plan, Plan), ("fidelity", fidelity, Fidelity)):
        if value is not None and not isinstance(value, kind):
            made = (
                f"triosim.{kind.__name__}(**{value!r:.60})"
                if isinstance(value, dict)
                else f"triosim.{kind.__name__}(...)"
            )
            raise InputError(f"the {name} must be a {kind.__name__}, not {value!r:.60}: make one with {made}")


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
    update = update_s_per_byte(system, made.assignment.devices) if placed.updates_on_host else 0.0
    on_drives = any(stay.place == NVME for stay in placed.away)
    drives = nvme_s_per_byte(system, made.assignment.devices) if on_drives else (0.0, 0.0)
    return Costs(
        made.all_times[base].seconds, at_once, copy_s_per_byte=copies, update_s_per_byte=update, nvme_s_per_byte=drives
    )


MOST_KEPT = 2_000_000
"""Programs of up to so many instructions are kept for the next prediction; more need gigabytes."""
_WRITTEN = ResultCache[tuple[list[Program], list[Footprint]]](1, MOST_KEPT, lambda made: sum(map(len, made[0])))


def _what_is_written(made: StagedJob, costs: Costs) -> Hashable:
    """All that the programs of a job depend on."""
    step, assignment = made.step, made.assignment
    traces = tuple(
        IdentityKey(getattr(part, column.name))
        for trace in (step.trace, step.homes)
        for part in (trace.operators, trace.values, trace.modules)
        for column in fields(part)
    )
    divided = tuple((m, content(found.seconds)) for m, found in made.all_times.items())
    devices = content(made.system.device_model[assignment.devices]) if len(divided) > 1 else None
    steps = content((step.transfers, step.replication, step.root_only, step.origin, step.apart))
    return (
        traces, steps, divided, devices, content(costs), content(made.stages), type(made.schedule), made.plan,
        made.mesh, content(made.launching),
    )  # fmt: skip


def _programs(made: StagedJob, costs: Costs) -> list[Program]:
    """Programs of all rank classes; ranks of a class on different devices become classes of their own."""
    step, system, assignment, times = made.step, made.system, made.assignment, made.all_times
    base = made.models[0]
    classes = each_program(step, costs, made.stages, made.schedule, made.plan, made.mesh)
    if len(times) == 1:
        return launch(classes, step.trace, made.launching)
    divided = []
    for program in classes:
        models = system.device_model[assignment.devices[program.ranks]]
        for model in distinct(models).tolist():
            ratio = np.divide(
                times[model].seconds, times[base].seconds, out=np.ones(len(step.trace)), where=times[base].seconds > 0
            )
            computes = program.op == Op.COMPUTE
            seconds = np.where(computes, program.seconds * ratio[np.maximum(program.operator, 0)], program.seconds)
            divided.append(replace(program, ranks=program.ranks[models == model], seconds=seconds))
    return launch(divided, step.trace, made.launching)
