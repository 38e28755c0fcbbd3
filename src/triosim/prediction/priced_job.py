"""A workload divided among the devices of a system, and what each operator takes there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import (
    further_kernels,
    kernel_by_kernel,
)
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, PlanError, quoted
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.energy.governor import governed
from triosim.energy.work import operator_work
from triosim.fidelity import Fidelity
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.hardware.catalog import accelerator, identify
from triosim.hardware.system import System
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import MeasuredTrace, PricingJob
from triosim.kernels.physical.attention import check as check_attention
from triosim.network.device_assignment import DeviceAssignment, assign_devices
from triosim.network.routes import Router, router_of
from triosim.partition.main_gradients import often
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh, replication, resolve, rules_for
from triosim.partition.rule import Rule
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.prediction.partitioning import divided
from triosim.prediction.pricing import in_fused_kernels, priced
from triosim.stacks import ASSUMED, IN_CONVOLUTIONS, ONE_BY_ONE
from triosim.trace.tables import Phase, Trace
from triosim.transform import quantization
from triosim.transform.layout import laid_out
from triosim.transform.optimizing import needs_whole_tensors, optimized

if TYPE_CHECKING:
    from triosim.composition.residual import CalibratedOverhead


Progress = Callable[[str], None]
NAMED = "triosim.model"
"""What made the workload where it is a model by name."""


@dataclass(frozen=True, kw_only=True)
class PricedJob:
    """A job that is divided and priced; it is not cut into stages yet.

    Attributes:
        whole: the step of one micro-batch of a replica, before it was divided among its ranks.
        step: one rank's share of it.
        share: the same before replicas divide anything of it.
        system, plan, fidelity, mesh, assignment: on what and how.
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
    share: Step
    system: System
    plan: Plan
    fidelity: Fidelity
    mesh: JobMesh
    assignment: DeviceAssignment
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
        return seconds_per_byte_between(self.router, self.assignment, self.mesh)


def kernels_of_experts(trace: Trace, plan: Plan) -> NDArray[np.float64]:
    """Kernels beyond the first of each operator where experts are gone through one by one, shape ``(operators,)``.

    Transformer Engine casts for all experts at once where scales are those of earlier iterations.
    """
    return further_kernels(trace, casts=plan.quantize != "fp8-delayed")


def price_job(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    progress: Progress = lambda words: None,
    other_recordings: Sequence[Trace] = (),
    drawn: Mapping[str, DeviceEnergy] | None = None,
    waits: bool = False,
) -> PricedJob:
    """Divide a workload among the devices of a system and price it.

    Args:
        workload, system, plan, fidelity, progress, other_recordings, drawn: as of
            :func:`triosim.prediction.prepare.prepare`.
        waits: whether gradients are added up as in a pipeline, also without one
            (:class:`triosim.partition.replication.Replication`).

    Raises:
        InputError: as of :func:`triosim.prediction.prepare.prepare`.
    """
    fidelity = fidelity or Fidelity()
    if not plan.training or not np.any(workload.operators.phase):
        workload, plan = _without_backward(workload, plan)
    rules, mesh = mesh_of(workload, system, plan)
    workload = _as_planned(workload, system, plan, rules)
    placed = _replication(workload, plan, rules, mesh)
    placed = replace(placed, waits=True) if waits else placed
    named, stack = workload.meta.made_by == NAMED, plan.stack or ASSUMED
    progress("dividing the step")
    made = divided(workload, rules, mesh, plan, placed, stack if named and plan.training else None)
    workload, step = made.workload, made.step
    assignment = assign_devices(mesh, system.devices, plan.placement, torus=system.torus)
    system, recorded_on = _devices(workload, system)
    progress("pricing operators")
    devices = {m: system.models[m] for m in distinct(system.device_model[assignment.devices]).tolist()}
    for device in devices.values():
        check_attention(step.trace, device)
        quantization.check(plan.quantize, device)
    others = tuple(_recording(workload, other) for other in other_recordings)
    jobs = {
        m: PricingJob(step.trace, replace(device, slowdown=1.0), workload, recorded_on, others)
        for m, device in devices.items()
    }
    residual = _residual(fidelity)
    each_run = {m: priced(job, fidelity, made.short) for m, job in jobs.items()}
    if named and stack.fused_pointwise:
        inside = stack.batch_norms == IN_CONVOLUTIONS
        each_run = {m: in_fused_kernels(times, jobs[m], fidelity, inside) for m, times in each_run.items()}
    if named and stack.experts == ONE_BY_ONE and plan.quantize != "none":
        more = kernels_of_experts(step.trace, plan)
        each_run = {
            m: replace(times, seconds=kernel_by_kernel(times.seconds, step.trace, more))
            for m, times in each_run.items()
        }
    shares = run_shares(step, plan, mesh, mesh.micro_batches, named)
    full_clock = {
        m: replace(times, seconds=mean_run(times.seconds, shares, devices[m], residual))
        for m, times in each_run.items()
    }
    all_times, clocks = _held_back(full_clock, jobs, mesh, drawn or {})
    return PricedJob(
        whole=made.whole, step=step, share=made.share or step, system=system, plan=plan, fidelity=fidelity, mesh=mesh,
        assignment=assignment,
        residual=residual, router=router_of(system), workload=workload, recorded_on=recorded_on, named=named,
        models=tuple(devices), jobs=jobs, all_times=all_times, full_clock=full_clock, each_run=each_run, clocks=clocks,
    )  # fmt: skip


