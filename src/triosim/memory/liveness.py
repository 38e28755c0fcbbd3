"""Liveness: from what the instructions of a schedule hold and free to what occupies memory from when to when.

What can occupy memory is a *block*: a storage of the step, a buffer, a copy.  A fragment of a program says which
blocks its instructions use and after which of them it frees some (:class:`BlockUses`); a program is fragments in order,
each for one micro-batch.  :func:`liveness` folds the one over the other, and is all there is to it: a schedule that
keeps more micro-batches in flight, a weight gradient that waits, a transfer that is launched earlier only put uses
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.memory.lifetimes import Lifetimes

BEFORE = -1
"""Start of what is there before the first instruction."""
NEVER = np.iinfo(np.int64).max
"""First use of what is only freed."""


class BlockLifetime(IntEnum):
    """How long a block is held."""

    NOWHERE = 0
    """It takes no memory here: it is of another stage, or a part of something else."""
    RESIDENT = 1
    """From before the first instruction to after the last."""
    ITERATION = 2
    """There is one, from its first use until it is freed or the iteration ends."""
    MICRO_BATCH = 3
    """There is one for each micro-batch, from its first use to its last."""


@dataclass(frozen=True)
class MemoryBlocks:
    """What can occupy memory, one row each.

    Attributes:
        size: bytes, int64.
        category: :class:`triosim.trace.tables.Category` codes, int8.
        storage: storage of the step that it is or is made of, -1 for none, int32.
        scope: :class:`BlockLifetime` codes, int8.
        home: :class:`Home` codes, int8.
    """

    size: NDArray[np.int64]
    category: NDArray[np.int8]
    storage: NDArray[np.int32]
    scope: NDArray[np.int8]
    home: NDArray[np.int8]


@dataclass(frozen=True)
class BlockUses:
    """When a fragment uses blocks; instructions count from its first.  By block, and for each block in order.

    Attributes:
        block: row of :class:`MemoryBlocks`.
        first, last: first and last instruction of a stretch of uses; ``first`` is :data:`NEVER` where the block is only
            freed.
        frees: whether it is freed after ``last``; only the last stretch of a block can go on in another fragment.
    """

    block: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    frees: NDArray[np.bool_]

    def of(self, rows: NDArray[np.bool_]) -> BlockUses:
        """Some of them."""
        return BlockUses(self.block[rows], self.first[rows], self.last[rows], self.frees[rows])


NONE_USED = BlockUses(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))


class BlockUseRecorder:
    """Collects the uses of a fragment while it is written."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, bool]] = []

    def use(self, block: int, row: int) -> None:
        """Instruction ``row`` uses a block, which is allocated for it if it is not there."""
        self._events.append((block, row, False))

    def free(self, block: int, row: int) -> None:
        """A block is freed after instruction ``row``, if it is there."""
        self._events.append((block, row, True))

    def build(self, stretches: BlockUses = NONE_USED) -> BlockUses:
        """All uses.

        Args:
            stretches: one stretch for each of some blocks that is not freed, as operators make it; what was recorded
                besides comes after it where the instruction is the same.
        """
        if not self._events:
            return stretches
        block, row, frees = (np.array(column, np.int64) for column in zip(*self._events, strict=True))
        touched = np.isin(stretches.block, block)
        both = stretches.of(touched)
        block = np.concatenate([both.block, both.block, block])
        row = np.concatenate([both.first, both.last, row])
        frees = np.concatenate([np.zeros(2 * len(both.block), bool), frees.astype(bool)])
        order = np.lexsort((row, block))  # stable: what is recorded at one instruction stays in order
        block, row, frees = block[order], row[order], frees[order]
        begins = np.append(True, (block[1:] != block[:-1]) | frees[:-1])
        ends = np.append(begins[1:], True)
        only_freed = begins & frees
        made = BlockUses(block[ends], np.where(only_freed, NEVER, row)[begins], row[ends], frees[ends])
        rest = stretches.of(~touched)
        order = np.argsort(np.append(rest.block, made.block), kind="stable")
        return BlockUses(
            np.append(rest.block, made.block)[order], np.append(rest.first, made.first)[order],
            np.append(rest.last, made.last)[order], np.append(rest.frees, made.frees)[order],
        )  # fmt: skip


class ScheduledFragment(NamedTuple):
    """A fragment in its place.

    Attributes:
        uses: of its instructions.
        start: its first instruction.
        micro_batch: which one it works on.
    """

    uses: BlockUses
    start: int
    micro_batch: int


def liveness(blocks: MemoryBlocks, fragments: Sequence[ScheduledFragment], micro_batches: int, end: int) -> Lifetimes:
    """What occupies memory from which instruction to which.

    What several passes of a micro-batch use is allocated before what only one does, and what stays for the iteration
    after both, where one instruction allocates several: it decides between equal blocks of the allocator only.

    Args:
        blocks: what can.
        fragments: those of the first iteration, in order.
        micro_batches: how many there are.
        end: length of the program; what stays ends after its last instruction.
    """
    resident = np.flatnonzero(blocks.scope == BlockLifetime.RESIDENT)
    rows = [(resident, np.full(len(resident), BEFORE), np.full(len(resident), end))]
    rows += _each(blocks, fragments, micro_batches)
    rows += _once(blocks, fragments, end)
    block, first, last = (np.concatenate(column) for column in zip(*rows, strict=True))
    size = blocks.size[block]
    taken = size > 0
    block = block[taken]
    return Lifetimes(
        size[taken], blocks.category[block], first[taken].astype(np.int32), last[taken].astype(np.int32),
        blocks.storage[block], blocks.home[block],
    )  # fmt: skip


_Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Block, first and last instruction."""


def _of_scope(
    blocks: MemoryBlocks, fragments: Sequence[ScheduledFragment], scope: BlockLifetime
) -> dict[int, BlockUses]:
    """Uses of the blocks of one scope, for each of the different fragments that has any, by its identity."""
    different = {id(fragment.uses): fragment.uses for fragment in fragments}
    within = {key: uses.of(blocks.scope[uses.block] == scope) for key, uses in different.items()}
    return {key: uses for key, uses in within.items() if len(uses.block)}


def turns(uses: BlockUses) -> list[BlockUses]:
    """The first stretch of every block, the second, and so on."""
    if not len(uses.block):
        return []
    begins = np.append(True, uses.block[1:] != uses.block[:-1])
    if begins.all():
        return [uses]
    count = np.arange(len(begins))
    number = count - np.maximum.accumulate(np.where(begins, count, 0))
    return [uses.of(number == turn) for turn in range(int(number.max()) + 1)]


class _Group(NamedTuple):
    """Micro-batches that run one fragment: its place among the passes of a micro-batch, uses, who, from where."""

    place: int
    uses: BlockUses
    which: NDArray[np.int64]
    start: NDArray[np.int64]


def _groups(blocks: MemoryBlocks, fragments: Sequence[ScheduledFragment]) -> list[_Group]:
    """All of them, in the order in which a micro-batch goes through them."""
    within = _of_scope(blocks, fragments, BlockLifetime.MICRO_BATCH)
    passed: dict[int, int] = {}
    members: dict[int, tuple[int, list[int], list[int]]] = {}
    for uses, start, micro_batch in fragments:
        if id(uses) in within:
            place = passed[micro_batch] = passed.get(micro_batch, -1) + 1
            group = members.setdefault(id(uses), (place, [], []))
            group[1].append(micro_batch)
            group[2].append(start)
    made = [
        _Group(place, within[key], np.array(which, np.int64), np.array(starts, np.int64)[:, None])
        for key, (place, which, starts) in members.items()
    ]
    return sorted(made, key=lambda group: group.place)


def _each(blocks: MemoryBlocks, fragments: Sequence[ScheduledFragment], micro_batches: int) -> list[_Rows]:
    """What there is of each micro-batch."""
    groups = _groups(blocks, fragments)
    used = distinct(np.concatenate([np.zeros(0, np.int64), *(group.uses.block for group in groups)]))
    column = np.full(len(blocks.size), -1, np.int64)
    column[used] = np.arange(len(used))
    first = np.full((micro_batches, len(used)), NEVER, np.int64)  # of what is held now
    last = np.full((micro_batches, len(used)), -1, np.int64)
    latest, passes, freed = np.full(len(used), -1, np.int64), np.zeros(len(used), np.int64), np.zeros(len(used), bool)
    made: list[_Rows] = []

    def ends(group: _Group, block: NDArray[np.int64]) -> None:
        cells = np.ix_(group.which, column[block])
        begun, ended = first[cells], last[cells]
        held = begun != NEVER
        if held.all():
            made.append((np.tile(block, len(group.which)), begun.ravel(), ended.ravel()))
        else:
            made.append((np.broadcast_to(block, held.shape)[held], begun[held], ended[held]))
        first[cells], last[cells] = NEVER, -1

    for group in groups:
        for uses in turns(group.uses):
            cells = np.ix_(group.which, column[uses.block])
            begins = np.where(uses.first == NEVER, NEVER, uses.first + group.start)
            first[cells] = np.minimum(first[cells], begins)
            last[cells] = np.maximum(last[cells], uses.last + group.start)
            if uses.frees.any():
                freed[column[uses.block[uses.frees]]] = True
                ends(group, uses.block[uses.frees])
        of = column[group.uses.block]
        passes[of] += latest[of] != group.place
        latest[of] = group.place
    for group in groups:
        block = distinct(group.uses.block)
        block = block[latest[column[block]] == group.place]
        several, again = passes[column[block]] > 1, freed[column[block]]
        for chosen in (again, several & ~again, ~several & ~again):
            ends(group, block[chosen])
    return made


def _once(blocks: MemoryBlocks, fragments: Sequence[ScheduledFragment], end: int) -> list[_Rows]:
    """What there is one of in the iteration."""
    within = _of_scope(blocks, fragments, BlockLifetime.ITERATION)
    freed = np.zeros(len(blocks.size), bool)
    for uses in within.values():
        freed[uses.block[uses.frees]] = True
    in_turn = {key: turns(uses) for key, uses in within.items()}
    again = {key: bool(freed[uses.block].any()) for key, uses in within.items()}
    first = np.full(len(blocks.size), NEVER, np.int64)
    last = np.full(len(blocks.size), -1, np.int64)
    made: list[_Rows] = []
    seen: set[int] = set()
    for fragment in fragments:
        key = id(fragment.uses)
        if key not in within or (key in seen and not again[key]):
            continue  # what is never freed stays from the first time on
        seen.add(key)
        for uses in in_turn[key]:
            begins = np.where(uses.first == NEVER, NEVER, uses.first + fragment.start)
            first[uses.block] = np.minimum(first[uses.block], begins)
            last[uses.block] = np.maximum(last[uses.block], uses.last + fragment.start)
            gone = uses.block[uses.frees & (first[uses.block] != NEVER)]
            made.append((gone, first[gone].copy(), last[gone].copy()))
            done = uses.block[uses.frees]
            first[done], last[done] = NEVER, -1
    stays = np.flatnonzero(first != NEVER)
    return [*made, (stays, first[stays], np.full(len(stays), end))]
