"""What the fullest stage of an evaluated job reserves, from as few micro-batches as show it.

Allocations of a pass are those of every other pass of its kind, so memory depends on how many passes are under way and
no more on how often they come: the peak is that of the shortest run of the schedule in which as many are.  Of stages of
one kind the one with most passes under way is the fullest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triosim.core.errors import PlanError
from triosim.memory.footprint import footprint
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule._stage import JobFacts
from triosim.schedule.actions import Schedule
from triosim.schedule.job import Iteration
from triosim.schedule.occupancy import MicroBatchRun
from triosim.search.order import Order, order_of
from triosim.search.stage_kinds import StageKind

STEADY = 2
"""Micro-batches beyond those under way at once, for the allocator to have reused what was freed."""


def fullest(job: JobFacts, schedule: Schedule, of: Sequence[int], written: Mapping[int, StageKind]) -> int:
    """Bytes that the allocator of the fullest stage reserves.

    Args:
        job: what is run.
        schedule: in which order.
        of: kind of each stage.
        written: by kind, what it runs.
    """
    mesh, reserved = job.mesh, 0
    orders = [order_of(schedule, stage, mesh.stages, mesh.micro_batches) for stage in range(mesh.stages)]
    for kind, runs in written.items():
        stage = max((s for s, k in enumerate(of) if k == kind), key=lambda s: orders[s].depth)
        order = _shortest(schedule, stage, mesh.stages, orders[stage], mesh.micro_batches)
        made = _iteration(runs, order)
        reserved = max(
            reserved, footprint(runs.writer.lifetimes(made, made.length, mesh), len(CATEGORIES)).reserved_bytes
        )
    return reserved


def _shortest(schedule: Schedule, stage: int, stages: int, whole: Order, micro_batches: int) -> Order:
    """The order with fewest micro-batches in which as many passes are under way."""
    depth = whole.depth
    for fewer in (depth + STEADY, *(rounds * stages for rounds in (2, 3, 4))):
        if fewer < micro_batches and fewer >= STEADY:
            try:
                found = order_of(schedule, stage, stages, fewer)
            except PlanError:
                continue
            if found.depth == depth:
                return found
    return whole


def _iteration(runs: StageKind, order: Order) -> Iteration:
    """The iteration of a stage, as far as memory is concerned."""
    of = runs.writer.of
    made = Iteration(len(of.parts))
    for action, final, last in zip(order.actions, order.final, order.last, strict=True):
        fragment = runs.passes[action.what, action.chunk, final].fragment
        start = made.append(fragment, action.micro_batch)
        made.runs.append(MicroBatchRun(*action, start, of.parts[action.chunk].rows[action.what], fragment.ran))
        if last:
            made.append(runs.reductions[action.chunk].fragment, action.micro_batch)
    update = runs.update.fragment
    offset = made.append(update, 0)
    made.optimized = np.where(update.ran.at >= 0, update.ran.at + offset, -1)
    return made
