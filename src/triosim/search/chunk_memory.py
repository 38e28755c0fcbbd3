"""Memory of a stage from what its model chunks allocate, that of many blocks extrapolated from three, four and five.

What a pass of a chunk allocates and frees differs neither with the number of micro-batches nor with the replicas, and
each block more adds the same again.  So it is put in order once for all plans that divide a micro-batch alike, and the
allocator goes through it in the order of a stage's actions (:mod:`triosim.memory.allocation_order`).  What is there
before, parameters, gradients and optimizer states, has in each plan the sizes that its replicas leave of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.memory.allocation_order import AllocationEvent, AllocationOrder, Undecided, allocation_order
from triosim.memory.footprint import ROUND_BYTES
from triosim.memory.liveness import BlockLifetime
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.gathering import UngatheredUnits
from triosim.search.block_passes import ChunkStages
from triosim.search.block_rows import BlockRows, extrapolate, extrapolate_rows
from triosim.search.block_step import LONGEST, ModelChunk, NoBlocks, shorter
from triosim.search.pass_memory import pass_uses, update_uses
from triosim.search.stage_order import StageOrder

_OWN = (AllocationEvent.ALLOCATE_OWN, AllocationEvent.FREE_OWN)
FORWARD, BACKWARD, ITERATION = range(3)
"""In which pass of its micro-batch a block is allocated, or that it is one of the iteration."""
OF_LAST = 2
"""Of the passes of a chunk the first of the last micro-batch, in which gradients are complete."""


class ResidentBlock(NamedTuple):
    """What a chunk has before the first pass.

    Attributes:
        list: its category, and the how many of that of its parameter: optimizers have lists of each of their states.
        storage: of the step.
        given: whether each micro-batch has one.
    """

    list: tuple[int, int]
    storage: int
    given: bool


@dataclass(frozen=True)
class ChunkAllocations:
    """What a chunk allocates.

    Attributes:
        passes: what each of its passes allocates and frees, in order: codes of
            :class:`triosim.memory.allocation_order.AllocationEvent` for kinds, bytes for ticks; each row names the one
            that allocates its block, as the pass (the run) and the row, or the number of a block of the iteration.
        resident: what is there before, for chunks of few blocks from which it is extrapolated.
        reduced: bytes of its gradients, of parameters that all replicas have and of those of which they have others.
    """

    passes: tuple[BlockRows, ...]
    resident: tuple[tuple[ResidentBlock, ...], ...]
    reduced: tuple[int, int]


class ChunkMemory:
    """Memory of the chunks of a step whose parameters are not gathered.

    Args:
        stages: the chunks.
    """

    def __init__(self, stages: ChunkStages) -> None:
        self.stages = stages
        self._known: dict[ModelChunk, ChunkAllocations] = {}
        self._resident: dict[tuple[Hashable, ModelChunk], dict[tuple[int, int], BlockRows]] = {}

    def reserved(
        self, kind: tuple[ModelChunk, ...], order: StageOrder, job: JobFacts, sizes: NDArray[np.int64], sized: Hashable
    ) -> int:
        """Bytes that the allocator of a stage reserves.

        Args:
            kind: its chunks.
            order: of its actions.
            job: what is run, on the few blocks of the step.
            sizes: bytes of each storage of these on a rank.
            sized: tells such sizes apart.

        Raises:
            NoBlocks: blocks do not add alike, or something depends on more than the chunk.
        """
        chunks = [self._of(chunk) for chunk in kind]
        what, which, size, ends = [], [], [], [0]
        own = once = 0
        for chunk in chunks:
            for at, rows in enumerate(chunk.passes):
                forward = len(chunk.passes[at - at % 2])
                place = np.where(rows.run == BACKWARD, rows.before + forward, rows.before)
                which.append(place + np.where(rows.run == ITERATION, once, own))
                what.append(rows.kind)
                size.append(rows.ticks)
                ends.append(ends[-1] + len(rows))
            own += max(len(chunk.passes[at]) + len(chunk.passes[at + 1]) for at in (FORWARD, OF_LAST))
            once += max(int(rows.before[rows.run == ITERATION].max(initial=-1)) + 1 for rows in chunk.passes)
        resident = self._resident_sizes(kind, chunks, job, sizes, sized)
        if job.copies_gradients:
            copied = sum(
                size for chunk in chunks for size, own_way in zip(chunk.reduced, job.shared, strict=True)
                if own_way.reductions
            )  # fmt: skip
            resident.append(copied)
        there = -(-np.array(resident, np.int64) // ROUND_BYTES) * ROUND_BYTES
        return AllocationOrder(
            there[there > 0], np.array(ends, np.int64), np.concatenate(what).astype(np.int8),
            np.concatenate(which).astype(np.int32), np.concatenate(size), self._order(order, len(kind)),
            order.micro_batch.astype(np.int32),
        ).reserved_bytes()  # fmt: skip

    def _order(self, order: StageOrder, chunks: int) -> NDArray[np.int32]:
        """Which pass of which chunk each action is."""
        kinds, row = order.action_kinds, order.kind_of_action
        chunk = np.array([kind.chunk for kind in kinds], np.int64)[row]
        backward = np.array([kind.what is not Pass.FORWARD for kind in kinds], np.int64)[row]
        final = np.flatnonzero(np.array([kind.final for kind in kinds], bool)[row])
        last = np.full(chunks, -1, np.int64)
        last[chunk[final]] = order.micro_batch[final]
        return (4 * chunk + OF_LAST * (order.micro_batch == last[chunk]) + backward).astype(np.int32)

    def _resident_sizes(
        self, kind: tuple[ModelChunk, ...], chunks: Sequence[ChunkAllocations], job: JobFacts,
        sizes: NDArray[np.int64], sized: Hashable,
    ) -> list[int]:  # fmt: skip
        """Bytes of all that is there before, in the order of the storages of the step."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}  # of each list its lowest and its highest storage
        for one in (block for chunk in chunks for few in chunk.resident for block in few):
            low, high = spans.get(one.list, (one.storage, one.storage))
            spans[one.list] = min(low, one.storage), max(high, one.storage)
        ascending = sorted(spans, key=spans.__getitem__)
        if any(spans[a][1] >= spans[b][0] for a, b in pairwise(ascending)):
            raise NoBlocks("storages of several lists between each other")
        rows = [self._resident_rows(chunk, of, sizes, sized) for chunk, of in zip(kind, chunks, strict=True)]
        found: list[int] = []
        for own in (by[one] for one in ascending for by in rows if one in by):
            found += (np.where(own.label, job.mesh.micro_batches, 1) * own.ticks).tolist()
        return found

    def _resident_rows(
        self, chunk: ModelChunk, of: ChunkAllocations, sizes: NDArray[np.int64], sized: Hashable
    ) -> dict[tuple[int, int], BlockRows]:
        """What a chunk has before of each list: whether each micro-batch has one for labels, bytes for ticks."""
        key = sized, chunk
        if key not in self._resident:
            made = {}
            for name in dict.fromkeys(one.list for few in of.resident for one in few):
                few = [[one for one in own if one.list == name] for own in of.resident]
                rows = [
                    _rows([0] * len(own), [one.given for one in own], sizes[[one.storage for one in own]])
                    for own in few
                ]
                made[name] = rows[0] if len(rows) == 1 else extrapolate_rows(rows, chunk.blocks)
            self._resident[key] = made
        return self._resident[key]

    def _of(self, chunk: ModelChunk) -> ChunkAllocations:
        if chunk not in self._known:
            if chunk.blocks <= LONGEST:
                self._known[chunk] = _allocations(self.stages.of(chunk))
            else:
                few = [self._of(one) for one in shorter(chunk)]
                passes = zip(*(one.passes for one in few), strict=True)
                reduced = zip(*(one.reduced for one in few), strict=True)
                self._known[chunk] = ChunkAllocations(
                    tuple(extrapolate_rows(rows, chunk.blocks) for rows in passes),
                    tuple(resident for one in few for resident in one.resident),
                    tuple(extrapolate(sizes, chunk.blocks) for sizes in reduced),  # type: ignore[arg-type]
                )
        return self._known[chunk]


