"""Gathering parameters and scattering gradients around a micro-batch, in the order in which FSDP2 does it.

The order and what waits for what are those of PyTorch 2.13, ``torch.distributed.fsdp.fully_shard``
(``FSDPParamGroup.pre_forward``, ``pre_backward``, ``post_backward``):

* Forward: a unit's all-gather is launched before its first operator.  On the device it follows the all-gather before
  it and may run up to two units ahead: it waits until the unit two before it has been copied out.
* Backward: when the gradient of the whole model's output is there, the all-gather of the last block is launched; when
  a unit begins, that of the next one.
* After a unit's backward its gradients are copied into one buffer and reduce-scattered.  There is one such buffer:
  the device waits for the reduce-scatter of the unit before.  At the end it waits for all.

All-gathers and reduce-scatters are of one communicator, so they run one after the other.  What is gathered is copied
out of one buffer into the parameters, what is scattered into one; copies take the device's time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.memory.blocks import ExtraBlock, RankBlocks
from triosim.memory.liveness import BlockUseRecorder
from triosim.partition.passes.fuse import GatherUnit
from triosim.partition.passes.hoist import hoist
from triosim.partition.replication import GradientReduction, ReplicaSharing
from triosim.partition.residence import GatheredModules
from triosim.partition.transfers import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from triosim.schedule.program import COMPUTE, COPY, DP, REPLICAS, Op, ProgramBuilder, of_iteration
from triosim.trace.tables import Category


class UngatheredUnits(NamedTuple):
    """Parameters to gather in a forward or backward: the rest of the stage, and its blocks."""

    root: bool = False
    blocks: bool = False

    def __contains__(self, unit: object) -> bool:
        return isinstance(unit, GatherUnit) and (self.root if unit.root else self.blocks)


def missing(turns: Sequence[bool], number: int, regathers: bool, pipelined: bool) -> UngatheredUnits:
    """What is not gathered when a turn begins.

    Without a pipeline every backward ends with everything sharded and all gradients scattered.  With one it is as
    ``torch.distributed.pipelining`` does it: parameters stay gathered after a backward, and gradients are scattered
    when all micro-batches are done.

    Args:
        turns: for each turn of the stage whether it is a backward.
        number: which turn.
        regathers: whether the backward gathers again what the forward has.
        pipelined: whether there are several stages.
    """
    if number == 0:
        return UngatheredUnits(True, True)
    before, resharded = turns[number - 1], regathers
    if pipelined:
        return UngatheredUnits(False, resharded and not before)
    return UngatheredUnits(before, before or resharded)


class UnitBlocks(NamedTuple):
    """Memory blocks of a unit whose parameters are gathered, as rows of the blocks of its rank.

    As FSDP2 allocates it: an all-gather has a buffer of its own from its launch until it has been copied out, in a
    forward until the next unit has been copied out; the copy is there until the unit is sharded again.  Gradients are
    whole until they have been copied into the reduce-scatter's buffer, which is there until the next copy waits for it;
    what comes out, a rank's part of the gradients, stays to the end of the iteration.
    """

    received: int
    copy: int
    sent: int
    shard: int

    @staticmethod
    def of(unit: GatherUnit, key: object, blocks: RankBlocks) -> UnitBlocks:
        """Those of a unit that is known as ``key``."""
        storage = int(blocks.storages.trace.values.storage[unit.parameters[0]])
        buffer, whole = Category.COMMUNICATION, unit.gather_bytes
        return UnitBlocks(
            blocks.add((key, "received"), ExtraBlock(whole, buffer, storage)),
            blocks.add((key, "copy"), ExtraBlock(whole, Category.WEIGHT, storage)),
            blocks.add((key, "sent"), ExtraBlock(unit.scatter_bytes, buffer, storage)),
            blocks.add((key, "shard"), ExtraBlock(unit.scatter_bytes // unit.shards, Category.GRADIENT, storage)),
        )


class Gathering:
    """Writes what belongs to the units around the operators of one forward or backward.

    Args:
        units: of the stage.
        blocks: what each takes of memory.
        stands_for: see :class:`triosim.memory.blocks.RankBlocks`.
        builder, recorder: the fragment being written, and what it uses of memory.
        backward: which of the two it is.
        needs: what has to be gathered.
        scatters: whether gradients are scattered in it.
        overlap: whether transfers run beside compute.
        copy_s_per_byte: what copying a byte takes.
        shared: how parameters are shared: those that all replicas have, and those of which they have different ones.
        modules: how far ahead parameters are gathered.
        start: row of the iteration at which the fragment begins, if rows of it are to be named by that
            (:class:`triosim.schedule.fragments.Fragment`); else -1.
        scatters_beside: whether gradients are reduced beside the backward; otherwise it waits for each.
        shards_at: place (row of the program's places) from which a rank's shard of a unit is fetched before it is
            gathered; -1 where shards are on the device.
    """

    def __init__(
        self,
        units: Sequence[GatherUnit],
        blocks: Sequence[UnitBlocks],
        stands_for: Mapping[int, int],
        builder: ProgramBuilder,
        recorder: BlockUseRecorder,
        backward: bool,
        needs: UngatheredUnits,
        scatters: bool,
        overlap: bool,
        copy_s_per_byte: float,
        shared: tuple[ReplicaSharing, ReplicaSharing],
        modules: GatheredModules,
        start: int = -1,
        scatters_beside: bool = True,
        shards_at: int = -1,
    ) -> None:
        self.units, self.builder, self.backward, self.overlap, self.start = units, builder, backward, overlap, start
        self.copy_s_per_byte, self.shared, self.waits = copy_s_per_byte, shared, not scatters_beside
        self.blocks, self.recorder, self.stands_for, self.shards_at = blocks, recorder, stands_for, shards_at
        self.received = -1  # buffer of the last all-gather, to be freed
        self.sent = -1  # that of the last reduce-scatter
        reach = [unit.backward if backward else unit.forward for unit in units]
        ran = [number for number, rows in enumerate(reach) if rows[0] >= 0]
        order = sorted(ran, key=lambda n: (reach[n][0], not units[n].root))
        self.gathers = [n for n in order if units[n].gather_bytes and units[n] in needs]
        self.prefetched: dict[int, list[int]] = {}  # unit -> those that are launched when it has been copied out
        early = modules.backward_ahead if backward else modules.forward_ahead
        for n, at in zip(self.gathers, hoist(self.gathers, early), strict=True):
            if at != n:
                self.prefetched.setdefault(at, []).append(n)
        self.begins: dict[int, list[int]] = {}
        for n in self.gathers:
            self.begins.setdefault(reach[n][0], []).append(n)
        scattered = [n for n in ran if scatters and units[n].scatter_bytes]
        self.final = max(scattered, key=lambda n: (reach[n][1], units[n].root), default=-1)
        self.ends: dict[int, list[int]] = {}
        for n in sorted(scattered, key=lambda n: units[n].root):
            self.ends.setdefault(reach[n][1], []).append(n)
        inside = [rows[0] for rows in reach if rows[0] >= 0]
        self.prefetch_at = min(inside) if backward and inside else -1
        self.launched: dict[int, int] = {}  # unit -> its all-gather
        self.copied: list[int] = []
        self.scatter = -1  # the last reduce-scatter

    def rows(self) -> list[int]:
        """Operators before or after which something is written."""
        return [*({self.prefetch_at} - {-1}), *self.begins, *self.ends]

    def before(self, row: int, previous: int) -> None:
        """Write what comes before an operator.

        Args:
            row: the operator.
            previous: the instruction that computed last in this fragment, -1 for none.
        """
        if row == self.prefetch_at and self.gathers:
            self._gather(self.gathers[0], row, [previous] if previous >= 0 else [])
        for n in self.begins.get(row, ()):
            ahead = self.copied[-2:-1] if not self.backward else self.copied[-1:]
            call = self._gather(n, row, ahead)
            sent = self.shared[self.units[n].apart].gathered
            self.copied.append(self._copy(self.units[n].gather_bytes * (1 + sent) / 2, row, ALL_GATHER, [call]))
            self._copied_out(n, self.copied[-1])
            for following in self.prefetched.get(n, ()):
                self._gather(following, row, self.copied[-1:])

    def after(self, row: int) -> None:
        """Write what comes after an operator."""
        for n in self.ends.get(row, ()):
            self.reduce(n, row)

    def reduce(self, n: int, row: int) -> int:
        """Copy a unit's gradients into the buffer and reduce them; returns the instruction that does so last."""
        size, path = self.units[n].scatter_bytes, self.shared[self.units[n].apart].reductions
        touched = _touched(path)
        copied = self._copy(size * touched, row, REDUCE_SCATTER, [self.scatter] if self.scatter >= 0 else [])
        last, stream = copied, DP
        for number, (what, axis, parts) in enumerate(path):
            ends = self.waits or (n == self.final and number == len(path) - 1)
            last = self._collective(what, math.ceil(size / parts), row, [last], ends, axis, stream)
            if not number:
                self.scatter = last
            stream = REPLICAS
        self._copied_in(n, copied)
        return last

    def finish(self, at: NDArray[np.int64] | None, reshards: bool) -> None:
        """Free what is needed no more when the fragment is written.

        Args:
            at: instruction of each operator, None where none is run.
            reshards: whether units are sharded again; in a forward what is in no block stays.
        """
        if at is not None and self.units:
            done = max(int(at[max(unit.forward[1] for unit in self.units)]), 0)
            if self.received >= 0:
                self.recorder.free(self.received, done)
            for unit, block in zip(self.units, self.blocks, strict=True):
                last = (unit.backward if self.backward else unit.forward)[1]
                if reshards and last >= 0 and (self.backward or not unit.root):
                    end = len(self.builder) - 1 if unit.root else int(at[last])
                    self.recorder.free(block.copy, max(end, 0))
        if self.sent >= 0:
            self.recorder.free(self.sent, self.scatter)

    def _copied_out(self, n: int, row: int) -> None:
        """Instruction ``row`` has copied a unit out of the buffer in which it was gathered."""
        if self.received >= 0:
            self.recorder.free(self.received, row)
        self.received = self.blocks[n].received
        if self.backward:
            self.recorder.free(self.received, row)
            self.received = -1
        self.recorder.free(self.blocks[n].copy, row)  # it is gathered anew
        self.recorder.use(self.blocks[n].copy, row)

    def _copied_in(self, n: int, row: int) -> None:
        """Instruction ``row`` has copied a unit's gradients into the buffer from which they are scattered."""
        if self.sent >= 0:
            self.recorder.free(self.sent, row)
        for storage in self.units[n].gradients:
            self.recorder.free(self.stands_for.get(storage, storage), row)
        self.sent = self.blocks[n].sent
        self.recorder.use(self.sent, row)
        self.recorder.use(self.blocks[n].shard, self.scatter)

    def _gather(self, n: int, row: int, before: list[int]) -> int:
        """Launch an all-gather, once; the first of a fragment that waits for nothing here waits for all before."""
        if n not in self.launched:
            of = self.shared[self.units[n].apart]
            size = math.ceil(self.units[n].gather_bytes * of.gathered)
            if not self.overlap:
                self._copy(size // self.units[n].shards, row, ALL_GATHER, [])
            begun = [*self.launched.values()][-1:]
            blocks = not (before or begun)
            axis = of.again if self.backward and of.again >= 0 else of.axis
            waits = before + begun
            if self.shards_at >= 0:
                waits = [self._fetch(self.units[n].gather_bytes // self.units[n].shards, row, waits, blocks)]
            self.launched[n] = self._collective(ALL_GATHER, size, row, waits, blocks, axis, DP)
            self.recorder.use(self.blocks[n].received, self.launched[n])
        return self.launched[n]

    def _fetch(self, size: int, row: int, before: list[int], blocks: bool) -> int:
        """Bring a rank's shard from where it is; launched when its all-gather would be."""
        stream = COMPUTE if blocks or not self.overlap else COPY
        return self.builder.add(
            Op.FETCH, stream, operator=row, size=size, peer=self.shards_at, before=self._named(before)
        )

    def _collective(
        self, what: int, size: int, row: int, before: list[int], blocks: bool, axis: int, stream: int
    ) -> int:
        stream = COMPUTE if blocks or not self.overlap else stream
        return self.builder.add(
            Op.COLLECTIVE, stream, operator=row, size=size, what=what, axis=axis, before=self._named(before)
        )

    def _copy(self, size: float, row: int, what: int, before: list[int]) -> int:
        seconds = size * self.copy_s_per_byte
        return self.builder.add(
            Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, what=what, before=self._named(before)
        )

    def _named(self, rows: list[int]) -> list[int]:
        return rows if self.start < 0 else [of_iteration(self.start + row) for row in rows]


def _touched(path: Sequence[GradientReduction]) -> float:
    """Bytes that are copied before gradients are reduced, over theirs: those of one buffer; of quantized gradients also
    what is read, added up and quantized anew after each all-to-all."""
    if not path or path[0].what != ALL_TO_ALL:
        return 1.0
    sizes = [1.0, *(1 / hop.parts for hop in path)]
    return sum((before + after) / 2 for before, after in pairwise([*sizes, sizes[-1]]))
