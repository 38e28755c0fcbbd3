"""Predictions, from the workload to the result: the whole road in a page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.measured import MeasuredCollectives
from triosim.collectives.scheduling import Collectives
from triosim.composition.interference import Tasks, settle
from triosim.core.caching import IdentityKey
from triosim.core.errors import InputError
from triosim.core.registry import is_ours
from triosim.core.result_cache import ResultCache, content
from triosim.energy.options import EnergyOptions
from triosim.engine.graph import EngineNetwork, Graph, GraphRun
from triosim.engine.play import play, selected_engine
from triosim.engine.solver import NetworkModel
from triosim.engine.stats import Stopwatch
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.memory.footprint import Footprint
from triosim.network.lowering import LoweredJob, lower
from triosim.network.placement import Placement
from triosim.network.sharing import network_model
from triosim.plan import Plan
from triosim.prediction.largest_batch import fullest, largest_batch
from triosim.prediction.played_run import Run
from triosim.prediction.prepare import MOST_KEPT, CompiledJob, check_arguments, footprints, written
from triosim.prediction.priced_job import Progress, price_job
from triosim.prediction.result import Result
from triosim.prediction.staged_job import stage_job
from triosim.prediction.steady import NotSteady, ShortJob, SteadyRun, regular, shortened
from triosim.prediction.summary import Summary
from triosim.prediction.uncertainty import Uncertainty, prefixed_uncertainty, steady_uncertainty, uncertainty
from triosim.schedule.program import Op
from triosim.trace.tables import Trace

if TYPE_CHECKING:
    from triosim.network.common_prefix import PrefixedJob
    from triosim.prediction.variation import Variation, VariedTime

FEWEST_TASKS = 200_000
"""Jobs of fewer are played as they are: to find what their ranks have in common would take longer."""

OnFinished = Callable[[Run, Placement, System, Trace], None]
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

    What ranks have in common before something parts them is played once (:mod:`triosim.network.common_prefix`).

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
    check_arguments(workload, system)
    clock = Stopwatch()
    progress = progress or (lambda words: None)
    plan, fidelity = plan or Plan(), fidelity or Fidelity()
    energy = energy or EnergyOptions()
    model = network_model(fidelity.solver, fidelity.solver_options)
    fold = fidelity.fold and model.weighted
    drawn = energy.of_capped(system.models)
    made = stage_job(price_job(workload, system, plan, fidelity, progress, other_recordings, drawn))
    short = shortened(made) if on_finished is None and is_ours(type(model)) else None

    @functools.cache
    def unsure_by_turns() -> Uncertainty | None:
        """From a pipeline of few turns, where that says what one of many does and that is too long to be drawn."""
        if short is None:
            return None
        try:
            job, known = _played_short(short, measured, model, fold, lambda words: None)
        except NotSteady:
            return None
        assert isinstance(known.run, SteadyRun)
        return steady_uncertainty(job, known.run, known.amount, model)

    if short is not None and not at_once and variation is None:
        try:
            job, known = _played_short(short, measured, model, fold, progress)
        except NotSteady:
            pass
        else:
            largest = _largest_batch(workload, system, plan, job, fit, progress)
            progress("adding up")

            @functools.cache
            def whole() -> Result:
                return simulate(
                    workload,
                    system,
                    plan,
                    fidelity,
                    fit=False,
                    measured=measured,
                    other_recordings=other_recordings,
                    energy=energy,
                    at_once=True,
                )

            def by_turns() -> Uncertainty:
                said = unsure_by_turns()
                assert said is not None  # else the whole job is asked
                return said

            found = result_of(job, known.run, known.sources, clock, by_turns, largest, energy)
            return replace(
                found,
                make_interval=lambda: (found if unsure_by_turns() else whole()).make_interval(),
                make_energy=lambda: whole().energy,
                make_cost=lambda used, interval, varies: whole().make_cost(used, interval, varies),
                make_layers=lambda: whole().layers,
                make_timeline=lambda: whole().timeline,
            )  # fmt: skip
    job = written(made, progress)
    largest = _largest_batch(workload, system, plan, job, fit, progress)

    progress("lowering the programs")
    means = _means(job, measured)

    # a model of a user's own may remember what crossed a link, or see one link from another
    cutting = fold and on_finished is None and is_ours(type(model))

    def make() -> _PlayedJob:
        if cutting and (known := _played_prefixed(job, means, model, progress)) is not None:
            return known
        lowered, sources = _LOWERED.get(_what_is_lowered(job, means, fold), lambda: _lowered(job, means, fold))
        progress("playing the job")
        played, amount = settled([(job, lowered)], lowered.graph, lowered.wires, model)
        run = Run(job.programs, lowered, lowered.worked(played), plan.iterations)
        return _PlayedJob(run, sources, played, amount)

    what = (_what_is_played(job, means, fold, plan.iterations), cutting)
    known = _PLAYED.get(what, make) if is_ours(type(model)) else make()
    run, sources, played, amount, cut = known
    lowered = run.lowered
    if on_finished is not None:
        on_finished(run, job.placement, job.system, job.step.trace)

    progress("adding up")

    def unsure() -> Uncertainty:
        if cut is not None:
            return prefixed_uncertainty(job, cut, played, amount, model)
        return unsure_by_turns() or uncertainty(job, lowered, played, amount, model)

    found = result_of(job, run, sources, clock, unsure, largest, energy)
    if variation is None:
        return found
    progress("playing every rank")
    return replace(found, variation=_varied(job, means, model, variation, found.iteration_time_s))


def _played_short(
    short: ShortJob, measured: MeasuredCollectives | None, model: NetworkModel, fold: bool, progress: Progress
) -> tuple[CompiledJob, _PlayedJob]:
    """A job with the programs of the short one, and that one played.

    Raises:
        NotSteady: it does not say what the whole job does.
    """
    job = written(short.made, progress, memory=False)
    progress("lowering the programs")
    means = _means(job, measured)

    def make() -> tuple[_PlayedJob, list[Footprint]]:
        lowered, sources = _LOWERED.get(_what_is_lowered(job, means, fold), lambda: _lowered(job, means, fold))
        progress("playing the job")
        played, amount = settled([(job, lowered)], lowered.graph, lowered.wires, model, short)
        period = regular(short, job.programs, lowered, played)
        programs = [short.whole(program) for program in job.programs]
        run = SteadyRun(programs, lowered, lowered.worked(played), 1, short, period)
        return _PlayedJob(run, sources, played, amount), footprints(programs)

    known, found = _SHORT.get((_what_is_played(job, means, fold, 1), short.added), make)
    mesh = short.made.mesh
    parts = mesh.micro_batches + short.added
    mesh = replace(mesh, micro_batches=parts, batch_size=mesh.micro_batch_size * parts)
    return replace(job, mesh=mesh, programs=list(known.run.programs), footprints=found), known


def _played_prefixed(
    job: CompiledJob, means: CollectiveCommunication, model: NetworkModel, progress: Progress
) -> _PlayedJob | None:
    """A job played with what its ranks have in common played once; None where that saves little or is not exact."""
    if sum(len(program) * len(program.ranks) for program in job.programs) < FEWEST_TASKS:
        return None
    from triosim.prediction.prefixed_run import play_prefixed  # most jobs start without it

    known = play_prefixed(job, means, model, FEWEST_TASKS, progress)
    if known is None:
        return None
    return _PlayedJob(known.run, _sources(means, known.run.lowered), known.played, known.amount, known.cut)


class _PlayedJob(NamedTuple):
    """A job that has been played.

    Attributes:
        run: its tasks and when their work was done.
        sources: where the costs of its collectives are from.
        played, amount: when its tasks ended, and how long they took, as played.
        cut: the parts whose tasks these are; None where they are those of the run.
    """

    run: Run
    sources: tuple[str, ...]
    played: GraphRun
    amount: NDArray[np.int64]
    cut: PrefixedJob | None = None


_LOWERED = ResultCache[tuple[LoweredJob, tuple[str, ...]]](1, MOST_KEPT, lambda made: len(made[0].graph))
_PLAYED = ResultCache[_PlayedJob](1, MOST_KEPT, lambda job: len(job.amount))
_SHORT = ResultCache[tuple[_PlayedJob, list[Footprint]]](1, MOST_KEPT, lambda made: len(made[0].amount))


def _what_is_lowered(job: CompiledJob, means: CollectiveCommunication, fold: bool) -> Hashable:
    """All that the tasks of a job depend on."""
    return tuple(map(IdentityKey, job.programs)), content(job.placement), means, fold


def _what_is_played(job: CompiledJob, means: CollectiveCommunication, fold: bool, iterations: int) -> Hashable:
    """All that the times of the tasks of a job depend on; the network model must be one of ours."""
    asked, slowed = job.fidelity, tuple(interferes.slowdown for interferes in job.interferes)
    return (
        _what_is_lowered(job, means, fold),
        iterations,
        asked.solver,
        asked.solver_options,
        slowed,
        selected_engine(),
    )


def _largest_batch(
    workload: Trace, system: System, plan: Plan, job: CompiledJob, asked: bool | None, progress: Progress
) -> int | None:
    """The largest batch that fits, where it is asked for or the job's own does not fit."""
    if asked is False or (asked is None and fullest(job).fits is not False):
        return None
    progress("looking for the largest batch that fits")
    try:
        return largest_batch(workload, system, plan, job)
    except InputError:
        if asked:
            raise
        return None  # the trace cannot be taken to another batch, and nobody has asked to


