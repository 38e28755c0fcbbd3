"""One step of post-training: each phase predicted as a step of its own, one after another, and what is held beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.memory.footprint import ROUND_BYTES
from triosim.network.device_assignment import DeviceAssignment
from triosim.plan import Plan
from triosim.posttraining.recipe import POLICY, PhaseOfStep, StepModel
from triosim.posttraining.workload import PostTrainingWorkload
from triosim.prediction.played_run import Run
from triosim.prediction.priced_job import forward_in_few_bits
from triosim.prediction.result import Breakdown, Result
from triosim.prediction.simulate import simulate
from triosim.trace.tables import Category, Trace

Progress = Callable[[str], None]

FORWARD, UPDATE, GIVEN = "forward", "update", "given"
"""What a phase does."""
DOES_NOT_FIT = "the job does not fit in memory"
"""How the warning of a phase that does not fit by itself begins."""
_BROUGHT = (Category.INPUT, Category.LABEL)


@dataclass(frozen=True)
class PhaseRow:
    """A phase as it was predicted.

    Attributes:
        name, model: of the phase.
        does: forward, update (forward, backward and optimizer), or given.
        count: how often it is run in a step.
        samples: of one run, over all replicas.
        each_s: of one run.
        seconds, low_s, high_s: of all runs, and the 90 % interval.
        breakdown: of one run; None for what is given.
        reserved_bytes: on the fullest device, what other models hold included; None for what is given.
    """

    name: str
    model: str
    does: str
    count: int
    samples: int
    each_s: float
    seconds: float
    low_s: float
    high_s: float
    breakdown: Breakdown | None
    reserved_bytes: int | None


@dataclass(frozen=True)
class ModelRow:
    """A model of the step.

    Attributes:
        name: what it is for.
        workload: which one it is.
        parameters: elements of its weights.
        trained: whether it has gradients and an optimizer.
        held_bytes: on the fullest device between its phases: weights and optimizer states.
        state_bytes: of what is trained and of what its optimizer keeps, each once: what a checkpoint has.
    """

    name: str
    workload: str
    parameters: int
    trained: bool
    held_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """Of the fullest device over a step, bytes.

    Attributes:
        reserved_bytes: peak of what the allocator holds, all models together.
        capacity_bytes, context_bytes: as of :class:`triosim.prediction.result.Memory`.
        fits: whether it does; None where the capacity is not known.
        phase, stage: where the peak is.
    """

    reserved_bytes: int
    capacity_bytes: int | None
    context_bytes: int
    fits: bool | None
    phase: str
    stage: int


@dataclass(frozen=True)
class PostTrainingStep:
    """A step of post-training that was predicted.

    Attributes:
        recipe, options: what was asked.
        system: its name.
        seconds, low_s, high_s: of a step, and its interval: phases are taken to err alike, so theirs are added up.
        prompts, samples, tokens: of a step over all replicas; tokens None where samples have none.
        phases, models: in order.
        memory: of the fullest device.
        plan: of one update of the policy, every size known.
        sources: of the policy's update, and of other phases what that has nothing of.
        warnings: of all phases, each once.
    """

    recipe: str
    options: Mapping[str, object]
    system: str
    seconds: float
    low_s: float
    high_s: float
    prompts: int
    samples: int
    tokens: int | None
    phases: tuple[PhaseRow, ...]
    models: tuple[ModelRow, ...]
    memory: StepMemory
    plan: Mapping[str, object]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _PhaseOutcome:
    """A phase with what it says of memory: bytes by pipeline stage."""

    phase: PhaseOfStep
    result: Result
    held: Mapping[int, int]
    reserved: Mapping[int, int] = field(default_factory=dict)


def predict(
    workload: PostTrainingWorkload,
    system: System,
    plan: Plan,
    fidelity: Fidelity,
    progress: Progress = lambda words: None,
) -> PostTrainingStep:
    """Predict a step.

    Args:
        workload: what it is made of.
        system: the machine.
        plan: how each phase is divided.  Its batch counts prompts, its micro-batches are those of one update.
        fidelity: which models predict it.
        progress: called with what is being done.

    Raises:
        InputError: as of :func:`triosim.prediction.simulate.simulate`.
        PlanError: the answers of a step cannot be divided among its updates.
    """
    recipe, rollout_s = workload.recipe, workload.rollout_s
    update = workload.plan_of_an_update(plan)
    ran: list[_PhaseOutcome] = []
    for phase in recipe.phases():
        known = next((r for r in ran if (r.phase.model, r.phase.trains) == (phase.model, phase.trains)), None)
        if known is not None:
            ran.append(replace(known, phase=phase))
            continue
        own, trace = update, workload.trace_of(phase)
        if not phase.trains:
            own = workload.plan_of_a_forward(update)
            trace = forward_in_few_bits(trace, system, own)
        progress(phase.name)
        ran.append(_run(phase, trace, system, own, fidelity))
    models = {model.name: model for model in workload.models}
    held = {
        name: max((r.held for r in ran if r.phase.model == name), key=lambda h: sum(h.values()), default={})
        for name, model in models.items()
        if not model.within_policy
    }
    rows = tuple(_row(r, held, models) for r in ran)
    policy = next(r.result for r in reversed(ran) if r.phase.model == POLICY)
    samples = rows[-1].samples * workload.updates
    if rollout_s is not None:
        rows = (
            PhaseRow("roll-out", POLICY, GIVEN, 1, samples, rollout_s, rollout_s, rollout_s, rollout_s, None, None),
            *rows,
        )
    length = policy.workload.sequence_length
    memory = _memory(ran, held, models)
    return PostTrainingStep(
        recipe=workload.name,
        options=dict(vars(recipe)),
        system=policy.system.name,
        seconds=sum(row.seconds for row in rows),
        low_s=sum(row.low_s for row in rows),
        high_s=sum(row.high_s for row in rows),
        prompts=samples // recipe.answers,
        samples=samples,
        tokens=samples * length if length else None,
        phases=rows,
        models=tuple(_model_row(model, ran, held) for model in models.values()),
        memory=memory,
        plan=policy.to_dict()["plan"],
        sources=_sources(policy, ran),
        warnings=_warnings(ran, memory),
    )


def _sources(policy: Result, ran: list[_PhaseOutcome]) -> tuple[str, ...]:
    """Those of the policy's update, and of other phases the kinds of them that it has not."""
    kinds = {source.partition(":")[0] for source in policy.sources}
    more = (s for r in ran for s in r.result.sources if s.partition(":")[0] not in kinds)
    return (*policy.sources, *dict.fromkeys(more))