def _without_backward(workload: Trace, plan: Plan) -> tuple[Trace, Plan]:
    """The forward of a step alone, and its plan.

    Raises:
        PlanError: the plan asks for something of the backward.
    """
    from triosim.transform.inference import forward_only

    if plan.recompute != "none":
        raise PlanError(f"recompute {plan.recompute}: without a backward nothing is run again: leave it out")
    return forward_only(workload), plan.replaced(training=False)


def _as_planned(workload: Trace, system: System, plan: Plan, rules: Sequence[Rule]) -> Trace:
    """A step with the optimizer, layout, precision and recomputation of its plan.

    Raises:
        InputError: none of its operators runs, or the plan asks for what it or a device cannot do.
    """
    if workload.operators.view.all():
        raise InputError(f"trace {quoted(workload.meta.workload)}: none of its operators runs: record a whole step")
    workload = laid_out(optimized(workload, plan.optimizer), plan.layout)
    cast = _in_few_bits(workload, system, plan, rules)
    if plan.recompute == "none":
        return cast
    from triosim.transform.recompute import recomputed  # few plans run anything again

    return recomputed(cast, plan.recompute, (plan.stack or ASSUMED).recomputed)


def _in_few_bits(workload: Trace, system: System, plan: Plan, rules: Sequence[Rule], forward: bool = False) -> Trace:
    either_way = all(map(quantization.reads_either_way, system.models))
    padded = workload.meta.made_by == NAMED and (plan.stack or ASSUMED).expert_padding
    padded = padded and not any(rule.pads_experts for rule in rules)
    return quantization.quantized(workload, plan.quantize, either_way, padded, forward, plan.quantize_attention)


def forward_in_few_bits(workload: Trace, system: System, plan: Plan) -> Trace:
    """The forward of a training step alone, as of a reference model, with the products that its plan quantises.

    Args:
        workload: without a backward.
        system, plan: as of :func:`price_job`.

    Raises:
        PlanError: it has no product that can be quantised.
    """
    return _in_few_bits(workload, system, plan, mesh_of(workload, system, plan)[0], forward=True)


def _replication(workload: Trace, plan: Plan, rules: Sequence[Rule], mesh: JobMesh) -> Replication:
    """What replicas have whole and what in parts.

    Raises:
        PlanError: the plan asks for what its replicas cannot do.
    """
    placed = replication(rules, mesh)
    if placed.away and not plan.training:
        raise PlanError(f"{placed.away[0].name}: inference has nothing to bring back: leave it out")
    if placed.rooted and mesh.micro_batches > 1:
        raise PlanError("dp-style dataparallel runs the batch in one piece: use micro-batches 1, or dp-style ddp")
    updates = plan.training and (plan.optimizer or workload.meta.made_by == NAMED)
    return _of_whole_tensors(mesh, placed) if updates and needs_whole_tensors(workload) else placed