def lowered_job(
    job: CompiledJob, fold: bool, measured: MeasuredCollectives | None = None
) -> tuple[LoweredJob, tuple[str, ...]]:
    """The tasks of a job, and where the costs of its collectives are from."""
    return _lowered(job, _means(job, measured), fold)


def _means(job: CompiledJob, measured: MeasuredCollectives | None) -> CollectiveCommunication:
    """How the collectives of a job are done."""
    fidelity = job.fidelity
    collectives = Collectives(fidelity.collective_algorithm, fidelity.collective_protocol, job.system.ideal)
    more = job.residual.terms.collective_s if job.residual is not None else 0.0
    return CollectiveCommunication(job.system, job.router, collectives, measured, more)


def _lowered(job: CompiledJob, means: CollectiveCommunication, fold: bool) -> tuple[LoweredJob, tuple[str, ...]]:
    lowered = lower(job.programs, job.placement, job.router, means, fold=fold)
    return lowered, _sources(means, lowered)


def _sources(means: CollectiveCommunication, lowered: LoweredJob) -> tuple[str, ...]:
    """Where the costs of collectives are from, in words."""
    own = (means.measured.source,) if means.measured is not None else ()
    return tuple(dict.fromkeys((*own, *lowered.sources)))


def settled(
    parts: Sequence[tuple[CompiledJob, LoweredJob]],
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel,
    short: ShortJob | None = None,
) -> tuple[GraphRun, NDArray[np.int64]]:
    """The played graph of one job or several, and its amounts as played.

    What computes is slowed down by the collectives beside it.

    Raises:
        NotSteady: the one job is ``short`` and its turns are not alike.
    """
    first, op, slowdown, holding = [np.zeros(1, np.int64)], [], [], []
    for job, lowered in parts:
        first.append(lowered.first[1:] + first[-1][-1])
        op += [job.programs[number].op for number in lowered.program.tolist()]
        holding += [job.programs[number].holding for number in lowered.program.tolist()]
        slow = np.array([interferes.slowdown for interferes in job.interferes])
        slowdown.append(slow[lowered.program])
    ops = np.concatenate(op)
    tasks = Tasks(
        first=np.concatenate(first),
        slowdown=np.concatenate(slowdown),
        computes=ops == Op.COMPUTE,
        moves=np.concatenate(holding),
        amount=graph.amount,
        after=np.concatenate([lowered.gap for _, lowered in parts]),
        stands_for=None if short is None else short.stands_for(parts[0][0].programs, parts[0][1]),
    )
    last = graph.amount

    def again(amount: NDArray[np.int64]) -> GraphRun:
        nonlocal last
        last = amount
        return play(replace(graph, amount=amount), wires, model)

    if short is None:
        return settle(tasks, again), last

    def end(played: GraphRun) -> int:
        job, lowered = parts[0]
        more = short.added * regular(short, job.programs, lowered, played).ticks
        return int(played.finish.max()) + more

    return settle(tasks, again, end), last


def _varied(
    job: CompiledJob, means: CollectiveCommunication, model: NetworkModel, variation: Variation, seconds: float
) -> VariedTime:
    """Iteration times where something varies, with every rank played by itself."""
    from triosim.prediction.variation import varied

    lowered, _ = _lowered(job, means, fold=False)
    played, amount = settled([(job, lowered)], lowered.graph, lowered.wires, model)
    graph = replace(lowered.graph, amount=amount)
    return varied(variation, lowered, graph, played, model, seconds, job.fidelity.seed)


def result_of(
    job: CompiledJob,
    run: Run,
    sources: tuple[str, ...],
    clock: Stopwatch,
    uncertainty: Callable[[], Uncertainty],
    largest: int | None = None,
    energy: EnergyOptions | None = None,
) -> Result:
    stats = lambda: clock.stats(run.played.engine)  # noqa: E731
    return Summary(job, run, sources, stats, uncertainty, largest, energy or EnergyOptions()).result()
