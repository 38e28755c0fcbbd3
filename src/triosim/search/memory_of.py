"""What the fullest stage of an evaluated job reserves, from as few micro-batches as show it.

Allocations of a pass are those of every other pass of its kind, so memory depends on how many passes are under way and
no more on how often they come: the peak is that of the shortest run of the schedule in which as many are.  Of stages of
one kind the one with most passes under way is the fullest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.core.errors import PlanError
from triosim.memory.footprint import footprint
from triosim.memory.liveness import ScheduledFragment, liveness
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule._stage import JobFacts
from triosim.schedule.actions import Schedule
from triosim.schedule.fragments import Fragment
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
        scheduled, length = _scheduled(runs, order)
        held = liveness(runs.writer.of.blocks.build(), scheduled, mesh.micro_batches, length)
        reserved = max(reserved, footprint(held.on(host=False), len(CATEGORIES)).reserved_bytes)
    return reserved


def _shortest(schedule: Schedule, stage: int, stages: int, whole: Order, micro_batches: int) -> Order:
    """The order with fewest micro-batches in which as many passes are under way."""
    depth = whole.depth
    if schedule.chunks_per_stage > 1:
        return whole  # chunks of different sizes leave holes that fill differently for many rounds
    for fewer in (depth + STEADY, *(rounds * stages for rounds in (2, 3, 4))):
        if fewer < micro_batches and fewer >= STEADY:
            try:
                found = order_of(schedule, stage, stages, fewer)
            except PlanError:
                continue
            if found.depth == depth:
                return found
    return whole


def _scheduled(runs: StageKind, order: Order) -> tuple[list[ScheduledFragment], int]:
    """What an iteration uses and frees, and its instructions."""
    found: list[ScheduledFragment] = []
    length = 0

    def add(fragment: Fragment, micro_batch: int) -> None:
        nonlocal length
        found.append(ScheduledFragment(fragment.uses, length, micro_batch))
        length += len(fragment)

    last_of_all = max((action.micro_batch for action in order.actions), default=0)
    for action, final, last in zip(order.actions, order.final, order.last, strict=True):
        add(runs.passes[action.what, action.chunk, final].fragment, action.micro_batch)
        if last:
            add(runs.reductions[action.chunk].fragment, last_of_all)
    add(runs.update.fragment, last_of_all)
    return found, length
