"""Memory of a stage from what its model chunks allocate, that of many blocks extrapolated from three, four and five.

What a pass of a chunk allocates and frees differs neither with the number of micro-batches nor with the replicas, and
each block more adds the same again.  So it is put in order once for all plans that divide a micro-batch alike, and the
allocator goes through it in the order of a stage's actions (:mod:`triosim.memory.allocation_order`).  Which block comes
and goes when does not differ with the size of a micro-batch either and is found once for all of them
(:mod:`triosim.search.step_structure`).  What is there before, parameters, gradients and optimizer states, has in each
plan the sizes that its replicas leave of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.memory.allocation_order import AllocationEvent, AllocationOrder, Undecided, allocation_order
from triosim.memory.blocks import StepStorages
from triosim.memory.footprint import ROUND_BYTES
from triosim.memory.liveness import BlockLifetime, BlockUses
from triosim.schedule._stage import JobFacts, ReplicaFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.uncut_step import uncut_step
from triosim.search.block_passes import ChunkStages
from triosim.search.block_rows import BlockRows, RowsOfBlocks, extrapolate
from triosim.search.block_step import LONGEST, ModelChunk, NoBlocks, shorter
from triosim.search.pass_memory import pass_uses, reduction_uses, update_uses
from triosim.search.peak_memory import ungathered
from triosim.search.stage_order import StageOrder
from triosim.trace.blocks import blocks as blocks_of
from triosim.trace.tables import Trace

_OWN = (AllocationEvent.ALLOCATE_OWN, AllocationEvent.FREE_OWN)
FORWARD, BACKWARD, ITERATION = range(3)
"""In which pass of its micro-batch a block is allocated, or that it is one of the iteration."""
PARTS = 3
"""Added to that where it is a rank's part of the gradients of a unit, twice for those of other replicas."""

SEVERAL = 3
"""Blocks that read what is no output of one for the next."""


class MicroBatchPath(NamedTuple):
    """The passes of a micro-batch through a chunk.

    Attributes:
        forward, backward: what they have to gather.
        final: whether gradients are complete after the backward.
    """

    forward: UngatheredUnits
    backward: UngatheredUnits
    final: bool


List = tuple[int, int, int]
"""Which of the lists of a step a storage is in: its category, the how many of that of its parameter (optimizers have
lists of each of their states), and whether it comes before (-1) or after (1) those of repeated blocks."""


@dataclass(frozen=True)
class ResidentBlocks:
    """What a chunk of few blocks has of a list before the first pass.

    Attributes:
        storages: of the step, ascending.
        given: whether each micro-batch has one of each.
    """

    storages: NDArray[np.int64]
    given: NDArray[np.bool_]


class PatternRows(NamedTuple):
    """What a pass allocates and frees, whatever sizes blocks have.

    Attributes:
        what, label, run, named: as rows of :class:`ChunkAllocations` have them: kinds, labels, and which row allocates.
        block: which block each is.
    """

    what: NDArray[np.int64]
    label: NDArray[np.int64]
    run: NDArray[np.int64]
    named: NDArray[np.int64]
    block: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AllocationPattern:
    """What a chunk of few blocks allocates, whatever sizes storages have.

    Attributes:
        passes: as of :class:`ChunkAllocations`.
        size: bytes of each block, -1 for those of the storage of the step that it is.
        resident, reduced, shares: as of :class:`ChunkAllocations`.
    """

    passes: tuple[PatternRows, ...]
    size: NDArray[np.int64]
    resident: dict[List, ResidentBlocks]
    reduced: tuple[int, int]
    shares: bool

    def sized(self, storages: NDArray[np.int64]) -> ChunkAllocations:
        """What it allocates where the storages of the step have so many bytes."""
        size = self.size.copy()
        own = np.flatnonzero(size < 0)
        size[own] = storages[own]
        passes = (_rows(one.what, one.label, size[one.block], one.run, one.named) for one in self.passes)
        return ChunkAllocations(tuple(passes), (self.resident,), self.reduced, self.shares)


