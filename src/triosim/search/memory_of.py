"""What the fullest stage of an evaluated job reserves.

Of stages of one kind the one with most passes under way is the fullest.  All its passes are played: although each of a
kind allocates the same, what the allocator has reused and split shifts its blocks for many micro-batches (gpt2 in four
stages, 8 micro-batches, full recomputation: a segment of 2 MiB more than 6 micro-batches need).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from triosim.memory.footprint import footprint
from triosim.memory.liveness import BlockLifetime, MemoryBlocks, ScheduledFragment, liveness
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Schedule
from triosim.schedule.fragments import Fragment
from triosim.schedule.job import StageWriter
from triosim.search.order import Order, order_of
from triosim.search.stage_kinds import StageKind


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
        scheduled, length = _scheduled(runs, orders[stage])
        held = liveness(_all_given(runs.writer.of, mesh.micro_batches), scheduled, mesh.micro_batches, length)
        reserved = max(reserved, footprint(held.on(host=False), len(CATEGORIES)).reserved_bytes)
    return reserved


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


def fullest_gathered(job: JobFacts, schedule: Schedule, of: Sequence[int]) -> int:
    """The same where parameters are gathered and passes differ with what has been gathered before them.

    Args:
        job: what is run.
        schedule: in which order.
        of: kind of each stage.
    """
    mesh, reserved = job.mesh, 0
    orders = [order_of(schedule, stage, mesh.stages, mesh.micro_batches) for stage in range(mesh.stages)]
    for kind in sorted(set(of)):
        stage = max((s for s, k in enumerate(of) if k == kind), key=lambda s: orders[s].depth)
        writer = StageWriter(StageFacts(job.running(schedule, mesh), stage))
        made = writer.iterations[0]
        scheduled = [
            ScheduledFragment(fragment.uses, start, micro_batch)
            for fragment, start, micro_batch in zip(made.fragments, made.start, made.micro_batch, strict=True)
        ]
        held = liveness(writer.of.blocks.build(), scheduled, mesh.micro_batches, made.length)
        reserved = max(reserved, footprint(held.on(host=False), len(CATEGORIES)).reserved_bytes)
    return reserved


def _all_given(of: StageFacts, micro_batches: int) -> MemoryBlocks:
    """The blocks of a stage that was written for fewer micro-batches, with the whole input batch."""
    blocks, known = of.blocks.build(), of.blocks.storages
    given = np.zeros(len(blocks.size), bool)
    given[: len(known)] = known.given & ~known.persistent & (blocks.scope[: len(known)] == BlockLifetime.RESIDENT)
    size = np.where(given, blocks.size // of.mesh.micro_batches * micro_batches, blocks.size)
    return replace(blocks, size=size)
