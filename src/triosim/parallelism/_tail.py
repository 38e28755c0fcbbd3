"""What follows the last micro-batch of a stage: gradients are reduced and shared, the optimizer runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from triosim.parallelism._stage import StageFacts
from triosim.parallelism.gathering import ALL_GATHER, REDUCE_SCATTER, Marks, Missing
from triosim.parallelism.gradients import total_bytes
from triosim.parallelism.occupancy import Ran
from triosim.parallelism.offload import HOST as HOST_PLACE
from triosim.parallelism.pieces import Piece
from triosim.parallelism.program import AXES, COLLECTIVES, COMPUTE, COPY, DP, HOST, SEND, Op

DP_AXIS, PP_AXIS = AXES.index("dp"), AXES.index("pp")
ALL_REDUCE = COLLECTIVES.index("all_reduce")


class Tail:
    """Writes the tail of an iteration.

    Args:
        of: the stage.
        last: the piece of its last turn; rows of the tail count from where that starts.
        done: exchanges inside the last turn -> their instructions.
        fetched_for: instructions that fetch what an operator needs.
    """

    def __init__(
        self, of: StageFacts, last: Piece, done: Mapping[int, int], fetched_for: Callable[[int], list[int]]
    ) -> None:
        self.of, self.job, self.plan, self.mesh = of, of.job, of.plan, of.mesh
        self.builder, self.offset, self.ready = of.new(), len(last), last.ran.at
        self.sent = last.ran.travelled.sent
        self.done, self.fetched_for = done, fetched_for

    def piece(self) -> Piece:
        """The tail."""
        ready, marks, sharded = self.ready, Marks(), bool(self.of.units)
        reduced: dict[int, int] = {}  # storage of a gradient -> instruction
        if sharded and self.job.stages.count > 1:
            marks, reduced = self._scatter_gradients()
        elif not sharded and self.mesh.dp > 1:
            reduced = self._reduce_gradients(ready)
        self._share_tied_weights(ready, reduced)
        updated = self._update_on_host(ready, reduced) if "optimizer" in self.plan.offload else self._optimize(reduced)
        if self.plan.zero and not sharded and self.mesh.dp > 1:
            self._gather_parameters()
        return Piece(self.builder.build(), Ran(updated, {}), marks)

    def _scatter_gradients(self) -> tuple[Marks, dict[int, int]]:
        """Reduce-scatter the gradients of all micro-batches of a pipeline, unit by unit."""
        units, reduced = self.of.gathering(self.builder, True, Missing(), False, self.offset), {}
        for number, unit in enumerate(self.of.units):
            if unit.scatter_bytes:
                reduced.update(dict.fromkeys(unit.gradients, units.reduce(number, max(unit.backward[1], -1))))
        return units.marks, reduced

    def _gather_parameters(self) -> None:
        """All-gather the parameters that each rank has updated a part of, in the groups of their gradients."""
        size = self.job.step.trace.values.bytes()
        for group in reversed(self.of.groups()):
            self.builder.add(
                Op.COLLECTIVE,
                COMPUTE,
                operator=self.of.optimizer[-1] if self.of.optimizer else group[0].ready,
                size=int(sum(size[g.parameter] for g in group)),
                what=ALL_GATHER,
                axis=DP_AXIS,
            )

    def _reduce_gradients(self, ready: NDArray[np.int64]) -> dict[int, int]:
        """Reduce the gradients over the data axis; returns for each gradient's storage the instruction."""
        reduced = {}
        for group in self.of.groups():
            last = max(group, key=lambda g: g.ready)
            after = sorted({int(ready[g.ready]) for g in group if ready[g.ready] >= 0})
            after += [self.done[n] for n in self.job.once if n in self.done]
            instruction = self.offset + self.builder.add(
                Op.COLLECTIVE,
                self.of.stream(DP),
                operator=last.ready,
                size=total_bytes(group),
                what=REDUCE_SCATTER if self.plan.zero else ALL_REDUCE,
                axis=DP_AXIS,
                before=after,
            )
            reduced.update({g.storage: instruction for g in group})
        return reduced

    def _share_tied_weights(self, ready: NDArray[np.int64], reduced: dict[int, int]) -> None:
        """A parameter used on several stages has a gradient on each; they exchange them and each adds up."""
        for gradient in self.of.grads:
            stages = self.job.stages.parameters[gradient.parameter]
            if len(stages) < 2:
                continue
            after = [reduced[gradient.storage]] if gradient.storage in reduced else [int(ready.max(initial=-1))]
            operator, size = gradient.ready, gradient.bytes
            if self.plan.zero:  # each rank has its part of both
                size = -(-size // self.mesh.dp)
            peers = [peer for peer in stages if peer != self.of.stage]
            for peer in peers:
                tag = self.job.tags("tied", gradient.parameter, self.of.stage, peer)
                self.builder.add(
                    Op.SEND, self.of.stream(SEND), operator=operator, size=size, axis=PP_AXIS, peer=peer, tag=tag,
                    before=[i for i in after if i >= 0],
                )  # fmt: skip
            for peer in peers:
                tag = self.job.tags("tied", gradient.parameter, peer, self.of.stage)
                arrived = self.offset + self.builder.add(
                    Op.RECEIVE, -1, operator=operator, size=size, axis=PP_AXIS, peer=peer, tag=tag
                )
            reduced[gradient.storage] = arrived

    def _update_on_host(self, ready: NDArray[np.int64], reduced: dict[int, int]) -> NDArray[np.int64]:
        """Gradients go to the host when they are complete; when all are there it updates, and parameters come back.

        Gradients travel in the groups in which they are reduced; a group's parameters do while the next is updated.
        """
        mine = [p for p, users in self.job.stages.parameters.items() if self.of.stage in users]
        update, place = self.of.update(), self.of.places[HOST_PLACE]
        stream = COMPUTE if self.of.units else self.of.stream(COPY)  # the backward of units ends with waiting for them
        last = self.of.optimizer[-1] if self.of.optimizer else -1
        sizes = [sum(update.gradients.get(g.storage, 0) for g in group) for group in self.of.groups()]
        stored = []
        for group, size in zip(self.of.groups(), sizes, strict=True):
            after = {reduced[g.storage] if g.storage in reduced else int(ready[g.ready]) for g in group}
            gone = {self.sent[g.storage] for g in group if g.storage in self.sent}
            if gone:
                stored += sorted(gone)
            elif size:
                stored.append(
                    self.offset
                    + self.builder.add(
                        Op.STORE, stream, operator=group[-1].ready, size=size, peer=place,
                        before=sorted(i for i in after if i >= 0),
                    )
                )  # fmt: skip
        visiting = {storage for trip in self.of.trips[False] if trip.leaves < 0 for storage in trip.storages}
        storage = self.job.storage
        staying = 1.0
        if visiting:  # parameters of blocks are on the host already
            size_of = self.job.step.trace.values.bytes()
            whole = sum(int(size_of[p]) for p in mine)
            staying = sum(int(size_of[p]) for p in mine if storage[p] not in visiting) / whole if whole else 0.0
        parts = [size / sum(sizes) for size in sizes if size] or [1.0]
        for part in parts:
            seconds = update.touched_bytes * self.job.update_s_per_byte * part
            updated = self.offset + self.builder.add(
                Op.ISSUE, HOST, operator=last, seconds=seconds, peer=place, before=stored
            )
            size = round(update.parameters * part * staying)
            if size:
                self.builder.add(Op.FETCH, COMPUTE, operator=last, size=size, peer=place, before=[updated])
        return np.full(len(self.job.phase), -1, np.int64)

    def _optimize(self, reduced: dict[int, int]) -> NDArray[np.int64]:
        """The optimizer begins when every gradient is reduced: DDP's backward ends by waiting for all its buckets."""
        job = self.job
        at = np.full(len(job.phase), -1, np.int64)
        share = job.stages.share[:, self.of.stage].tolist()
        before = set(reduced.values())
        for row in self.of.optimizer:
            before |= {self.done[n] for n in job.needed_before.get(row, ()) if n in self.done}
            before.update(self.fetched_for(row))
            if job.skipped[row]:
                continue
            seconds = job.seconds[row] * share[row]
            at[row] = self.offset + self.builder.add(
                Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=sorted(before)
            )
            before = set()
        return at
