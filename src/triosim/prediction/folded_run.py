"""An unfolded run as one of ranks that nothing tells apart: as much to draw from, and a thousandth of the tasks.

Who asks for every rank by itself gets the times of each.  Draws of these times ask for nothing more than what folding
keeps, for what is drawn is the same for all devices of a kind; that the ranks of a cell did the same is looked up in
what was played.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.engine.graph import GraphRun
from triosim.network.lowering import LoweredJob, lower
from triosim.prediction.played_run import Run
from triosim.prediction.prepare import CompiledJob

MOST_OF_TASKS = 0.5
"""Folding is worth it where so large a part of the tasks is left at most."""


class FoldedRun(NamedTuple):
    """A job with one cell for ranks that nothing tells apart.

    Attributes:
        lowered: its tasks.
        played: when they ran.
        amount: of each, as it was played.
    """

    lowered: LoweredJob
    played: GraphRun
    amount: NDArray[np.int64]


def folded(
    job: CompiledJob, communication: CollectiveCommunication, run: Run, played: GraphRun, amount: NDArray[np.int64]
) -> FoldedRun | None:
    """A run of every rank by itself, folded; None where little folds, or ranks of a cell did not do the same.

    Args:
        job: as it was prepared.
        communication: how its collectives are done.
        run: every rank by itself.
        played, amount: when its tasks ended, and how long they took, as played.
    """
    lowered = lower(job.programs, job.assignment, job.router, communication)
    if len(lowered.graph) > MOST_OF_TASKS * len(run.lowered.graph):
        return None
    alike = np.array(run.alike)[run.lowered.cell]  # of each rank
    if not np.array_equal(alike, alike[lowered.lowest][lowered.cell]):
        return None
    tasks = [run.tasks(cell) for cell in run.lowered.cell[lowered.lowest].tolist()]

    def of_cells(ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([ticks[own] for own in tasks])

    times = GraphRun(
        of_cells(played.start), of_cells(played.begin), of_cells(played.finish),
        np.zeros(len(lowered.wires.capacity), np.int64), played.flows, played.events, played.engine,
    )  # fmt: skip
    return FoldedRun(lowered, times, of_cells(amount))
