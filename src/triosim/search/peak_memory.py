"""Peak memory: bytes that the fullest stage of an evaluated job reserves.

Of stages of one kind the one with most passes under way is the fullest, where parameters are gathered of those whose
passes follow each other in the same ways: what is gathered when a forward comes after a backward is not there where all
forwards come first (GPT-3 175B in 64 stages of two chunks, ZeRO 3: a stage with 191 passes under way needs 0.3 % more
than one with 192).  All its passes are played: although each of a kind allocates the same, what the allocator has
reused and split shifts its blocks for many micro-batches (gpt2 in four stages, 8 micro-batches, full recomputation: a
segment of 2 MiB more than 6 micro-batches need).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.memory.allocation_order import Undecided, allocation_order
from triosim.memory.footprint import reserved_bytes
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import ScheduledFragment, liveness
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Pass, Schedule
from triosim.schedule.gathering import UngatheredUnits, missing
from triosim.search.pass_memory import PassUses, pass_uses, reduction_uses, update_uses
from triosim.search.stage_order import ActionKind, StageOrder, stage_order


def fullest_stage_bytes(job: JobFacts, schedule: Schedule, of: Sequence[int]) -> int:
    """Bytes that the allocator of the fullest stage reserves.

    Args:
        job: what is run; it keeps nothing on a host.
        schedule: in which order.
        of: kind of each stage.
    """
    mesh = job.mesh
    orders = [stage_order(schedule, stage, mesh.stages, mesh.micro_batches) for stage in range(mesh.stages)]
    stages = (stage for own in deepest_stages(orders, of, job.modules is not None).values() for stage in own)
    return max(stage_reserved_bytes(StageFacts(job, stage), orders[stage]) for stage in stages)


_Kind = TypeVar("_Kind", bound=Hashable)


def deepest_stages(orders: Sequence[StageOrder], of: Sequence[_Kind], gathers: bool) -> dict[_Kind, list[int]]:
    """The stages of each kind of which one is the fullest.

    Args:
        orders: what each stage runs.
        of: kind of each stage.
        gathers: whether parameters are gathered.
    """
    found: dict[_Kind, dict[frozenset[int], int]] = {}
    for stage, (kind, order) in enumerate(zip(of, orders, strict=True)):
        alike = found.setdefault(kind, {})
        key = order.successions if gathers else frozenset[int]()
        if key not in alike or order.depth > orders[alike[key]].depth:
            alike[key] = stage
    return {kind: list(alike.values()) for kind, alike in found.items()}


def stage_reserved_bytes(facts: StageFacts, order: StageOrder) -> int:
    """Bytes that the allocator of a stage reserves, whose actions are in that order."""
    passes, which, micro_batch = _scheduled(facts, order)
    blocks, micro_batches = facts.blocks.build(), facts.mesh.micro_batches
    try:
        return allocation_order(blocks, [one.uses for one in passes], which, micro_batch).reserved_bytes()
    except Undecided:
        starts = np.cumsum([0, *np.array([one.length for one in passes])[which].tolist()]).tolist()
        found = [
            ScheduledFragment(passes[number].uses, start, own)
            for number, start, own in zip(which.tolist(), starts, micro_batch.tolist(), strict=False)
        ]
        return reserved_bytes(liveness(blocks, found, micro_batches, starts[-1]).at(MemoryLocation.DEVICE))


def parameters_to_gather(action: ActionKind, of: StageFacts) -> UngatheredUnits:
    """What has to be gathered for an action."""
    if not of.parts[action.chunk].units:
        return UngatheredUnits()
    return ungathered(action, of.job.replication.regathers, of.job.stages.count > 1)


def ungathered(action: ActionKind, regathers: bool, pipelined: bool) -> UngatheredUnits:
    """What has to be gathered for an action of a chunk whose parameters are; arguments as of
    :func:`triosim.schedule.gathering.missing`."""
    action_kinds = [action.after_backward, action.what is not Pass.FORWARD]
    return missing(action_kinds, 0 if action.first else 1, regathers, pipelined)


def _scheduled(of: StageFacts, order: StageOrder) -> tuple[list[PassUses], NDArray[np.int64], NDArray[np.int64]]:
    """What an iteration uses and frees: different passes, which of them come after one another, and on which
    micro-batches they work."""
    known: dict[Hashable, int] = {}
    passes: list[PassUses] = []
    kinds = []
    for action in order.action_kinds:
        key = (action.what, action.chunk, action.final, parameters_to_gather(action, of))
        if key not in known:
            known[key] = len(passes)
            passes.append(
                pass_uses(of, of.parts[action.chunk], action.what, action.final, key[-1], of.job.replication.regathers)
            )
        kinds.append(known[key])
    which, end = np.array(kinds, np.int64)[order.kind_of_action], int(order.micro_batch.max(initial=0))
    ends = np.flatnonzero(order.last)
    reduced = len(passes) + np.arange(len(ends))
    passes += [
        reduction_uses(of, of.parts[order.action_kinds[order.kind_of_action[row]].chunk]) for row in ends.tolist()
    ]
    which = np.append(np.insert(which, ends + 1, reduced), len(passes))
    micro_batch = np.append(np.insert(order.micro_batch.astype(np.int64), ends + 1, end), end)
    return [*passes, update_uses(of)], which, micro_batch
