"""The first stage of a prediction: the workload as the plan runs it, and one rank's share of one micro-batch of it.

Where blocks repeat, a short step with each kind of block is taken through the whole stage, and what comes out is
repeated (:mod:`triosim.trace.repeated`); the result is the one that the long step would give, column by column.  Where
that cannot be said, because blocks differ or a part of somebody else's takes part, the long step is divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import is_ours
from triosim.core.tiling import NotRepeating
from triosim.partition.batches import SAMPLES, grows_alike, of_batch
from triosim.partition.main_gradients import when_scattered, with_main_gradients
from triosim.partition.mesh import Mesh
from triosim.partition.partition import partition
from triosim.partition.repeated import RepeatedStep, long_step
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh, completed, suited
from triosim.partition.rule import Rule
from triosim.partition.rules.by_module import ByModule
from triosim.partition.shards import sharded
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.stacks import ASSUMED, Stack
from triosim.trace.repeated import ROOM, RepeatedTrace, repeated
from triosim.trace.tables import Trace
from triosim.transform.optimizing import needs_whole_tensors, optimized, row_updates
from triosim.transform.rescale import rescale


@dataclass(frozen=True)
class ShortStepSource:
    """What a divided step was repeated from.

    Attributes:
        workload, step: the workload as the plan runs it and one rank's share, of the short step.
        of_long: the share of the long step, and where its operators come from.
    """

    workload: Trace
    step: Step
    of_long: RepeatedStep


@dataclass(frozen=True)
class PartitionedWorkload:
    """A workload and the share of one rank.

    Attributes:
        workload: as the plan runs it, with the shapes that it was recorded with.
        whole: one micro-batch of a replica.
        step: one rank's share of it.
        short: what the step was repeated from, None where nothing was.
        share: the share of a rank of a replica, before replicas divide anything of it; None where that is ``step``.
    """

    workload: Trace
    whole: Trace
    step: Step
    short: ShortStepSource | None = None
    share: Step | None = None


def divided(
    workload: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication, stack: Stack | None
) -> PartitionedWorkload:
    """Divide a workload.

    Args:
        workload: the step on one device, with what it runs again.
        rules: of the plan, in order.
        mesh: the ranks and the batch.
        plan: how the work is divided.
        placed: what the replicas divide among them.
        stack: what does something with the gradients of a model by name; None for a recorded step.

    Raises:
        InputError: the workload and the plan do not go together.
    """
    dealt = mesh.stages if placed.states and needs_whole_tensors(workload) else 0
    made = _share(workload, rules, mesh, plan, placed, stack) if not dealt else None
    made = made or PartitionedWorkload(*_road(workload, rules, mesh, plan, placed, stack))
    short = made.short and replace(made.short, step=sharded(made.short.step, mesh, placed))
    # what replicas divide differs from plan to plan, and changes no rows: plans that share the rest share their columns
    return replace(made, step=sharded(made.step, mesh, placed, dealt, plan.optimizer), short=short, share=made.step)


def _share(
    workload: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication, stack: Stack | None
) -> PartitionedWorkload:
    """A workload that is divided among the ranks of a replica, before replicas divide anything.

    Args:
        workload, rules, mesh, plan, placed, stack: as of :func:`divided`.

    Raises:
        InputError: as of :func:`divided`.
    """
    of = repeated(workload) if _ours(rules) else None
    if of is not None:
        try:
            return _of_short(of, workload, rules, mesh, plan, placed, stack)
        except (NotRepeating, InputError):  # what is wrong is told of the long step
            pass
    return PartitionedWorkload(*_road(workload, rules, mesh, plan, placed, stack))


def _ours(rules: Sequence[Rule]) -> bool:
    """Whether all rules are built in, and none does what the user says of modules."""
    return all(is_ours(type(rule)) and not isinstance(rule, ByModule) for rule in rules)


def _road(
    workload: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication, stack: Stack | None,
    of: RepeatedTrace | None = None,
) -> tuple[Trace, Trace, Step]:  # fmt: skip
    """The workload as the plan runs it, one micro-batch, one rank's share before replicas divide anything of it."""
    workload = _as_run(workload, rules, mesh, placed, stack)
    whole = _at_batch(workload, mesh, plan)
    step = completed(rules, _partitioned(workload, whole, rules, mesh, plan, of), mesh)
    return workload, whole, _updated(step, whole, plan) if needs_whole_tensors(whole) else step


def _updated(step: Step, whole: Trace, plan: Plan) -> Step:
    """The share of one rank where the optimizer multiplies whole matrices, of some of which the rank has a part."""
    ours, theirs = step.trace.values.shape.lists(), whole.values.shape.lists()
    cut = frozenset(
        value for value in whole.weights().tolist()
        # the matrices of a stack, as of experts, are whole where it is the stack that is cut
        if ours[value] != theirs[value] and (len(theirs[value]) < 3 or ours[value][-2:] != theirs[value][-2:])
    ) - row_updates(whole).keys()  # fmt: skip
    if not cut:
        return step
    from triosim.transform.blockwise import updated_in_parts

    told = (
        "optimizer: a rank that has a part of a parameter takes it for a matrix by itself (as Megatron-LM's "
        "muon-tp-mode blockwise): nothing is sent"
    )
    return replace(step, trace=updated_in_parts(step.trace, plan.optimizer, cut), notes=(*step.notes, told))