def _allocations(facts: StageFacts) -> ChunkAllocations:
    """What a chunk of few blocks allocates."""
    (part,), blocks = facts.parts, facts.blocks.build()
    job, storages = facts.job, facts.job.storages
    extra = np.arange(len(blocks.size)) >= len(storages)
    if (extra & (blocks.scope != BlockLifetime.RESIDENT) & (blocks.size > 0)).any():
        raise NoBlocks("blocks that are no storages of the step")
    if (blocks.home != 0).any():
        raise NoBlocks("blocks that are elsewhere")
    kinds = ((Pass.FORWARD, False), (Pass.BACKWARD, False), (Pass.BACKWARD, True))
    uses = [pass_uses(facts, part, what, final, UngatheredUnits()).uses for what, final in kinds]
    update = update_uses(facts).uses
    if (facts.blocks.build().size[update.block] > 0).any():
        raise NoBlocks("an update that needs memory")
    order, micro_batch = np.array([0, 1, 0, 2]), np.array([0, 0, 1, 1])
    try:
        made = allocation_order(blocks, uses, order, micro_batch)
    except Undecided:
        raise NoBlocks("blocks of which lifetimes decide") from None
    passes: list[BlockRows] = []
    for forward, backward in made.order.reshape(2, 2).tolist():
        place = np.zeros((2, int(made.which.max(initial=0)) + 1), np.int64)  # pass and row that allocates each block
        for number, kind in enumerate((forward, backward)):
            own = slice(int(made.ends[kind]), int(made.ends[kind + 1]))
            what, which = made.what[own].astype(np.int64), made.which[own].astype(np.int64)
            new = np.flatnonzero(what == AllocationEvent.ALLOCATE_OWN)
            place[0, which[new]], place[1, which[new]] = number, new
            mine = np.isin(what, _OWN)
            run = np.where(mine, place[0, which], ITERATION)
            passes.append(_rows(what, run, made.size[own], np.where(mine, place[1, which], which)))
    apart = [0, 0]
    for gradient in part.grads:
        apart[gradient.parameter in job.step.apart] += gradient.bytes
    there = (blocks.scope == BlockLifetime.RESIDENT) & (blocks.size > 0) & ~extra
    resident = _resident(job, np.flatnonzero(there), blocks.category)
    return ChunkAllocations(tuple(passes), (resident,), (apart[0], apart[1]))


