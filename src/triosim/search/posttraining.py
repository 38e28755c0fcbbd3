"""Steps of post-training in a search: what a plan of one gives, and what it takes at least.

**Time.**  A step's phases come one after another, so it takes at least the roll-out and, of each phase as often as it
is run, what that takes at least (:mod:`triosim.search.bounds`).  A forward is a pass without a backward: stage ``s``
begins after a forward of every stage before it, so ``T >= m w_s + sum_{j < s} w_j`` holds of it too.

**Memory.**  While a phase is at its peak the fullest device holds at least what the phase alone takes.  Where all is on
one stage it holds the weights and optimizer states of every other model as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.posttraining.prediction import PostTrainingStep, predict
from triosim.posttraining.workload import PostTrainingWorkload
from triosim.prediction.result import Breakdown
from triosim.search.bounds import GATHERS_AGAIN, PlanBound, PlanBounds
from triosim.search.outcome import Figures, PlanOutcome, binding, sizes_in
from triosim.search.space import Candidate
from triosim.search.task import Formed, PlanTask, asked_of
from triosim.transform.quantization import quantized, reads_either_way

ROLL_OUT = "roll-out"


class PostTrainingTask(PlanTask):
    """Predicts one step of post-training after another.

    Args:
        step: of post-training.
        system, base, fidelity: as of :class:`PlanTask`; the batch of ``base`` counts prompts.
    """

    def __init__(self, step: PostTrainingWorkload, system: System, base: Plan, fidelity: Fidelity) -> None:
        super().__init__(step.policy, system, base, fidelity, "summary")
        self._step = step

    def _formed_outcome(self, number: int, plan: Plan | dict[str, Any], given: Formed) -> PlanOutcome:
        return PlanOutcome(number, asked_of(plan), step_figures(predict(self._step, self.system, *given)))


def step_figures(step: PostTrainingStep) -> Figures:
    """What plans are compared by, of one step.  Devices wait for what is given: that counts as idle."""
    spent = [(row.count, row.breakdown) for row in step.phases if row.breakdown is not None]
    compute, exposed, host, idle = (
        sum(count * getattr(part, name) for count, part in spent)
        for name in ("compute", "exposed_communication", "host", "idle")
    )
    given = sum(row.seconds for row in step.phases if row.breakdown is None)
    parts = Breakdown(compute, sum(count * part.communication for count, part in spent), exposed, host, idle)
    memory = step.memory
    return Figures(
        sizes=sizes_in(step.plan),
        iteration_time_s=step.seconds,
        samples_per_s=step.samples / step.seconds,
        tokens_per_s=None if step.tokens is None else step.tokens / step.seconds,
        mfu=None,
        compute_s=compute,
        exposed_communication_s=exposed,
        host_s=host,
        idle_s=idle + given,
        binds=ROLL_OUT if given > max(compute, exposed, host, idle) else binding(parts, lambda: ""),
        reserved_bytes=memory.reserved_bytes,
        context_bytes=memory.context_bytes,
        capacity_bytes=memory.capacity_bytes,
        fits=memory.fits,
        warnings=step.warnings,
    )


@dataclass(frozen=True)
class _BoundedPhase:
    """A phase, how often it is run, and what tells its least."""

    model: str
    trains: bool
    count: int
    bounds: PlanBounds


class PostTrainingBounds:
    """Lower bounds of steps of post-training, asked as those of :class:`PlanBounds` are.

    Args:
        step: of post-training.
        system, fidelity: as of :class:`PlanBounds`.
        base: fields that no plan changes; its batch counts prompts.
    """

    def __init__(self, step: PostTrainingWorkload, system: System, base: Plan, fidelity: Fidelity) -> None:
        self._updates, self._given = step.updates, step.rollout_s or 0.0
        update = step.plan_of_an_update(base.replaced(micro_batches=1))
        plans = {True: update, False: step.plan_of_a_forward(update)}
        known: dict[tuple[int, bool], PlanBounds] = {}
        found, either_way = [], all(map(reads_either_way, system.models))
        for phase in step.recipe.phases():
            trace = step.trace_of(phase)
            if not phase.trains:  # without what pads the rows of experts: that only adds to it
                trace = quantized(trace, base.quantize, either_way, forward=True)
            if (key := (id(trace), phase.trains)) not in known:  # a frozen copy runs what the policy does
                known[key] = PlanBounds(trace, system, plans[phase.trains].replaced(micro_batches=None), fidelity)
            found.append(_BoundedPhase(phase.model, phase.trains, phase.updates * phase.epochs, known[key]))
        self._phases = tuple(found)
        own = {model.name for model in step.models if not model.within_policy}
        self._held = {phase.model: phase for phase in self._phases if phase.model in own}

    def expect(self, candidate: Candidate) -> None:
        """See :meth:`PlanBounds.expect`."""
        for phase in self._phases:
            phase.bounds.expect(self._of_phase(phase, candidate))

    def at_once(self, candidate: Candidate) -> PlanBound | str:
        """See :meth:`PlanBounds.at_once`."""
        return self._added("at_once", "at_once", candidate)

    def by_volume(self, candidate: Candidate) -> PlanBound | str:
        """See :meth:`PlanBounds.by_volume`."""
        return self._added("by_volume", "at_once", candidate)

    def without_recomputation(self, candidate: Candidate) -> PlanBound | str:
        """See :meth:`PlanBounds.without_recomputation`."""
        return self._added("without_recomputation", "at_once", candidate)

    def of(self, candidate: Candidate) -> PlanBound | str:
        """See :meth:`PlanBounds.of`."""
        found = self._added("of", "of", candidate)
        if isinstance(found, str) or int(candidate.asked["pp"]) > 1:
            return found
        size = 0
        for phase in self._phases:
            own = phase.bounds.of(self._of_phase(phase, candidate))
            assert not isinstance(own, str)
            beside = (
                other.bounds.held(self._of_phase(other, candidate).asked)
                for name, other in self._held.items() if name != phase.model
            )  # fmt: skip
            size = max(size, own.bytes + int(sum(beside)))
        return replace(found, bytes=size)

    def of_stages(self, candidate: Candidate) -> PlanBound | str:
        """See :meth:`PlanBounds.of_stages`."""
        return self._added("of_stages", "of", candidate)

    def _added(self, update: str, forward: str, candidate: Candidate) -> PlanBound | str:
        """The least of all phases, each told by what tells that of updates, and of forwards."""
        seconds, size = self._given, 0
        for phase in self._phases:
            name = update if phase.trains else forward
            bound: PlanBound | str = getattr(phase.bounds, name)(self._of_phase(phase, candidate))
            if isinstance(bound, str):
                return bound
            seconds += phase.count * bound.seconds
            size = max(size, bound.bytes)
        return PlanBound(seconds, size)

    def _of_phase(self, phase: _BoundedPhase, candidate: Candidate) -> Candidate:
        """How a plan runs a phase."""
        if phase.trains:
            return candidate
        asked = candidate.asked
        forward = {
            "micro_batches": int(asked["micro_batches"]) * self._updates, "recompute": "none",
            "zero": GATHERS_AGAIN if asked["zero"] == GATHERS_AGAIN else 0,
        }  # fmt: skip
        return Candidate(candidate.number, candidate.devices, {**asked, **forward})
