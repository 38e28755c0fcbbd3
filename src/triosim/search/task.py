"""Predicting the plans of a sweep one after another, in whatever process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from triosim.core.errors import InputError
from triosim.core.garbage import aged, collection_paused
from triosim.engine.graph import Stuck
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.simulate import simulate
from triosim.search.evaluate import NotEvaluated, evaluate_plan
from triosim.search.grid import LIMITED, limited, with_fields
from triosim.search.outcome import Figures, PlanOutcome, figures
from triosim.search.outline import outline_plan
from triosim.search.plan_figures import evaluated_figures, outlined_figures
from triosim.trace.tables import Trace

Detail = Literal["summary", "all"]
Formed = tuple[Plan, Fidelity]
Numbered = tuple[int, Plan | dict[str, Any]]

SEARCHED = 1024
"""Plans after which somebody looks for cycles among all that there is: plans make next to none."""


def _shares(formed: Formed | str, devices: int) -> str:
    """Alike for plans that divide and price the same step, as most of the work is."""
    if isinstance(formed, str):
        return ""
    plan, _ = formed
    replicas = plan.dp or max(devices // plan.replica_ranks, 1)
    batch = plan.batch_size or (plan.global_batch_size or 0) / replicas
    size = plan.micro_batch_size or batch / (plan.micro_batches or 1)
    step = (plan.tp, plan.parallelism, plan.recompute, plan.sequence_length, size)
    return repr((*step, plan.zero, plan.pp, plan.schedule))


class PlanTask:
    """Predicts one plan after another.

    Args:
        workload, system, base, fidelity, detail, other_recordings: as of :func:`triosim.search.sweep.sweep`.
    """

    def __init__(
        self,
        workload: Trace,
        system: System,
        base: Plan,
        fidelity: Fidelity,
        detail: Detail,
        other_recordings: Sequence[Trace] = (),
    ) -> None:
        self.workload, self.system, self.detail, self.other_recordings = workload, system, detail, other_recordings
        self.base, self.fidelity = base, fidelity
        self._systems: dict[tuple[str | None, ...], System] = {}
        self._since_search = 0

    def formed(self, plan: Plan | dict[str, Any]) -> Formed | str:
        """The plan and its fidelity, or why there is none."""
        try:
            if isinstance(plan, Plan):
                return plan, self.fidelity
            return with_fields(self.base, self.fidelity, plan)
        except InputError as error:
            return str(error)

    def sharing(self, plan: Plan | dict[str, Any]) -> str:
        """Alike for plans that should be predicted one after another."""
        return _shares(self.formed(plan), self.system.devices) if self.detail == "summary" else ""

    def outcomes(self, plans: Iterable[Numbered]) -> list[PlanOutcome]:
        """What some plans give."""
        return [self.outcome(number, plan) for number, plan in plans]

    def outcome(self, number: int, plan: Plan | dict[str, Any]) -> PlanOutcome:
        """What a plan gives."""
        with collection_paused():  # what is made for a plan lasts as long as it: looking for cycles took a tenth
            found = self._outcome(number, plan)
            self._since_search += 1
            if self._since_search < SEARCHED:
                aged()
            else:
                gc.collect()
                self._since_search = 0
        return found

    def _outcome(self, number: int, plan: Plan | dict[str, Any]) -> PlanOutcome:
        asked, given = asked_of(plan), self.formed(plan)
        if isinstance(given, str):
            return PlanOutcome(number, asked, None, given)
        try:
            return self._formed_outcome(number, plan, given)
        except InputError as error:
            return PlanOutcome(number, asked, None, str(error))

    def _formed_outcome(self, number: int, plan: Plan | dict[str, Any], given: Formed) -> PlanOutcome:
        """What a plan gives that can be formed.

        Raises:
            InputError: the workload cannot be divided as it says.
        """
        asked, (formed, fidelity) = asked_of(plan), given
        system = self.system if isinstance(plan, Plan) else self._limited(plan)
        held = not isinstance(plan, Plan) and any(name in plan for name in LIMITED)
        if self.detail == "summary" and not held:  # of clocks and caps energy is half the question
            found = self._summary(system, formed, fidelity)
            if found is not None:
                return PlanOutcome(number, asked, found)
        result = simulate(self.workload, system, formed, fidelity, fit=False, other_recordings=self.other_recordings)
        whole = result.to_dict() if self.detail == "all" else None
        return PlanOutcome(number, asked, figures(result, held), "", whole)

    def _limited(self, asked: dict[str, Any]) -> System:
        """The system under the limits that a plan of the sweep asks for: one for all with the same."""
        key = tuple(asked.get(name) for name in LIMITED)
        if key not in self._systems:
            self._systems[key] = limited(self.system, asked)
        return self._systems[key]

    def _summary(self, system: System, plan: Plan, fidelity: Fidelity) -> Figures | None:
        """Figures without a full prediction; None where there is no other way."""
        try:
            return outlined_figures(outline_plan(self.workload, system, plan, fidelity, self.other_recordings))
        except (NotEvaluated, Stuck):  # of looped-bfs outlines play turns that wait in a circle
            pass
        try:
            return evaluated_figures(evaluate_plan(self.workload, system, plan, fidelity, self.other_recordings))
        except (NotEvaluated, Stuck):
            return None


def asked_of(plan: Plan | dict[str, Any]) -> dict[str, Any]:
    """What a sweep gave of a plan, in values that JSON has."""
    fields = {n: getattr(plan, n) for n in sorted(plan.given)} if isinstance(plan, Plan) else plan
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