def _resident(job: JobFacts, there: NDArray[np.int64], category: NDArray[np.int8]) -> tuple[ResidentBlock, ...]:
    """Some storages of a step."""
    storages, owner = job.storages, job.step.trace.values.of
    given, found = storages.given & ~storages.persistent, []
    number: Counter[tuple[int, int]] = Counter()
    for storage, value in zip(there.tolist(), owner[storages.shown[there]].tolist(), strict=True):
        key = int(category[storage]), value
        found.append(ResidentBlock((key[0], number[key] if value >= 0 else 0), storage, bool(given[storage])))
        number[key] += 1
    return tuple(found)


def _rows(
    kind: Sequence[int] | NDArray[np.int64], label: Sequence[int] | NDArray[np.int64], size: NDArray[np.int64],
    named: NDArray[np.int64] | None = None,
) -> BlockRows:  # fmt: skip
    """Rows of a kind and a size, which name one each, if ``named``, of the run that is their label."""
    count, labels = len(size), np.array(label, np.int64)
    zero = np.zeros(count, np.int64)
    names = named is not None
    return BlockRows(
        np.array(kind, np.int64), zero, labels, size.astype(np.int64), np.ones(count), zero,
        np.arange(count + 1) * names, labels if names else zero[:0], named if named is not None else zero[:0],
        (None,) * count,
    )  # fmt: skip
