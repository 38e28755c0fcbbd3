"""Peak memory: bytes that the fullest stage of an evaluated job reserves.

Of stages of one kind the one with most passes under way is the fullest.  All its passes are played: although each of a
kind allocates the same, what the allocator has reused and split shifts its blocks for many micro-batches (gpt2 in four
stages, 8 micro-batches, full recomputation: a segment of 2 MiB more than 6 micro-batches need).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
    mesh, reserved = job.mesh, 0
    orders = [stage_order(schedule, stage, mesh.stages, mesh.micro_batches) for stage in range(mesh.stages)]
    for kind in sorted(set(of)):
        stage = max((s for s, k in enumerate(of) if k == kind), key=lambda s: orders[s].depth)
        reserved = max(reserved, stage_reserved_bytes(StageFacts(job, stage), orders[stage]))
    return reserved


def stage_reserved_bytes(facts: StageFacts, order: StageOrder) -> int:
    """Bytes that the allocator of a stage reserves, whose actions are in that order."""
    scheduled, length = _scheduled(facts, order)
    held = liveness(facts.blocks.build(), scheduled, facts.mesh.micro_batches, length)
    return reserved_bytes(held.at(MemoryLocation.DEVICE))


def parameters_to_gather(action: ActionKind, of: StageFacts) -> UngatheredUnits:
    """What has to be gathered for an action."""
    if not of.parts[action.chunk].units:
        return UngatheredUnits()
    action_kinds = [action.after_backward, action.what is not Pass.FORWARD]
    return missing(action_kinds, 0 if action.first else 1, of.job.replication.regathers, of.job.stages.count > 1)


def _scheduled(of: StageFacts, order: StageOrder) -> tuple[list[ScheduledFragment], int]:
    """What an iteration uses and frees, and its instructions."""
    known: dict[Hashable, PassUses] = {}
    passes = []
    for action in order.action_kinds:
        key = (action.what, action.chunk, action.final, parameters_to_gather(action, of))
        if key not in known:
            known[key] = pass_uses(of, of.parts[action.chunk], action.what, action.final, key[-1])
        passes.append(known[key])
    found: list[ScheduledFragment] = []
    length = 0
    end = int(order.micro_batch.max(initial=0))
    for action, micro_batch, last in zip(
        order.kind_of_action.tolist(), order.micro_batch.tolist(), order.last, strict=True
    ):
        found.append(ScheduledFragment(passes[action].uses, length, micro_batch))
        length += passes[action].length
        if last:
            reduced = reduction_uses(of, of.parts[order.action_kinds[action].chunk])
            found.append(ScheduledFragment(reduced.uses, length, end))
            length += reduced.length
    update = update_uses(of)
    found.append(ScheduledFragment(update.uses, length, end))
    return found, length + update.length