@dataclass(frozen=True, eq=False)
class ChunkAllocations:
    """What a chunk allocates.

    Attributes:
        passes: what passes allocate and free: the forward and the backward of each path, then what reduces the
            gradients after the last.  Codes of :class:`triosim.memory.allocation_order.AllocationEvent` for kinds,
            bytes for ticks, of a rank's part of gradients those of all parts; each row names the one that allocates its
            block, as the pass (the run) and the row, or the number of a block of the iteration.
        resident: what is there before, by lists, for each chunk of few blocks from which it is extrapolated.
        reduced: bytes of its gradients, of parameters that all replicas have and of those of which they have others.
        shares: whether passes use what all blocks read, as rotary tables: another chunk of its stage may have it.
    """

    passes: tuple[BlockRows, ...]
    resident: tuple[dict[List, ResidentBlocks], ...]
    reduced: tuple[int, int]
    shares: bool

    @cached_property
    def spans(self) -> dict[List, tuple[int, int]]:
        """The lowest and the highest storage of each list."""
        found: dict[List, tuple[int, int]] = {}
        for few in self.resident:
            for name, own in few.items():
                low, high = int(own.storages[0]), int(own.storages[-1])
                before = found.get(name, (low, high))
                found[name] = min(before[0], low), max(before[1], high)
        return found


class AllocationsOfBlocks:
    """What a chunk of any number of blocks allocates, from those of three, four and five.

    Args:
        few: what chunks of :data:`SHORTEST` blocks and one and two more allocate.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """

    def __init__(self, few: Sequence[ChunkAllocations]) -> None:
        self.passes = [RowsOfBlocks(rows) for rows in zip(*(one.passes for one in few), strict=True)]
        self.reduced = list(zip(*(one.reduced for one in few), strict=True))
        self.resident = tuple(resident for one in few for resident in one.resident)
        self.shares = any(one.shares for one in few)

    def of(self, blocks: int) -> ChunkAllocations:
        """That of so many blocks.

        Raises:
            NoBlocks: as of the class.
        """
        one, other = (extrapolate(sizes, blocks) for sizes in self.reduced)
        passes = tuple(rows.rows(blocks) for rows in self.passes)
        return ChunkAllocations(passes, self.resident, (one, other), self.shares)


@dataclass(frozen=True, eq=False)
class StageAllocations:
    """What the chunks of a stage allocate on a rank, in whatever order they run.

    Attributes:
        ends, what, which, size: as of :class:`triosim.memory.allocation_order.AllocationOrder`, of all passes.
        first: of each chunk its first pass among these, and how many there are.
        reduced: as of :class:`ChunkAllocations`, of all chunks.
    """

    ends: NDArray[np.int64]
    what: NDArray[np.int8]
    which: NDArray[np.int32]
    size: NDArray[np.int64]
    first: tuple[int, ...]
    reduced: tuple[int, int]

    @staticmethod
    def of(chunks: Sequence[ChunkAllocations], job: ReplicaFacts) -> StageAllocations:
        """Those of some chunks, one after another."""
        what, which, size, ends, first = [], [], [], [0], [0]
        own = once = 0
        for chunk in chunks:
            for at, rows in enumerate(chunk.passes):
                forward = len(chunk.passes[at - at % 2])
                place = np.where(rows.run == BACKWARD, rows.before + forward, rows.before)
                which.append(place + np.where(rows.run == ITERATION, once, own))
                what.append(rows.kind)
                size.append(_of_rank(rows, job))
                ends.append(ends[-1] + len(rows))
            first.append(len(what))
            own += max(map(len, chunk.passes[::2])) + max(map(len, chunk.passes[1::2]))
            once += max(int(rows.before[rows.run == ITERATION].max(initial=-1)) + 1 for rows in chunk.passes)
        return StageAllocations(
            np.array(ends, np.int64), np.concatenate(what).astype(np.int8), np.concatenate(which).astype(np.int32),
            np.concatenate(size), tuple(first),
            (sum(chunk.reduced[0] for chunk in chunks), sum(chunk.reduced[1] for chunk in chunks)),
        )  # fmt: skip