def _partitioned(
    workload: Trace, whole: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, of: RepeatedTrace | None
) -> Step:
    """The share of one rank, found once for all micro-batches of several samples."""
    placing = {rule.axis for rule in rules if rule.places}
    ranks = math.prod(mesh.size(name) for name in placing)
    if ranks > 1 and grows_alike(whole, ranks) and _ours(rules) and placing <= {name for name, _ in mesh.axes}:
        plain = Mesh(tuple((name, size if name in placing else 1) for name, size in mesh.axes))
        try:
            several = rescale(workload, batch=SAMPLES, sequence=plan.sequence_length)
            return of_batch(_of_several(several, plain, tuple(rules), of), several, whole)
        except InputError:  # what is wrong is told of the step itself
            pass
    return partition(whole, mesh, rules, of)


def _as_run(
    workload: Trace, rules: Sequence[Rule], mesh: JobMesh, placed: Replication, stack: Stack | None
) -> Trace:  # fmt: skip
    """The workload as the plan runs it."""
    workload = suited(rules, workload, mesh)
    if stack is None:
        return workload
    when = when_scattered(placed.weights and placed.ranks(mesh) > 1, placed.waits)
    return with_main_gradients(workload, stack, mesh.micro_batches, when)


def undivided(workload: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication) -> Trace:
    """One micro-batch of a replica of a model by name, without what it runs again; arguments as of :func:`divided`."""
    workload = optimized(workload, plan.optimizer)
    return _at_batch(_as_run(workload, rules, mesh, placed, plan.stack or ASSUMED), mesh, plan)


def _of_short(
    of: RepeatedTrace, workload: Trace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication,
    stack: Stack | None,
) -> PartitionedWorkload:  # fmt: skip
    """A divided workload whose repeated blocks were divided once, in a step with few of them.

    Raises:
        NotRepeating: something does not repeat.
        InputError: as of :func:`divided`.
    """
    short, whole, step = _road(of.short, rules, mesh, plan, placed, stack, of)
    run = workload if short is of.short else _long(of, short)
    batch = run if whole is short else _at_batch(run, mesh, plan)
    found = _long_step(of, step, whole, batch)
    return PartitionedWorkload(run, batch, found.step, ShortStepSource(short, step, found))


@dataclass(frozen=True)
class FewBlocksWorkload:
    """A workload of equal blocks that is divided among the ranks of a replica, with few of its blocks.

    Attributes:
        of: how it repeats.
        short: as the plan runs it.
        whole: one micro-batch of a replica.
        step: one rank's share of it.
    """

    of: RepeatedTrace
    short: Trace
    whole: Trace
    step: Step

    @staticmethod
    def along(
        of: RepeatedTrace, rules: Sequence[Rule], mesh: JobMesh, plan: Plan, placed: Replication, stack: Stack | None
    ) -> FewBlocksWorkload:
        """The short step divided; arguments as of :func:`divided`."""
        return FewBlocksWorkload(of, *_road(of.short, rules, mesh, plan, placed, stack, of))

    def step_of(self, copies: int, mesh: JobMesh, plan: Plan) -> Step:
        """One rank's share of a step with so many blocks more than the short one.

        Raises:
            NotRepeating: something does not repeat.
        """
        of = replace(self.of, paths=(*self.of.paths[: copies + 1], self.of.paths[-1]))
        run = of.long(self.short)
        batch = run if self.whole is self.short else _at_batch(run, mesh, plan)
        return long_step(of, self.step, self.whole, batch).step


@kept(256, room=4 * ROOM, size=lambda step: len(step.trace))
def _of_several(whole: Trace, mesh: Mesh, rules: tuple[Rule, ...], of: RepeatedTrace | None) -> Step:
    return partition(whole, mesh, rules, of)


@kept(8)
def _long(of: RepeatedTrace, made: Trace) -> Trace:
    return of.long(made)


@kept(8)
def _long_step(of: RepeatedTrace, step: Step, short: Trace, long: Trace) -> RepeatedStep:
    return long_step(of, step, short, long)


def _at_batch(workload: Trace, mesh: JobMesh, plan: Plan) -> Trace:
    """The step of one micro-batch."""
    unknown = workload.meta.batch_size is None
    as_recorded = mesh.micro_batches == workload.meta.micro_batches
    if unknown and plan.batch_size is None and plan.global_batch_size is None and as_recorded:
        return rescale(workload, sequence=plan.sequence_length)
    return rescale(workload, batch=mesh.micro_batch_size, sequence=plan.sequence_length)
