"""What follows the last backward: gradients are reduced and shared, the optimizer runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from triosim.memory.liveness import BlockUseRecorder
from triosim.partition.gradients import Gradient, total_bytes
from triosim.partition.passes.sink import sink
from triosim.partition.residence import HOST as HOST_PLACE
from triosim.partition.residence import NVME
from triosim.partition.step import SharedUpdate
from triosim.partition.transfers import ALL_REDUCE, ALL_TO_ALL, COLLECTIVES
from triosim.schedule._stage import PartFacts, StageFacts
from triosim.schedule.fragments import Fragment
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.program import (
    COMPUTE,
    COPY,
    DP,
    HOST,
    REPLICAS,
    SEND,
    Op,
    ProgramBuilder,
    of_iteration,
)
from triosim.trace.tables import Category


class LastPassRows:
    """Rows of the last passes through a part, in the iteration.

    Attributes:
        ready: instruction of each operator, -1 for those that are not run, shape ``(operators,)``.
        exchanged: exchange of complete gradients along another axis -> its instruction.
        sent: storage of a gradient -> the copy that takes it to the host.
    """

    def __init__(self, operators: int) -> None:
        self.ready = np.full(operators, -1, np.int64)
        self.exchanged: dict[int, int] = {}
        self.sent: dict[int, int] = {}

    def add(self, start: int, fragment: Fragment, once: Collection[int]) -> None:
        """One more of them.

        Args:
            start: row at which it begins.
            fragment: its instructions.
            once: exchanges of complete gradients.
        """
        at, done = fragment.at, fragment.exchanged
        self.ready = np.where(at >= 0, at + start, self.ready)
        self.exchanged.update({n: start + done[n] for n in once if n in done})
        self.sent.update({storage: start + row for storage, row in fragment.sent.items()})


def reductions(of: StageFacts, part: PartFacts, offset: int, final: LastPassRows) -> tuple[Fragment, dict[int, int]]:
    """What reduces the gradients of a part.

    Args:
        of: the stage.
        part: what has run its last backward.
        offset: row of the iteration at which the fragment begins.
        final: where that was.

    Returns:
        The fragment, and for the storage of each gradient the row of the iteration that reduces it.
    """
    builder, recorder, reduced = of.new(), BlockUseRecorder(), dict[int, int]()
    if part.units and of.job.stages.count > 1:  # gradients of all micro-batches of a pipeline, unit by unit
        units = of.gathering(part, builder, recorder, True, UngatheredUnits(), False, offset)
        for number, unit in enumerate(part.units):
            if unit.scatter_bytes:
                scattered = offset + units.reduce(number, max(unit.backward[1], -1))
                reduced.update(dict.fromkeys(unit.gradients, scattered))
        units.finish(None, False)
    if of.job.sharing > 1:
        gathered = of.job.modules if part.units else None
        groups = [group for group in part.groups() if gathered is None or group[0].parameter not in gathered]
        for group, last in zip(groups, sink(groups), strict=True):
            after = {int(final.ready[g.ready]) for g in group if final.ready[g.ready] >= 0}
            own = {g.storage for g in group}
            after.update(row for n, row in final.exchanged.items() if of.job.exchanged_storage(n) in own)
            before, stream = [of_iteration(row) for row in sorted(after)], DP
            row = -1
            if of.job.replication.compression is not None:
                row = _compressed(of, builder, group, last, before)
                reduced.update({g.storage: row + offset for g in group})
                continue
            for what, axis, parts in of.job.reductions(group[0].parameter):
                row = builder.add(
                    Op.COLLECTIVE, of.stream(stream), operator=last, size=math.ceil(total_bytes(group) / parts),
                    what=what, axis=axis, before=before,
                )  # fmt: skip
                before, stream = [row], REPLICAS
            if row >= 0:
                reduced.update({g.storage: row + offset for g in group})
    return Fragment(builder.build(), uses=recorder.build()), reduced


def _compressed(of: StageFacts, builder: ProgramBuilder, group: list[Gradient], last: int, before: list[int]) -> int:
    """Compress the gradients of a group and add up what they are compressed to; the instruction that does so last."""
    job, row = of.job, -1
    assert job.replication.compression is not None
    ((_, axis, _),) = job.reductions(group[0].parameter)
    for call in job.replication.compression.calls(*job.compressible(group)):
        for op, seconds, size in (
            (Op.COMPUTE, call.touched / 2 * job.copy_s_per_byte, 0), (Op.COLLECTIVE, 0.0, call.sent)
        ):  # fmt: skip
            if size or (op == Op.COMPUTE and call.touched):
                row = builder.add(
                    op, of.stream(DP), operator=last, seconds=seconds, size=size, what=COLLECTIVES.index(call.what),
                    axis=axis if size else -1, before=before,
                )  # fmt: skip
                before = [row]
    return row


def update(
    of: StageFacts,
    offset: int,
    final: Mapping[int, LastPassRows],
    reduced: Mapping[int, int],
    fetched_for: Callable[[int], list[int]],
) -> Fragment:
    """What ends an iteration.

    Args:
        of: the stage.
        offset: row of the iteration at which the fragment begins.
        final: for each chunk where its last passes are.
        reduced: storage of a gradient -> row of the iteration that reduces it.
        fetched_for: instructions that fetch what an operator needs.
    """
    return _Update(of, offset, final, dict(reduced), fetched_for).fragment()


class _Update:
    def __init__(
        self,
        of: StageFacts,
        offset: int,
        final: Mapping[int, LastPassRows],
        reduced: dict[int, int],
        fetched_for: Callable[[int], list[int]],
    ) -> None:
        self.of, self.job, self.plan, self.mesh = of, of.job, of.plan, of.mesh
        self.builder: ProgramBuilder = of.new()
        self.offset, self.final, self.reduced, self.fetched_for = offset, final, reduced, fetched_for

    def fragment(self) -> Fragment:
        """All of it."""
        self._share_tied_weights()
        updated = self._update_on_host() if self.job.replication.updates_on_host else self._optimize()
        shared = self.job.replication.states and self.job.sharing > 1
        shared = shared and (self.job.replication.whole or not self.of.sharded)
        if shared and not self.job.gathers_ahead:
            self.of.gather_parameters(self.builder, COMPUTE)
        self._average_groups()
        recorder = BlockUseRecorder()
        for part in self.of.parts:
            for block in part.blocks:  # an iteration ends with everything sharded
                recorder.free(block.copy, len(self.builder) - 1)
        made = self.of.blocks.once("update", updated, self.of.share)
        return Fragment(self.builder.build(), updated, recorder.build(made))

    def _average_groups(self) -> None:
        """What groups of replicas exchange once in many iterations, as much of it as falls to each."""
        outer, job = self.job.replication.outer, self.job
        if outer is None or self.mesh.size(outer.axis) == 1:
            return
        last = self.of.optimizer[-1] if self.of.optimizer else -1
        elements, parameter = self.of.own_parameters()
        for op, touched, size in (
            (Op.COMPUTE, outer.before(elements, parameter), 0.0), (Op.COLLECTIVE, 0.0, outer.sent(elements)),
            (Op.COMPUTE, outer.after(elements, parameter), 0.0),
        ):  # fmt: skip
            self.builder.add(
                op, COMPUTE, operator=last, seconds=touched / 2 * job.copy_s_per_byte, size=math.ceil(size),
                what=ALL_REDUCE, axis=self.mesh.row(outer.axis) if size else -1,
            )  # fmt: skip

    def _share_tied_weights(self) -> None:
        """A parameter used on several stages has a gradient on each; they exchange them and each adds up."""
        for part in self.of.parts:
            for gradient in part.grads:
                peers = self.of.elsewhere(gradient)
                if not peers:
                    continue
                last = int(self.final[part.chunk].ready.max(initial=-1))
                after = self.reduced.get(gradient.storage, last)
                operator, size = gradient.ready, gradient.bytes
                if self.job.replication.states:  # each rank has its part of both
                    size = -(-size // self.job.shared[0].shards)
                for peer in peers:
                    tag = self.job.tags("tied", gradient.parameter, self.of.stage, peer)
                    self.builder.add(
                        Op.SEND, self.of.stream(SEND), operator=operator, size=size, axis=self.mesh.pipeline_axis,
                        peer=peer, tag=tag, before=[of_iteration(after)] if after >= 0 else [],
                    )  # fmt: skip
                for peer in peers:
                    tag = self.job.tags("tied", gradient.parameter, peer, self.of.stage)
                    arrived = self.offset + self.builder.add(
                        Op.RECEIVE, -1, operator=operator, size=size, axis=self.mesh.pipeline_axis, peer=peer, tag=tag
                    )
                self.reduced[gradient.storage] = arrived

    def _update_on_host(self) -> NDArray[np.int64]:
        """Gradients go to the host when they are complete; when all are there it updates, and parameters come back.

        Gradients travel in the groups in which they are reduced; a group's parameters do while the next is updated.
        """
        of, copies = self.of, [copy for part in self.of.parts for copy in part.host_copies[False]]
        touched, place = of.update(), of.places[HOST_PLACE]
        stream = COMPUTE if of.sharded else of.stream(COPY)  # the backward of units ends with waiting for them
        last = of.optimizer[-1] if of.optimizer else -1
        groups = [(part, group) for part in reversed(of.parts) for group in part.groups()]
        sizes = [sum(touched.gradients.get(g.storage, 0) for g in group) for _, group in groups]
        stored: list[int] = []
        for (part, group), size in zip(groups, sizes, strict=True):
            final = self.final[part.chunk]
            after = {self.reduced[g.storage] if g.storage in self.reduced else int(final.ready[g.ready]) for g in group}
            left = {final.sent[g.storage] for g in group if g.storage in final.sent}
            if left:
                stored += sorted(left)
            elif size:
                stored.append(
                    self.offset
                    + self.builder.add(
                        Op.STORE, stream, operator=group[-1].ready, size=size, peer=place,
                        before=[of_iteration(row) for row in sorted(after) if row >= 0],
                    )
                )  # fmt: skip
        visiting = {storage for copy in copies if copy.leaves < 0 for storage in copy.storages}
        storage = self.job.storage
        staying = 1.0
        if visiting:  # parameters of blocks are on the host already
            size_of = self.job.step.trace.values.bytes()
            held = {p: int(size_of[p]) for p in of.parameters}
            stays = sum(held[p] for p in held if storage[p] not in visiting)
            staying = stays / sum(held.values()) if stays else 0.0
        elif self.job.replication.stay(Category.WEIGHT) is not None:  # shards are where they are updated
            staying = 0.0
        shares = [size / sum(sizes) for size in sizes if size] or [1.0]
        weights = self.job.replication.stay(Category.WEIGHT)
        away = touched.parameters if weights and weights.place == NVME else 0
        read_s, write_s = self.job.nvme_s_per_byte
        states = self.job.replication.stay(Category.OPTIMIZER_STATE)
        swapped = touched.states if states and states.place == NVME else 0
        # The processor updates what has been read while the next is read and the last written (ZeRO-Infinity).
        swaps_s = swapped * read_s + (swapped + away) * write_s
        update_s = max(touched.touched_bytes * self.job.update_s_per_byte, swaps_s)
        for share in shares:
            seconds = update_s * share
            updated = self.builder.add(
                Op.ISSUE, HOST, operator=last, seconds=seconds, peer=place, before=[of_iteration(row) for row in stored]
            )
            size = round(touched.parameters * share * staying)
            if size:
                self.builder.add(Op.FETCH, COMPUTE, operator=last, size=size, peer=place, before=[updated])
        return np.full(len(self.job.phase), -1, np.int64)

    def _optimize(self) -> NDArray[np.int64]:
        """The optimizer begins when every gradient is reduced: DDP's backward ends by waiting for all its buckets."""
        job = self.job
        at = np.full(len(job.phase), -1, np.int64)
        share = self.of.share.tolist()
        exchanged = {n: at for final in self.final.values() for n, at in final.exchanged.items()}
        before = {of_iteration(reduced) for reduced in self.reduced.values()}

        def run(*rows: int) -> None:
            """Run operators, several as one kernel that goes over a list of tensors."""
            nonlocal before
            for row in rows:
                before |= {of_iteration(exchanged[n]) for n in job.needed_before.get(row, ()) if n in exchanged}
                before.update(self.fetched_for(row))
            if not job.skipped[rows[0]]:
                seconds = sum(job.seconds[row] * share[row] for row in rows)
                at[[*rows]] = self.builder.add(
                    Op.COMPUTE, COMPUTE, operator=rows[0], seconds=seconds, before=sorted(before)
                )
                before = set()

        def together(batch: Sequence[SharedUpdate]) -> Iterator[None]:
            """The updates of a batch, up to each of its exchanges."""
            whole = False
            for number, exchange in zip_longest(range(len(batch[0].rows)), batch[0].exchanges):
                for rows in zip(*(one.rows[number] for one in (batch[:1] if whole else batch)), strict=True):
                    run(*rows)
                if exchange is None:
                    return
                what, size = exchange
                sent = self.builder.add(
                    Op.COLLECTIVE, self.of.stream(DP), operator=batch[0].rows[number][-1], size=size, what=what,
                    axis=self.mesh.row(job.gathering_axis(batch[0].parameter)), before=[len(self.builder) - 1],
                )  # fmt: skip
                yield
                before.add(sent)
                whole ^= what == ALL_TO_ALL

        mine = set(self.of.optimizer)
        sharing = (one for one in job.step.updates if one.exchanges)
        updates = [one for one in sharing if mine.issuperset(chain.from_iterable(one.rows))]
        for what, at_once in ((ALL_TO_ALL, AT_ONCE), (ALL_REDUCE, 1)):
            own = [one for one in updates if one.exchanges[0][0] == what]
            _take_turns((together(batch) for batch in _batches(own)), at_once)
        done = set(chain.from_iterable(rows for one in updates for rows in one.rows))
        for row in self.of.optimizer:
            if row not in done:
                run(row)
        return at


AT_ONCE = 3
"""Batches of matrices that are on their way at once (``max_concurrent_tasks`` of Dion's ``Muon``)."""


def _batches(updates: Iterable[SharedUpdate]) -> list[list[SharedUpdate]]:
    """Updates that exchange together: of parameters that are alike, as many as an exchange brings together."""
    groups: dict[tuple[int, ...], list[SharedUpdate]] = {}
    for one in updates:
        groups.setdefault(one.alike, []).append(one)
    return [
        own[at : at + size]
        for own in groups.values()
        for size in [own[0].ranks if own[0].exchanges[0][0] == ALL_TO_ALL else 1]
        for at in range(0, len(own), size)
    ]


def _take_turns(tasks: Iterator[Iterator[None]], at_once: int) -> None:
    """Run tasks step by step: in each round a new one begins and those that have begun go on, as in ``AsyncRuntime`` of
    Dion's ``opt_utils.py``."""
    running: list[Iterator[None]] = []
    more = True
    while more or running:
        began = [task for task in [next(tasks, None)] if task is not None] if len(running) < at_once else []
        more = more and (bool(began) or len(running) >= at_once)
        running = [task for task in (*began, *running) if next(task, tasks) is None]
