"""The fourth stage of a prediction: the tasks of a job's ranks, and when each of them ends.

A job is *lowered* to tasks on devices and links, and its tasks are *played*.  Both are kept for the next prediction
that asks for the same.  What takes long to play is cut short where that is exact: a job of many equal turns is played
as one of few (:mod:`triosim.prediction.steady`), and what ranks have in common before something parts them is played
once (:mod:`triosim.network.common_prefix`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.measured import MeasuredCollectives
from triosim.collectives.scheduling import Collectives
from triosim.composition.interference import Begun, Tasks, settle
from triosim.core.caching import IdentityKey
from triosim.core.registry import is_ours
from triosim.core.result_cache import ResultCache, content
from triosim.engine.graph import EngineNetwork, Graph, GraphRun
from triosim.engine.play import play, selected_engine
from triosim.engine.solver import NetworkModel
from triosim.memory.footprint import Footprint
from triosim.network.lowering import LoweredJob, lower, meetings
from triosim.prediction.played_run import Run
from triosim.prediction.prepare import MOST_KEPT, CompiledJob, footprints, written
from triosim.prediction.priced_job import PricedJob, Progress
from triosim.prediction.steady import ShortJob, SteadyRun, regular
from triosim.schedule.program import Op

if TYPE_CHECKING:
    from triosim.network.common_prefix import PrefixedJob

FEWEST_TASKS = 200_000
"""Jobs of fewer are played as they are: to find what their ranks have in common would take longer."""


MOST_OF_TASKS = 0.1
"""Of a job whose every rank is to be played, the folded one is played first where it has so large a part at most."""


class PlayedJob(NamedTuple):
    """A job that has been played.

    Attributes:
        run: its tasks and when their work was done.
        sources: where the costs of its collectives are from.
        played, amount: when its tasks ended, and how long they took, as played.
        cut: the parts whose tasks these are; None where they are those of the run.
        plays: so often its tasks were played until what computes and what moves beside it agreed.
    """

    run: Run
    sources: tuple[str, ...]
    played: GraphRun
    amount: NDArray[np.int64]
    cut: PrefixedJob | None = None
    plays: int = 1


class Settled(NamedTuple):
    """A graph that has been played until what computes and what moves beside it agreed.

    Attributes:
        played, amount: when its tasks ended, and how long they took, as played.
        plays: so often it was played.
    """

    played: GraphRun
    amount: NDArray[np.int64]
    plays: int


class PlayedTurns(NamedTuple):
    """A job of many equal turns, played as one of few.

    Attributes:
        run: the whole job.
        sources: where the costs of its collectives are from.
        amount: how long the tasks of the few turns took, as played, ticks.
        footprints: memory of each program of the whole job.
    """

    run: SteadyRun
    sources: tuple[str, ...]
    amount: NDArray[np.int64]
    footprints: list[Footprint]


_LOWERED = ResultCache[tuple[LoweredJob, tuple[str, ...]]](1, MOST_KEPT, lambda made: len(made[0].graph))
_PLAYED = ResultCache[PlayedJob](1, MOST_KEPT, lambda job: len(job.amount))
_SHORT = ResultCache[PlayedTurns](1, MOST_KEPT, lambda turns: len(turns.amount))


def communication_of(job: PricedJob, measured: MeasuredCollectives | None = None) -> CollectiveCommunication:
    """How the collectives of a job are done.

    Args:
        job: divided and priced.
        measured: what collectives and transfers take, as measured on the very machine; None for what its links say.
    """
    fidelity = job.fidelity
    collectives = Collectives(fidelity.collective_algorithm, fidelity.collective_protocol, job.system.ideal)
    more = job.residual.terms.collective_s if job.residual is not None else 0.0
    return CollectiveCommunication(job.system, job.router, collectives, measured, more)


def lowered_job(
    job: CompiledJob, fold: bool, communication: CollectiveCommunication | None = None
) -> tuple[LoweredJob, tuple[str, ...]]:
    """The tasks of a job, and where the costs of its collectives are from.

    Args:
        job: with the programs of its ranks.
        fold: whether ranks that do the same become one.
        communication: how its collectives are done; as of :func:`communication_of` if None.
    """
    communication = communication or communication_of(job)
    lowered = lower(job.programs, job.assignment, job.router, communication, fold=fold)
    return lowered, _sources(communication, lowered)


def play_job(
    job: CompiledJob,
    communication: CollectiveCommunication,
    model: NetworkModel,
    fold: bool,
    progress: Progress,
    common_once: bool = True,
) -> PlayedJob:
    """A job lowered and played.

    Args:
        job: with the programs of its ranks.
        communication: how its collectives are done.
        model: how links are shared.
        fold: whether ranks that do the same become one.
        progress: called with what is being done, in a few words.
        common_once: whether what the ranks have in common may be played once, where that is exact.

    Raises:
        Stuck: some tasks can never end.
    """
    ours = is_ours(type(model))
    # a model of a user's own may remember what crossed a link, or see one link from another
    cutting = common_once and fold and ours

    def make() -> PlayedJob:
        if cutting and (parted := _played_prefixed(job, communication, model, progress)) is not None:
            return parted
        known = None if fold else folded_first(job, communication, model, progress)
        lowered, sources = _lowered_once(job, communication, fold)
        progress("playing the job")
        found = settled([(job, lowered)], lowered.graph, lowered.wires, model, known=known)
        run = Run(job.programs, lowered, lowered.worked(found.played), job.plan.iterations)
        return PlayedJob(run, sources, found.played, found.amount, plays=found.plays)

    if not ours:
        return make()
    return _PLAYED.get((_what_is_played(job, communication, fold, job.plan.iterations), cutting), make)


def play_short(
    short: ShortJob, communication: CollectiveCommunication, model: NetworkModel, fold: bool, progress: Progress
) -> tuple[CompiledJob, PlayedTurns]:
    """The whole job with the programs of the short one, and that one played.

    Args:
        short: the job with few of its turns.
        communication, model, fold, progress: as of :func:`play_job`; the model is one of ours.

    Raises:
        NotSteady: the short job does not say what the whole one does.
    """
    job = written(short.made, progress, memory=False)
    progress("lowering the programs")

    def make() -> PlayedTurns:
        lowered, sources = _lowered_once(job, communication, fold)
        progress("playing the job")
        played, amount, _ = settled([(job, lowered)], lowered.graph, lowered.wires, model, short)
        period = regular(short, job.programs, lowered, played)
        programs = [short.whole(program) for program in job.programs]
        run = SteadyRun(programs, lowered, lowered.worked(played), 1, short, period)
        return PlayedTurns(run, sources, amount, footprints(programs))

    turns = _SHORT.get((_what_is_played(job, communication, fold, 1), short.added), make)
    mesh = short.made.mesh
    parts = mesh.micro_batches + short.added
    mesh = replace(mesh, micro_batches=parts, batch_size=mesh.micro_batch_size * parts)
    return replace(job, mesh=mesh, programs=list(turns.run.programs), footprints=turns.footprints), turns


def settled(
    parts: Sequence[tuple[CompiledJob, LoweredJob]],
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel,
    short: ShortJob | None = None,
    known: PlayedJob | None = None,
) -> Settled:
    """The played graph of one job or several, what computes slowed down by the collectives beside it.

    Args:
        parts: the jobs.
        graph, wires: of all of them.
        model: how links are shared.
        short: the one job, where it is one with few of its turns.
        known: the one job folded and played, where these are its ranks one by one: its last play is played alone.

    Raises:
        NotSteady: the one job is ``short`` and its turns are not alike.
    """
    first, computes, slowdown, holding, gaps = [np.zeros(1, np.int64)], [], [], [], []
    for job, lowered in parts:
        first.append(lowered.first[1:] + first[-1][-1])
        computes += lowered.by_cell([program.op == Op.COMPUTE for program in job.programs])
        holding += lowered.by_cell([program.holding for program in job.programs])
        gaps += lowered.by_cell(lowered.gaps)
        slow = np.array([interferes.slowdown for interferes in job.interferes])
        slowdown.append(slow[lowered.program])
    tasks = Tasks(
        first=np.concatenate(first),
        slowdown=np.concatenate(slowdown),
        computes=computes,
        moves=holding,
        amount=graph.amount,
        after=gaps,
        stands_for=None if short is None else short.stands_for(parts[0][0].programs, parts[0][1]),
    )
    begun = None if known is None else _begun(known, parts[0][1])
    last, plays = graph.amount, 0 if begun is None else begun.plays - 1

    def again(amount: NDArray[np.int64]) -> GraphRun:
        nonlocal last, plays
        last, plays = amount, plays + 1
        return play(replace(graph, amount=amount), wires, model)

    if short is None:
        return Settled(settle(tasks, again, begun=begun), last, plays)

    def end(played: GraphRun) -> int:
        job, lowered = parts[0]
        more = short.added * regular(short, job.programs, lowered, played).ticks
        return int(played.finish.max()) + more

    return Settled(settle(tasks, again, end), last, plays)


def folded_first(
    job: CompiledJob, communication: CollectiveCommunication, model: NetworkModel, progress: Progress
) -> PlayedJob | None:
    """A job whose ranks are to be played one by one, folded and played; None where that saves little.

    What ranks do is the same either way, and so are the plays until what computes and what moves beside it agree.  All
    but the last are of the folded job; the last one, of every rank, says whether it was so.
    """
    each = np.array([len(program) for program in job.programs], np.int64)
    every = int(each @ np.array([len(program.ranks) for program in job.programs], np.int64))
    if not (model.weighted and is_ours(type(model))) or every < FEWEST_TASKS:
        return None
    meeting, _ = meetings(job.programs, job.assignment, job.router, communication)
    if int(each[meeting.program].sum()) > MOST_OF_TASKS * every:
        return None
    return play_job(job, communication, model, True, progress, common_once=False)


def _begun(known: PlayedJob, lowered: LoweredJob) -> Begun:
    """What the ranks of a job take longer beside collectives, from those that stand for them in the folded job."""
    folded = known.run.lowered
    longer = np.split(known.amount - folded.graph.amount, folded.first[1:-1])
    return Begun([longer[cell] for cell in folded.cell[lowered.lowest].tolist()], known.plays)


def _played_prefixed(
    job: CompiledJob, communication: CollectiveCommunication, model: NetworkModel, progress: Progress
) -> PlayedJob | None:
    """A job played with what its ranks have in common played once; None where that saves little or is not exact."""
    if sum(len(program) * len(program.ranks) for program in job.programs) < FEWEST_TASKS:
        return None
    from triosim.prediction.prefixed_run import play_prefixed  # most jobs start without it

    known = play_prefixed(job, communication, model, FEWEST_TASKS, progress)
    if known is None:
        return None
    return PlayedJob(known.run, _sources(communication, known.run.lowered), known.played, known.amount, known.cut)


def _lowered_once(
    job: CompiledJob, communication: CollectiveCommunication, fold: bool
) -> tuple[LoweredJob, tuple[str, ...]]:
    """As :func:`lowered_job`, kept for the next prediction."""
    return _LOWERED.get(_what_is_lowered(job, communication, fold), lambda: lowered_job(job, fold, communication))


def _sources(communication: CollectiveCommunication, lowered: LoweredJob) -> tuple[str, ...]:
    """Where the costs of collectives are from, in words."""
    own = (communication.measured.source,) if communication.measured is not None else ()
    return tuple(dict.fromkeys((*own, *lowered.sources)))


def _what_is_lowered(job: CompiledJob, communication: CollectiveCommunication, fold: bool) -> Hashable:
    """All that the tasks of a job depend on."""
    return tuple(map(IdentityKey, job.programs)), content(job.assignment), communication, fold


def _what_is_played(job: CompiledJob, communication: CollectiveCommunication, fold: bool, iterations: int) -> Hashable:
    """All that the times of the tasks of a job depend on; the network model must be one of ours."""
    asked, slowed = job.fidelity, tuple(interferes.slowdown for interferes in job.interferes)
    return (
        _what_is_lowered(job, communication, fold),
        iterations,
        asked.solver,
        asked.solver_options,
        slowed,
        selected_engine(),
    )