def _warnings(ran: list[_PhaseOutcome], memory: StepMemory) -> tuple[str, ...]:
    """Those of all phases, but that one of them does not fit: the step says it of all models together."""
    found = dict.fromkeys(w for r in ran for w in r.result.warnings if not w.startswith(DOES_NOT_FIT))
    return (*found, f"{DOES_NOT_FIT}: times are as if it did") if memory.fits is False else tuple(found)


def _run(phase: PhaseOfStep, trace: Trace, system: System, plan: Plan, fidelity: Fidelity) -> _PhaseOutcome:
    held: dict[int, int] = {}

    def keep(run: Run, assignment: DeviceAssignment, machine: System, step: Trace) -> None:
        for program in run.programs:
            lives = program.lifetimes
            if lives is not None:
                stays = (lives.start < 0) & (lives.end >= len(program)) & ~np.isin(lives.category, _BROUGHT)
                size = int((-(-lives.bytes[stays] // ROUND_BYTES) * ROUND_BYTES).sum())
                held[program.stage] = max(held.get(program.stage, 0), size)

    result = simulate(trace, system, plan, fidelity, on_finished=keep, fit=False, at_once=True)
    reserved: dict[int, int] = {}
    for row in result.devices:
        reserved[row.stage] = max(reserved.get(row.stage, 0), row.reserved_bytes)
    return _PhaseOutcome(phase, result, held, reserved)


def _beside(model: StepModel, held: Mapping[str, Mapping[int, int]], stage: int) -> int:
    """What models hold on a stage that do not run."""
    own = POLICY if model.within_policy else model.name
    return sum(sizes.get(stage, 0) for name, sizes in held.items() if name != own)


def _full(ran: _PhaseOutcome, held: Mapping[str, Mapping[int, int]], model: StepModel) -> dict[int, int]:
    """What all models hold on each stage while a phase is at its peak."""
    own = POLICY if model.within_policy else model.name
    found = {}
    for stage, size in ran.reserved.items():
        rests = held.get(own, {}).get(stage, 0) - ran.held.get(stage, 0)  # states, and adapters, that it does not read
        found[stage] = size + max(rests, 0) + _beside(model, held, stage)
    return found


def _row(ran: _PhaseOutcome, held: Mapping[str, Mapping[int, int]], models: Mapping[str, StepModel]) -> PhaseRow:
    phase, result = ran.phase, ran.result
    count = phase.updates * phase.epochs
    low, high = result.interval_s
    return PhaseRow(
        phase.name, phase.model, UPDATE if phase.trains else FORWARD, count, result.plan.global_batch_size,
        result.iteration_time_s, result.iteration_time_s * count, low * count, high * count, result.breakdown_s,
        max(_full(ran, held, models[phase.model]).values(), default=0),
    )  # fmt: skip


def _model_row(model: StepModel, ran: list[_PhaseOutcome], held: Mapping[str, Mapping[int, int]]) -> ModelRow:
    own = [r.result.workload for r in ran if r.phase.model == model.name]
    workload, states = own[0], max(work.state_bytes for work in own) if model.trained else 0
    size = max(held.get(model.name, {}).values(), default=0)
    return ModelRow(model.name, workload.name, workload.parameters, model.trained, size, states)


def _memory(
    ran: list[_PhaseOutcome], held: Mapping[str, Mapping[int, int]], models: Mapping[str, StepModel]
) -> StepMemory:
    found = [(size, r.phase.name, stage) for r in ran for stage, size in _full(r, held, models[r.phase.model]).items()]
    size, phase, stage = max(found, key=lambda row: row[0])
    memory = ran[0].result.memory
    capacity = memory.capacity_bytes
    fits = None if capacity is None else size + memory.context_bytes <= capacity
    return StepMemory(size, capacity, memory.context_bytes, fits, phase, stage)
