"""Memory of a stage from what its model chunks allocate, that of many blocks extrapolated from three, four and five.

What a pass of a chunk allocates and frees differs neither with the number of micro-batches nor with the replicas, and
each block more adds the same again.  So it is put in order once for all steps of a structure
(:mod:`triosim.search.allocation_pattern`), and so is what the chunks of a stage do together; in the sizes of a step the
allocator goes through it in the order of a stage's actions (:mod:`triosim.memory.allocation_order`).  What is there
before, parameters, gradients and optimizer states, has in each plan the sizes that its replicas leave of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.memory.allocation_order import AllocationOrder
from triosim.memory.footprint import ROUND_BYTES
from triosim.schedule._stage import ReplicaFacts
from triosim.schedule.actions import Pass
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.uncut_step import uncut_step
from triosim.search.allocation_pattern import (
    BACKWARD,
    ITERATION,
    AllocationPattern,
    List,
    MicroBatchPath,
    PatternOfBlocks,
    PatternRows,
    coded_bytes,
    in_order,
)
from triosim.search.block_passes import ChunkStages
from triosim.search.block_rows import extrapolate
from triosim.search.block_step import LONGEST, ModelChunk, NoBlocks, shorter
from triosim.search.peak_memory import ungathered
from triosim.search.stage_order import StageOrder

Paths = tuple[MicroBatchPath, ...]
Kind = tuple[ModelChunk, ...]
"""The chunks of a stage."""


@dataclass(frozen=True, eq=False)
class SizedRows:
    """Rows, and which storages have to be equally large.

    Attributes:
        rows: of a chunk.
        alike: such storages, shape ``(2, pairs)``.
    """

    rows: PatternRows
    alike: NDArray[np.int64]


_NOT_SIZED = np.zeros((2, 0), np.int64)


@dataclass(frozen=True, eq=False)
class StagePattern:
    """What the chunks of a stage allocate on a rank, in whatever order they run.

    Attributes:
        ends, what, which: as of :class:`triosim.memory.allocation_order.AllocationOrder`, of the passes of each chunk:
            both of each way that a micro-batch takes, and what reduces after them.
        code, part: of each block its :attr:`PatternRows.code`, and who has a part of it (0 for nobody).
        alike: storages that have to be equally large, shape ``(2, pairs)``.
        reduced: as of :class:`AllocationPattern`, of all chunks.
    """

    ends: NDArray[np.int64]
    what: NDArray[np.int8]
    which: NDArray[np.int32]
    code: NDArray[np.int64]
    part: NDArray[np.int8]
    alike: NDArray[np.int64]
    reduced: tuple[int, int]

    @staticmethod
    def of(chunks: Sequence[Sequence[SizedRows]], reduced: Sequence[tuple[int, int]]) -> StagePattern:
        """That of some chunks, one after another, each of which has the passes of its paths and what reduces after."""
        which, ends = [], [0]
        own = once = 0
        for passes in chunks:
            for at, one in enumerate(passes):
                rows, forward = one.rows, len(passes[at - at % 2].rows)
                place = np.where(rows.run == BACKWARD, rows.named + forward, rows.named)
                which.append(place + np.where(rows.run == ITERATION, once, own))
                ends.append(ends[-1] + len(rows))
            own += max(len(one.rows) for one in passes[::2]) + max(len(one.rows) for one in passes[1::2])
            once += max(int(one.rows.named[one.rows.run == ITERATION].max(initial=-1)) + 1 for one in passes)
        every = [one for passes in chunks for one in passes]
        what, label, code = (
            np.concatenate([getattr(one.rows, name) for one in every]) for name in ("what", "label", "code")
        )
        return StagePattern(
            np.array(ends, np.int64), what.astype(np.int8), np.concatenate(which).astype(np.int32), code, label,
            _joined([one.alike for one in every]),
            (sum(own for own, _ in reduced), sum(other for _, other in reduced)),
        )  # fmt: skip

    def bytes_of(self, storages: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each block on a rank, from those of the storages of the step and how many have a part of it."""
        return _rounded(coded_bytes(self.code, storages) // whole[self.part])


@dataclass(frozen=True, eq=False)
class ResidentPattern:
    """What a stage has before the first pass.

    Attributes:
        storage: of each of the blocks, in order.
        given: whether each micro-batch has one.
        alike: storages that have to be equally large, shape ``(2, pairs)``.
    """

    storage: NDArray[np.int64]
    given: NDArray[np.bool_]
    alike: NDArray[np.int64]


class HasAlike(Protocol):
    """What holds where some storages are equally large."""

    @property
    def alike(self) -> NDArray[np.int64]:
        """Such storages, shape ``(2, pairs)``."""
        ...


_Pattern = TypeVar("_Pattern", bound=HasAlike)


def _holding(known: list[_Pattern], sizes: NDArray[np.int64], make: Callable[[], _Pattern]) -> _Pattern:
    """The first of some patterns that holds in these sizes, made if there is none: where other sizes happen to be equal
    blocks seem to begin elsewhere."""
    for one in known:
        if np.array_equal(sizes[one.alike[0]], sizes[one.alike[1]]):
            return one
    known.append(make())
    return known[-1]


def _joined(alike: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    different = {id(one): one for one in alike if one.size}
    if len(different) < 2:
        return next(iter(different.values()), _NOT_SIZED)
    return np.unique(np.concatenate(list(different.values()), axis=1), axis=1)


@dataclass(frozen=True, eq=False)
class StructurePatterns:
    """What is known of the memory of all steps of a structure.

    Attributes:
        chunks: what chunks of few blocks allocate, by whether a backward gathers again what the forward has.
        blocks: rows of any number of blocks, by those of few.
        stages: what stages allocate, by their chunks and the paths through these.
        resident: what is there before, by chunks.

    Of each of the last three there may be several, which hold in other sizes.
    """

    chunks: dict[tuple[ModelChunk, bool], AllocationPattern] = field(default_factory=dict)
    blocks: dict[tuple[PatternRows, ...], list[PatternOfBlocks]] = field(default_factory=dict)
    stages: dict[tuple[Kind, tuple[Paths, ...], bool], list[StagePattern]] = field(default_factory=dict)
    resident: dict[tuple[Kind, bool], list[ResidentPattern]] = field(default_factory=dict)


class ChunkMemory:
    """Memory of the chunks of a step.

    Args:
        stages: the chunks.
        known: what the chunks of steps of its structure allocate, as far as it is known.
    """

    def __init__(self, stages: ChunkStages, known: StructurePatterns) -> None:
        self.stages, self.known = stages, known
        self._size: dict[Hashable, NDArray[np.int64]] = {}
        self._there: dict[Hashable, ResidentPattern] = {}

    def allocations(
        self, kind: Kind, order: StageOrder, job: ReplicaFacts, sizes: NDArray[np.int64], sized: Hashable
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
        paths, passes, micro_batch = _passes(order, len(kind), regathers, gathers)
        key = kind, paths, regathers
        pattern = _holding(self.known.stages.setdefault(key, []), self._storages, lambda: self._stage(*key))
        shards = tuple(shared.shards for shared in job.shared)
        if (key, shards) not in self._size:
            self._size[key, shards] = pattern.bytes_of(self._storages, np.array([1, *shards], np.int64))
        if (kind, sized) not in self._there:
            residents = self.known.resident.setdefault((kind, regathers), [])
            self._there[kind, sized] = _holding(residents, sizes, lambda: self._resident(kind, regathers, sizes))
        resident = self._there[kind, sized]
        there = sizes[resident.storage] * np.where(resident.given, job.mesh.micro_batches, 1)
        if job.copies_gradients:
            buckets = [size for size, own_way in zip(pattern.reduced, job.shared, strict=True) if own_way.reductions]
            there = np.append(there, sum(buckets))
        there = _rounded(there)
        return AllocationOrder(
            there[there > 0], pattern.ends, pattern.what, pattern.which, self._size[key, shards], passes, micro_batch
        )  # fmt: skip

    def _stage(self, kind: Kind, paths: tuple[Paths, ...], regathers: bool) -> StagePattern:
        """What the chunks of a stage allocate.

        Raises:
            NoBlocks: as of :meth:`allocations`.
        """
        chunks, reduced = [], []
        written: dict[tuple[int, tuple[PatternRows, ...]], SizedRows] = {}  # chunks and paths have many in common
        for chunk, own in zip(kind, paths, strict=True):
            few = self._few(chunk, regathers)
            for one in few:
                one.check(own)
            rows = [tuple(one.passes(path)[at] for one in few) for path in own for at in range(2)]
            keys = [(chunk.blocks, of_few) for of_few in (*rows, tuple(one.after for one in few))]
            for key in keys:
                if key not in written:
                    written[key] = self._rows(*key)
            chunks.append([written[key] for key in keys])
            reduced.append(self._reduced(chunk, few))
            if len(kind) > 1 and any(one.shares for one in few):
                raise NoBlocks("chunks that have the same in memory")
        return StagePattern.of(chunks, reduced)

    def _reduced(self, chunk: ModelChunk, few: Sequence[AllocationPattern]) -> tuple[int, int]:
        if len(few) == 1:
            return few[0].reduced
        one, other = (extrapolate(sizes, chunk.blocks) for sizes in zip(*(one.reduced for one in few), strict=True))
        return one, other

    def _resident(self, kind: Kind, regathers: bool, sizes: NDArray[np.int64]) -> ResidentPattern:
        """What a stage has before, in the order of the storages of the step."""
        few = [self._few(chunk, regathers) for chunk in kind]
        spans: dict[List, tuple[int, int]] = {}
        for name, own in (item for ones in few for one in ones for item in one.resident.items()):
            low, high = spans.get(name, (int(own.code[0]), int(own.code[-1])))
            spans[name] = min(low, int(own.code[0])), max(high, int(own.code[-1]))
        found = [
            self._rows(chunk.blocks, tuple(one.resident.get(name, _NOTHING) for one in ones), sizes)
            for name in in_order(spans) for chunk, ones in zip(kind, few, strict=True)
            if any(name in one.resident for one in ones)
        ]  # fmt: skip
        rows = [_NOTHING, *(one.rows for one in found)]
        return ResidentPattern(
            np.concatenate([one.code for one in rows]), np.concatenate([one.label for one in rows]) > 0,
            _joined([one.alike for one in found]),
        )  # fmt: skip

    def _rows(self, blocks: int, few: tuple[PatternRows, ...], sizes: NDArray[np.int64] | None = None) -> SizedRows:
        """Some rows of a chunk from those of few blocks; of many they are written anew, being long and seldom asked."""
        if len(few) == 1:
            return SizedRows(few[0], _NOT_SIZED)
        sizes = self._storages if sizes is None else sizes
        made = _holding(self.known.blocks.setdefault(few, []), sizes, lambda: PatternOfBlocks(few, sizes))
        return SizedRows(made.of(blocks), made.alike)

    def _few(self, chunk: ModelChunk, regathers: bool) -> list[AllocationPattern]:
        """A chunk of few blocks, or those from which it is told."""
        found = []
        for one in [chunk] if chunk.blocks <= LONGEST else shorter(chunk):
            if (one, regathers) not in self.known.chunks:
                self.known.chunks[one, regathers] = AllocationPattern(self.stages.first_of(one), regathers)
            found.append(self.known.chunks[one, regathers])
        return found

    @cached_property
    def _storages(self) -> NDArray[np.int64]:
        """Bytes of the storages of the step."""
        step = self.stages.step.step
        return uncut_step(step.trace, step.transfers, step.root_only).storages.size


_NOTHING = PatternRows.there(np.zeros(0, np.int64), np.zeros(0, bool))


@kept(1024)
def _passes(
    order: StageOrder, chunks: int, regathers: bool, gathers: bool
) -> tuple[tuple[Paths, ...], NDArray[np.int32], NDArray[np.int32]]:
    """The ways that micro-batches take through each chunk, which pass of a :class:`StagePattern` each action is,
    reductions among them, and on which micro-batch it works."""
    ways = [_ways(order, chunk, regathers, gathers) for chunk in range(chunks)]
    first = np.cumsum([0, *(2 * len(paths) + 1 for paths, _ in ways)])  # of the passes of each chunk
    kinds, row = order.action_kinds, order.kind_of_action
    chunk = np.array([kind.chunk for kind in kinds], np.int64)[row]
    backward = np.array([kind.what is not Pass.FORWARD for kind in kinds], np.int64)[row]
    path = np.stack([own for _, own in ways])[chunk, order.micro_batch]
    passes, ends = first[chunk] + 2 * path + backward, np.flatnonzero(order.last)
    passes = np.insert(passes, ends + 1, first[chunk[ends] + 1] - 1)
    micro_batch = np.insert(order.micro_batch, ends + 1, order.micro_batch.max(initial=0))
    return tuple(paths for paths, _ in ways), passes.astype(np.int32), micro_batch.astype(np.int32)


def _ways(order: StageOrder, chunk: int, regathers: bool, gathers: bool) -> tuple[Paths, NDArray[np.int64]]:
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