class ChunkMemory:
    """Memory of the chunks of a step.

    Args:
        stages: the chunks.
        patterns: what the chunks of steps of its structure allocate, as far as it is known.
    """

    def __init__(self, stages: ChunkStages, patterns: dict[ChunkKey, AllocationPattern]) -> None:
        self.stages, self._patterns = stages, patterns
        self._known: dict[ChunkKey, ChunkAllocations] = {}
        self._any: dict[ChunkKey, AllocationsOfBlocks] = {}  # whatever their blocks
        self._stage: dict[Hashable, StageAllocations] = {}
        self._there: dict[Hashable, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._resident: dict[tuple[Hashable, ModelChunk], dict[List, RowsOfBlocks | BlockRows]] = {}

    def allocations(
        self,
        kind: tuple[ModelChunk, ...],
        order: StageOrder,
        job: ReplicaFacts,
        sizes: NDArray[np.int64],
        sized: Hashable,
    ) -> AllocationOrder:
        """What the allocator of a stage is asked for.

        Args:
            kind: its chunks.
            order: of its actions.
            job: what replicas share of the few blocks of the step.
            sizes: bytes of each storage of these on a rank.
            sized: tells such sizes apart.

        Raises:
            NoBlocks: blocks do not add alike, or something depends on more than the chunk.
        """
        regathers, gathers = job.replication.regathers, job.modules is not None
        ways = [_paths(order, number, regathers, gathers) for number in range(len(kind))]
        paths = tuple(own for own, _ in ways)
        key = kind, paths, regathers, tuple(shared.shards for shared in job.shared)
        if key not in self._stage or (sized, kind) not in self._there:
            chunks = [self._of(chunk, own, regathers) for chunk, own in zip(kind, paths, strict=True)]
            if len(chunks) > 1 and any(chunk.shares for chunk in chunks):
                raise NoBlocks("chunks that have the same in memory")
            if key not in self._stage:
                self._stage[key] = StageAllocations.of(chunks, job)
            self._there[sized, kind] = self._resident_sizes(kind, chunks, sizes, sized)
        made = self._stage[key]
        size, given = self._there[sized, kind]
        there = size * np.where(given, job.mesh.micro_batches, 1)
        if job.copies_gradients:
            buckets = [size for size, own_way in zip(made.reduced, job.shared, strict=True) if own_way.reductions]
            there = np.append(there, sum(buckets))
        resident = _rounded(there)
        passes, micro_batch = self._order(order, [path for _, path in ways], made.first)
        return AllocationOrder(
            resident[resident > 0], made.ends, made.what, made.which, made.size, passes, micro_batch
        )  # fmt: skip

    def _order(
        self, order: StageOrder, paths: Sequence[NDArray[np.int64]], first: Sequence[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Which pass of which chunk each action is, reductions among them, and on which micro-batch it works."""
        kinds, row = order.action_kinds, order.kind_of_action
        chunk = np.array([kind.chunk for kind in kinds], np.int64)[row]
        backward = np.array([kind.what is not Pass.FORWARD for kind in kinds], np.int64)[row]
        path = np.stack(paths)[chunk, order.micro_batch]
        passes = np.array(first)[chunk] + 2 * path + backward
        ends = np.flatnonzero(order.last)
        passes = np.insert(passes, ends + 1, np.array(first)[chunk[ends] + 1] - 1)
        micro_batch = np.insert(order.micro_batch, ends + 1, order.micro_batch.max(initial=0))
        return passes.astype(np.int32), micro_batch.astype(np.int32)

    def _resident_sizes(
        self, kind: tuple[ModelChunk, ...], chunks: Sequence[ChunkAllocations], sizes: NDArray[np.int64],
        sized: Hashable,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:  # fmt: skip
        """Bytes of all that is there before, in the order of the storages of the step, and whether each micro-batch has
        one of each."""
        spans: dict[List, tuple[int, int]] = {}
        for chunk in chunks:
            for name, (low, high) in chunk.spans.items():
                before = spans.get(name, (low, high))
                spans[name] = min(before[0], low), max(before[1], high)
        ascending = sorted(spans, key=spans.__getitem__)
        if any(spans[a][1] >= spans[b][0] for a, b in pairwise(ascending)):
            raise NoBlocks("storages of several lists between each other")
        rows = [self._resident_rows(chunk, of, sizes, sized) for chunk, of in zip(kind, chunks, strict=True)]
        found = [by[one] for one in ascending for by in rows if one in by]
        size, given = (np.concatenate([np.zeros(0, np.int64), *own]) for own in (
            [own.ticks for own in found], [own.label for own in found],
        ))  # fmt: skip
        return size, given > 0

    def _resident_rows(
        self, chunk: ModelChunk, of: ChunkAllocations, sizes: NDArray[np.int64], sized: Hashable
    ) -> dict[List, BlockRows]:
        """What a chunk has before of each list: whether each micro-batch has one for labels, bytes for ticks."""
        few = len(of.resident) == 1
        key = sized, chunk if few else chunk._replace(blocks=LONGEST + 1)
        if key not in self._resident:
            made: dict[List, RowsOfBlocks | BlockRows] = {}
            for name in dict.fromkeys(name for own in of.resident for name in own):
                rows = [_resident(own.get(name), sizes) for own in of.resident]
                made[name] = rows[0] if few else RowsOfBlocks(rows)
            self._resident[key] = made
        return {
            name: own if isinstance(own, BlockRows) else own.rows(chunk.blocks)
            for name, own in self._resident[key].items()
        }

    def _of(self, chunk: ModelChunk, paths: tuple[MicroBatchPath, ...], regathers: bool) -> ChunkAllocations:
        """A chunk; those of many blocks are written anew, as they are long and few ask for them."""
        if chunk.blocks > LONGEST:
            key = chunk._replace(blocks=LONGEST), paths, regathers
            if key not in self._any:
                self._any[key] = AllocationsOfBlocks([self._of(one, paths, regathers) for one in shorter(chunk)])
            return self._any[key].of(chunk.blocks)
        key = chunk, paths, regathers
        if key not in self._known:
            if key not in self._patterns:
                self._patterns[key] = _allocations(self.stages.first_of(chunk), paths, regathers)
            self._known[key] = self._patterns[key].sized(self._storages)
        return self._known[key]

    @cached_property
    def _storages(self) -> NDArray[np.int64]:
        """Bytes of the storages of the step."""
        step = self.stages.step.step
        return uncut_step(step.trace, step.root_only).storages.size


ChunkKey = tuple[ModelChunk, tuple[MicroBatchPath, ...], bool]
"""A chunk, its paths, and whether a backward gathers again what the forward has."""


@kept(1024)
def _paths(
    order: StageOrder, chunk: int, regathers: bool, gathers: bool
) -> tuple[tuple[MicroBatchPath, ...], NDArray[np.int64]]:
    """The ways that micro-batches take through a chunk, and that of each."""
    kinds, row = order.action_kinds, order.kind_of_action
    taken = np.full((2, int(order.micro_batch.max(initial=0)) + 1), -1, np.int64)  # kind of both passes of each
    for number, kind in enumerate(kinds):
        if kind.chunk == chunk:
            taken[int(kind.what is not Pass.FORWARD), order.micro_batch[row == number]] = number
    if (taken < 0).any():
        raise NoBlocks("micro-batches that do not take both passes")
    code = taken[0] * len(kinds) + taken[1]
    _, at, of = np.unique(code, return_index=True, return_inverse=True)
    needs = [ungathered(kind, regathers, True) if gathers else UngatheredUnits() for kind in kinds]
    known: dict[MicroBatchPath, int] = {}
    places = [
        known.setdefault(MicroBatchPath(needs[one], needs[other], kinds[other].final), len(known))
        for one, other in taken[:, at].T.tolist()
    ]
    return tuple(known), np.array(places, np.int64)[of.reshape(-1)]


def _rounded(size: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-size // ROUND_BYTES) * ROUND_BYTES


def _of_rank(rows: BlockRows, job: ReplicaFacts) -> NDArray[np.int64]:
    """Bytes of the blocks of some rows on a rank."""
    whole = np.array([1, *(shared.shards for shared in job.shared)], np.int64)
    return _rounded(rows.ticks // whole[rows.label // PARTS])


def _allocations(facts: StageFacts, paths: tuple[MicroBatchPath, ...], regathers: bool) -> AllocationPattern:
    """What a chunk of few blocks allocates."""
    (part,), blocks = facts.parts, facts.blocks.build()
    job, storages = facts.job, facts.job.storages
    size, parts = blocks.size.copy(), np.zeros(len(blocks.size), np.int64)
    size[: len(storages)][size[: len(storages)] == storages.size] = -1
    for unit, of_unit in zip(part.units, part.blocks, strict=True):
        parts[of_unit.shard] = 1 + (unit.parameters[0] in job.step.apart)
        size[of_unit.shard] = unit.scatter_bytes
    extra = np.arange(len(size)) >= len(storages)  # those have a size of their own
    known = np.isin(np.arange(len(size)), [block for of_unit in part.blocks for block in of_unit])
    if (extra & ~known & (blocks.scope != BlockLifetime.RESIDENT) & (blocks.size > 0)).any() or (
        blocks.home != 0
    ).any():
        raise NoBlocks("blocks that are elsewhere, or no storages of the step")
    kinds = dict.fromkeys(
        kind for path in paths
        for kind in ((Pass.FORWARD, False, path.forward), (Pass.BACKWARD, path.final, path.backward))
    )  # fmt: skip
    number = {kind: row for row, kind in enumerate(kinds)}
    uses = [*(_used_in(facts, *kind, regathers) for kind in kinds), *_used_after(facts)]
    if len(facts.blocks.build().size) > len(size):
        raise NoBlocks("an update that needs memory")
    order = [
        row for path in paths
        for row in (number[Pass.FORWARD, False, path.forward], number[Pass.BACKWARD, path.final, path.backward])
    ]  # fmt: skip
    order += [len(kinds), len(kinds) + 1]
    micro_batch = np.minimum(np.arange(len(order)) // 2, len(paths) - 1)
    told = ROUND_BYTES * np.where(blocks.size > 0, np.arange(len(size)) + 1, 0)  # sizes that tell blocks apart
    try:
        made = allocation_order(replace(blocks, size=told), uses, np.array(order), micro_batch)
    except Undecided:
        raise NoBlocks("blocks of which lifetimes decide") from None
    passes: list[PatternRows] = []
    place = np.zeros((2, 0), np.int64)  # pass and row that allocates each block
    for at, kind in enumerate(made.order[:-1].tolist()):
        if at % 2 == FORWARD:
            place = np.zeros((2, int(made.which.max(initial=0)) + 1), np.int64)
        own = slice(int(made.ends[kind]), int(made.ends[kind + 1]))
        what, which, block = (column[own].astype(np.int64) for column in (made.what, made.which, made.size))
        block = block // ROUND_BYTES - 1
        new = np.flatnonzero(what == AllocationEvent.ALLOCATE_OWN)
        place[0, which[new]], place[1, which[new]] = at % 2, new
        mine = np.isin(what, _OWN)
        run = np.where(mine, place[0, which], ITERATION)
        label = run + PARTS * parts[block]
        passes.append(PatternRows(what, label, run, np.where(mine, place[1, which], which), block))
    apart = [0, 0]
    for gradient in part.grads:
        apart[gradient.parameter in job.step.apart] += gradient.bytes
    there = (blocks.scope == BlockLifetime.RESIDENT) & (blocks.size > 0) & ~extra
    resident = _listed(job, np.flatnonzero(there))
    used = distinct(np.concatenate([one.block for one in uses]))
    used = used[(blocks.scope[used] == BlockLifetime.MICRO_BATCH) & (used < len(storages))]
    shares = bool((_readers(job.step.trace)[used] >= SEVERAL).any())
    return AllocationPattern(tuple(passes), size, resident, (apart[0], apart[1]), shares)


@kept(64)
def _used_in(facts: StageFacts, what: Pass, final: bool, needs: UngatheredUnits, regathers: bool) -> BlockUses:
    """What a pass of a chunk uses, whichever others a micro-batch takes through it."""
    return pass_uses(facts, facts.parts[0], what, final, needs, regathers).uses


@kept(16)
def _used_after(facts: StageFacts) -> tuple[BlockUses, BlockUses]:
    """What reducing the gradients of a chunk uses, and its update."""
    return reduction_uses(facts, facts.parts[0]).uses, update_uses(facts).uses


@kept(16)
def _readers(trace: Trace) -> NDArray[np.int64]:
    """How many repeated blocks read each storage of a step."""
    inputs, storage = trace.operators.inputs, trace.values.storage
    of = blocks_of(trace).of(trace)[inputs.rows()].astype(np.int64)
    count = int(of.max(initial=0)) + 1
    pairs = distinct((storage[inputs.values].astype(np.int64) * count + of)[of >= 0])
    return np.bincount(pairs // count, minlength=int(storage.max(initial=-1)) + 1)


def _listed(job: JobFacts, there: NDArray[np.int64]) -> dict[List, ResidentBlocks]:
    """Some storages of a step, ascending, by their lists."""
    lists, given = _lists(job.step.trace), job.storages.given & ~job.storages.persistent
    by: dict[List, list[int]] = {}
    for storage in there.tolist():
        by.setdefault(lists[storage], []).append(storage)
    return {name: ResidentBlocks(np.array(own, np.int64), given[own]) for name, own in by.items()}


def _resident(of: ResidentBlocks | None, sizes: NDArray[np.int64]) -> BlockRows:
    """What a chunk of few blocks has of a list."""
    if of is None:
        return _rows([], [], sizes[:0])
    return _rows(np.zeros(len(of.storages), np.int64), of.given.astype(np.int64), sizes[of.storages])


@kept(16)
def _lists(trace: Trace) -> list[List]:
    """In which list each storage of a step is."""
    storages = StepStorages(trace)
    shown, weights = storages.shown, np.zeros(len(trace.values) + 1, bool)
    weights[trace.weights()] = True
    owner = np.where(weights[shown], shown, trace.values.of[shown])
    inputs, of = trace.operators.inputs, blocks_of(trace).of(trace)
    repeated = np.zeros(len(trace.values) + 1, bool)
    repeated[inputs.values[of[inputs.rows()] >= 0]] = True
    repeated[-1] = False  # of nobody
    number, lists = Counter[tuple[int, int]](), []
    first: dict[tuple[int, int], int] = {}
    for storage, one in enumerate(zip(storages.category.tolist(), owner.tolist(), strict=True)):
        own = one[0], number[one] if one[1] >= 0 else 0
        number[one] += 1
        if repeated[one[1]]:
            first.setdefault(own, storage)
        lists.append(own)
    return [
        (*own, 0 if repeated[value] else -1 if storage < first.get(own, -1) else 1)
        for storage, (own, value) in enumerate(zip(lists, owner.tolist(), strict=True))
    ]


def _rows(
    kind: Sequence[int] | NDArray[np.int64], label: Sequence[int] | NDArray[np.int64], size: NDArray[np.int64],
    run: NDArray[np.int64] | None = None, named: NDArray[np.int64] | None = None,
) -> BlockRows:  # fmt: skip
    """Rows of a kind and a size, which name one each of a run, if there is one."""
    if run is None or named is None:
        return BlockRows.of(kind, 0, label, size, 1.0, 0)
    return BlockRows.of(kind, 0, label, size, 1.0, 0, 1, run, named)