def _residual(fidelity: Fidelity) -> CalibratedOverhead | None:
    """What measured iterations taught of composition, None without any.

    Raises:
        InputError: the file cannot be read.
    """
    if not fidelity.composition:
        return None
    from triosim.composition.residual import load

    return load(fidelity.composition)


def mean_run(
    seconds: NDArray[np.float64],
    shares: Sequence[NDArray[np.float64]],
    device: Accelerator,
    residual: CalibratedOverhead | None,
) -> NDArray[np.float64]:
    """Seconds of operators in the mean of the micro-batches, at the full clock of a device, shape ``(operators,)``.

    Args:
        seconds: where each operator runs, on a device that is not slowed down.
        shares: parts of the micro-batches in which they run, as of :func:`run_shares`.
        device: may be slowed down.
        residual: what measured iterations taught of composition, None without any.
    """
    for share in shares:
        seconds = seconds * share
    if device.slowdown != 1:
        seconds = seconds * device.slowdown
    return seconds if residual is None else seconds * residual.terms.scale


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
        anew = placed.weights and not placed.whole and placed.ranks(mesh) > 1
        found.append(quantization.shares(step.trace, micro_batches, anew))
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
    of their gradients.  Where they have parts of parameters they exchange what they need in the update.

    Raises:
        PlanError: the host updates, or replicas that share states have replicas of their own.
    """
    if placed.updates_on_host:
        raise PlanError(
            f"{placed.away[0].name}: the host's processor updates element by element, and the optimizer multiplies "
            "matrices: leave it out, or choose another (optimizer adamw)"
        )
    if not placed.states or placed.ranks(mesh) == 1 or placed.weights:
        return placed
    if placed.replicas:
        raise PlanError(
            f"{placed.name}: the optimizer multiplies whole matrices, which are dealt to all replicas: use zero 2 or "
            "3, which brings them together within a group, or another (optimizer adamw)"
        )
    return replace(placed, path=(("all_reduce", placed.axis),))


def _samples(workload: Trace) -> int | None:
    """Samples of the recorded step, all its micro-batches together; None where they are not known."""
    batch = workload.meta.batch_size
    return None if batch is None else batch * workload.meta.micro_batches


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

    A trace that names no device counts as recorded on the system's device, but times of a processor's thread never as
    those of a GPU; a system that names none consists of the trace's.
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
    theirs = name or (kind == "cpu" and system.models[0].kind != "cpu")
    return system, recorded_on if theirs else system.models[0]


def mesh_of(workload: Trace, system: System, plan: Plan) -> tuple[list[Rule], JobMesh]:
    """The rules and the mesh of a plan.

    Raises:
        InputError: as of :func:`triosim.prediction.prepare.prepare`.
    """
    named = workload.meta.made_by == NAMED
    rules = rules_for(workload, plan, named)
    batch = None if named else _samples(workload)
    parts = workload.meta.micro_batches
    return rules, resolve(plan, system.devices, batch, parts, rules, system.devices_per_server)


def seconds_per_byte(workload: Trace, system: System, plan: Plan) -> NDArray[np.float64]:
    """What a byte costs from each stage of a plan to the next, nothing else moving, shape ``(stages - 1,)``.

    Raises:
        InputError: as of :func:`triosim.prediction.prepare.prepare`.
    """
    _, mesh = mesh_of(workload, system, plan)
    router, assignment = router_of(system), assign_devices(mesh, system.devices, plan.placement, torus=system.torus)
    return np.array([seconds_per_byte_between(router, assignment, mesh, stage) for stage in range(mesh.stages - 1)])


def seconds_per_byte_between(router: Router, assignment: DeviceAssignment, mesh: JobMesh, stage: int = 0) -> float:
    """What a byte costs from a stage to the next; that from the first is what stages are balanced by."""
    if mesh.stages == 1:
        return 0.0
    here, there = (int(assignment.devices[mesh.of_stage(s)[0]]) for s in (stage, stage + 1))
    rates = [float(router.system.bandwidth[edge]) for edge in router.route(here, there)]
    return 1 / min(rates) if rates else 0.0
