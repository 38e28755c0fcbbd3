"""Predictions, from the workload to the result: the whole road in a page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.measured import MeasuredCollectives
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.freed_memory import freed_memory_kept
from triosim.core.registry import is_ours
from triosim.energy.options import EnergyOptions
from triosim.engine.solver import NetworkModel
from triosim.engine.stats import Stopwatch
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.sharing import network_model
from triosim.plan import Plan
from triosim.prediction.largest_batch import fullest, largest_batch
from triosim.prediction.played_run import Run
from triosim.prediction.playing import communication_of, folded_first, lowered_job, play_job, play_short, settled
from triosim.prediction.prepare import CompiledJob, check_arguments, written
from triosim.prediction.priced_job import Progress, price_job
from triosim.prediction.result import Result
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.prediction.steady import NotSteady, ShortJob, shortened
from triosim.prediction.summary import Summary
from triosim.prediction.uncertainty import (
    Uncertainty,
    prefixed_uncertainty,
    steady_uncertainty,
    too_large_to_draw,
    uncertainty,
)
from triosim.trace.tables import Trace

if TYPE_CHECKING:
    from triosim.prediction.variation import Variation, VariedTime

OnFinished = Callable[[Run, DeviceAssignment, System, Trace], None]
"""Given the played job, where its ranks are, on which system, and the step of one rank."""


def simulate(
    workload: Trace,
    system: System,
    plan: Plan | None = None,
    fidelity: Fidelity | None = None,
    progress: Progress | None = None,
    on_finished: OnFinished | None = None,
    fit: bool | None = None,
    measured: MeasuredCollectives | None = None,
    other_recordings: Sequence[Trace] = (),
    energy: EnergyOptions | None = None,
    at_once: bool = False,
    variation: Variation | None = None,
) -> Result:
    """Predict time and memory of a workload on a system.

    Args:
        workload: one step on one device.
        system: the machine.
        plan: how the work is divided; the default fills the devices with data-parallel replicas.
        fidelity: which models predict it.
        progress: called with what is being done, in a few words.
        on_finished: given the played job, for what else is to be made of it (traces for other simulators).
        fit: look for the largest batch that fits in memory; None looks only where the job's own does not.
        measured: what collectives and transfers take beside the system's links, as measured on the very machine.
        other_recordings: the same step recorded on other devices: operator times are carried over from all recordings.
        energy: constants of energy beside the table's, and what devices draw that were calibrated.
        at_once: play every micro-batch now.  Else a job whose turns are alike (:mod:`triosim.prediction.steady`) is
            played as a short one, and as it is when somebody asks for what needs that: interval, energy, rows by
            module, timeline.  The numbers are the same.
        variation: what varies from iteration to iteration; every rank is played by itself to see what becomes of it.

    Raises:
        InputError: the workload, the system and the plan do not go together; the message says how they would.
    """
    check_arguments(workload, system, plan, fidelity)
    clock = Stopwatch()
    progress = progress or (lambda words: None)
    plan, fidelity, energy = plan or Plan(), fidelity or Fidelity(), energy or EnergyOptions()
    model = network_model(fidelity.solver, fidelity.solver_options)
    drawn = energy.of_capped(system.models)
    staged = stage_job(price_job(workload, system, plan, fidelity, progress, other_recordings, drawn))
    asked = _Simulation(
        workload=workload, system=system, plan=plan, energy=energy, fit=fit, staged=staged,
        short=shortened(staged) if on_finished is None and is_ours(type(model)) else None,
        communication=communication_of(staged, measured), model=model, fold=fidelity.fold and model.weighted,
        clock=clock, progress=progress,
    )  # fmt: skip
    at_length = functools.partial(
        simulate, workload, system, plan, fidelity, fit=False, measured=measured, other_recordings=other_recordings,
        energy=energy, at_once=True,
    )  # fmt: skip
    with freed_memory_kept():
        if at_once or variation is not None:
            return asked.whole(on_finished, variation)
        return asked.of_turns(functools.cache(at_length)) or asked.whole(on_finished, None)


@dataclass(frozen=True, kw_only=True)
class _Simulation:
    """A job that is to be played, and what is to be made of it.

    Attributes:
        workload, system, plan, energy, fit, progress: as of :func:`simulate`.
        staged: the job, priced and cut into stages.
        short: the same with few of its turns, None where it cannot say what the job does.
        communication: how its collectives are done.
        model: how links are shared.
        fold: whether ranks that do the same are played as one.
        clock: runs since the prediction began.
    """

    workload: Trace
    system: System
    plan: Plan
    energy: EnergyOptions
    fit: bool | None
    staged: StagedJob
    short: ShortJob | None
    communication: CollectiveCommunication
    model: NetworkModel
    fold: bool
    clock: Stopwatch
    progress: Progress

    def of_turns(self, at_length: Callable[[], Result]) -> Result | None:
        """The result from a few turns of the job; None where they do not say what the whole job does.

        Args:
            at_length: the result of the whole job, asked for what the few turns cannot tell.
        """
        if self.short is None:
            return None
        try:
            job, turns = play_short(self.short, self.communication, self.model, self.fold, self.progress)
        except NotSteady:
            return None
        largest = self._largest_batch(job)
        self.progress("adding up")
        unsure = functools.cache(lambda: steady_uncertainty(job, turns.run, turns.amount, self.model))

        def uncertainty_of_turns() -> Uncertainty:
            said = unsure()
            assert said is not None  # else the whole job is asked
            return said

        found = self._result(job, turns.run, turns.sources, uncertainty_of_turns, largest)
        parts = replace(
            found.on_demand,
            interval=lambda: (found if unsure() else at_length()).on_demand.interval(),
            energy=lambda: at_length().energy,
            cost=lambda used, interval, varies: at_length().on_demand.cost(used, interval, varies),
            layers=lambda: at_length().layers,
            timeline=lambda: at_length().timeline,
        )
        return replace(found, on_demand=parts)

    def whole(self, on_finished: OnFinished | None, variation: Variation | None) -> Result:
        """The result from every micro-batch of the job."""
        job = written(self.staged, self.progress)
        largest = self._largest_batch(job)
        self.progress("lowering the programs")
        run, sources, played, amount, cut, _ = play_job(
            job, self.communication, self.model, self.fold, self.progress, common_once=on_finished is None
        )
        if on_finished is not None:
            on_finished(run, job.assignment, job.system, job.step.trace)
        self.progress("adding up")

        def unsure() -> Uncertainty:
            if cut is not None:
                return prefixed_uncertainty(job, cut, played, amount, self.model)
            if (found := self._uncertainty_of_turns()) is not None:
                return found
            if not self.fold and self.model.weighted and too_large_to_draw(len(amount)):
                from triosim.prediction.folded_run import folded  # few ask for every rank

                if (alike := folded(job, self.communication, run, played, amount)) is not None:
                    return uncertainty(job, *alike, self.model)
            return uncertainty(job, run.lowered, played, amount, self.model)

        found = self._result(job, run, sources, unsure, largest)
        if variation is None:
            return found
        self.progress("playing every rank")
        return replace(found, variation=self._varied(job, variation, found.iteration_time_s))

    def _result(
        self, job: CompiledJob, run: Run, sources: tuple[str, ...], unsure: Callable[[], Uncertainty],
        largest: int | None,
    ) -> Result:  # fmt: skip
        stats = functools.partial(self.clock.stats, run.played.engine)
        return Summary(job, run, sources, stats, unsure, largest, self.energy).result()

    def _uncertainty_of_turns(self) -> Uncertainty | None:
        """That of a pipeline of few turns, where it says what one of many does and that is too long to be drawn.

        Its ranks are folded also where every rank was played: the ends of draws are the same.
        """
        if self.short is None:
            return None
        try:
            job, turns = play_short(self.short, self.communication, self.model, self.model.weighted, lambda words: None)
        except NotSteady:
            return None
        return steady_uncertainty(job, turns.run, turns.amount, self.model)

    def _largest_batch(self, job: CompiledJob) -> int | None:
        """The largest batch that fits, where it is asked for or the job's own does not fit."""
        if self.fit is False or (self.fit is None and fullest(job).fits is not False):
            return None
        self.progress("looking for the largest batch that fits")
        try:
            return largest_batch(self.workload, self.system, self.plan, job)
        except InputError:
            if self.fit:
                raise
            return None  # the trace cannot be taken to another batch, and nobody has asked to

    def _varied(self, job: CompiledJob, variation: Variation, seconds: float) -> VariedTime:
        """Iteration times where something varies, with every rank played by itself."""
        from triosim.prediction.variation import varied

        lowered, _ = lowered_job(job, fold=False, communication=self.communication)
        known = folded_first(job, self.communication, self.model, self.progress)
        played, amount, _ = settled([(job, lowered)], lowered.graph, lowered.wires, self.model, known=known)
        graph = replace(lowered.graph, amount=amount)
        return varied(variation, lowered, graph, played, self.model, seconds, job.fidelity.seed)
