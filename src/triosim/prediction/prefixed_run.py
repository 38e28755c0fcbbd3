"""Runs whose ranks are alike for long: played with a common prefix (:mod:`triosim.network.common_prefix`)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.composition.interference import Tasks, settle
from triosim.core.dataclass import dataclass
from triosim.engine.graph import GraphRun
from triosim.engine.play import play
from triosim.engine.solver import NetworkModel
from triosim.network.common_prefix import FeltBefore, PrefixedJob, prefixed
from triosim.prediction.played_run import Run
from triosim.prediction.prepare import CompiledJob
from triosim.prediction.priced_job import Progress

MOST_CUTS = 4
"""So often a job is cut, each time earlier, before it is played whole."""


@dataclass(frozen=True)
class PrefixedRun(Run):
    """A run of which the cells are those that did the same at the same times.

    Attributes:
        tasks_played: tasks that were played to find it.
    """

    tasks_played: int = 0

    @property
    def played_tasks(self) -> int:
        """Tasks in the graph that was played."""
        return self.tasks_played


class PlayedParts(NamedTuple):
    """A job that was played cut in two.

    Attributes:
        run: the whole job.
        cut: its parts.
        played, amount: when the tasks of both ended, and how long they took.
    """

    run: PrefixedRun
    cut: PrefixedJob
    played: GraphRun
    amount: NDArray[np.int64]


def play_prefixed(
    job: CompiledJob, means: CollectiveCommunication, model: NetworkModel, fewest: int, progress: Progress
) -> PlayedParts | None:
    """Play a job cut in two; None where that saves little, or is not exact.

    Args:
        job: as it was prepared.
        means: how its collectives are done.
        model: how links are shared; knows of weights.
        fewest: jobs of fewer tasks are left whole.
        progress: called with what is being done.
    """
    most = None
    for _ in range(MOST_CUTS):
        cut = prefixed(job.programs, job.assignment, job.router, means, fewest, most)
        if cut is None:
            return None
        progress("playing the job")
        try:
            played, amount = _settled(job, cut, model)
        except FeltBefore as felt:
            most = felt.cut
            continue
        lowered, times = cut.joined(played)
        run = PrefixedRun(job.programs, lowered, lowered.worked(times), job.plan.iterations, len(cut.graph))
        return PlayedParts(run, cut, played, amount)
    return None


def _settled(job: CompiledJob, cut: PrefixedJob, model: NetworkModel) -> tuple[GraphRun, NDArray[np.int64]]:
    """The played graph of both parts, what computes slowed down by the collectives beside it, and its amounts."""
    slow = np.array([interferes.slowdown for interferes in job.interferes])
    tasks = Tasks(
        first=cut.first,
        slowdown=slow[cut.program],
        computes=cut.computes,
        moves=cut.moves,
        amount=cut.graph.amount,
        after=cut.gaps,
        earlier=cut.earlier,
    )
    last = tasks.amount

    def again(amount: NDArray[np.int64]) -> GraphRun:
        nonlocal last
        last = amount
        played = play(replace(cut.graph, amount=amount), cut.wires, model)
        cut.check(played)
        return played

    return settle(tasks, again), last
