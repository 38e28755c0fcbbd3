"""What an allocator is asked for by the passes of a schedule, in order, without the lifetimes of blocks.

An allocator only asks in which order blocks come and go.  Passes that are alike do the same each time, so what a kind
of pass allocates and frees is put in order once, and the allocator goes through it as often as the schedule does, until
it is as it was some turns before.  What it reserves is what :func:`triosim.memory.liveness.liveness` and
:func:`triosim.memory.footprint.reserved_bytes` say, which work out when each block of each micro-batch comes and goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.memory.footprint import ROUND_BYTES, check_countable, played
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import NEVER, BlockLifetime, BlockUses, MemoryBlocks, turns

try:
    from triosim.memory._allocator import reserved_in_passes
except ImportError:  # there was no compiler when TrioSim was installed
    reserved_in_passes = None  # type: ignore[assignment]

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


class Undecided(Exception):
    """Which of two blocks is allocated first depends on when they are freed: lifetimes have to say it."""


class AllocationEvent(IntEnum):
    """What happens to a block; of the iteration a second one may be there before the first is freed."""

    ALLOCATE_OWN = 0
    """One of the micro-batch is allocated."""
    FREE_OWN = 1
    """It is freed."""
    ALLOCATE = 2
    """One of the iteration is allocated."""
    FREE_FIRST = 3
    """The first one that is there is freed."""
    ALLOCATE_IF_ABSENT = 4
    """Allocated unless it was there when the pass began."""
    FREE_IF_PRESENT = 5
    """Freed if it was there when the pass began."""


_Event = AllocationEvent
_OWN = (_Event.ALLOCATE_OWN, _Event.FREE_OWN)
_FREES = (_Event.FREE_OWN, _Event.FREE_FIRST, _Event.FREE_IF_PRESENT)
_IS_OWN, _IS_FREE = (np.array([one in some for one in _Event]) for some in (_OWN, _FREES))


@dataclass(frozen=True)
class AllocationOrder:
    """The passes of an iteration, as an allocator sees them.

    Attributes:
        resident: bytes of what is there before, int64.
        ends: where the events of each kind of pass end, from 0, shape ``(kinds + 1,)``, int64.
        what: :class:`AllocationEvent` codes of all kinds, one after another, int8.
        which: block of the iteration, or row of the micro-batch, int32.
        size: bytes of it, int64.
        order: kind of each pass that is run, int32.
        micro_batch: which one it works on, int32.
    """

    resident: Int64
    ends: Int64
    what: NDArray[np.int8]
    which: Int32
    size: Int64
    order: Int32
    micro_batch: Int32

    def most_live_bytes(self) -> int:
        """Bytes that are allocated at once at most if each block of the iteration is there once, all the time."""
        once = ~_IS_OWN[self.what]
        single = np.zeros(int(self.which[once].max(initial=-1)) + 1, np.int64)
        single[self.which[once][::-1]] = self.size[once][::-1]  # the first of each
        always = int(self.resident.sum()) + int(single.sum())
        change = np.where(once, 0, np.where(self.what == _Event.FREE_OWN, -self.size, self.size))
        level = np.append(0, np.cumsum(change))
        begin, end = level[self.ends[:-1]], level[self.ends[1:]]
        # a pass without events has the level at its begin only
        peak = np.maximum(np.maximum.reduceat(level, self.ends[:-1]), end) - begin
        before = np.append(0, np.cumsum((end - begin)[self.order]))[:-1]
        return always + int((before + peak[self.order]).max(initial=0))

    def reserved_bytes(self, native: bool | None = None) -> int:
        """What the caching allocator reserves.

        Args:
            native: whether in C++; None where that is there.

        Raises:
            InputError: more memory than can be counted.
        """
        allocates = ~_IS_FREE[self.what]
        kind = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        often = np.bincount(self.order, minlength=len(self.ends) - 1)[kind[allocates]]
        check_countable(self.resident, np.ones(len(self.resident)))
        check_countable(self.size[allocates], often)
        if native if native is not None else reserved_in_passes is not None:
            columns = self.resident, self.ends, self.what, self.which, self.size, self.order, self.micro_batch
            return int(reserved_in_passes(*columns))
        return played(*self.events())

    def events(self) -> tuple[Int64, Int64]:
        """Sizes of all that is ever allocated, and what :func:`triosim.memory.footprint.played` goes through."""
        sizes: list[int] = self.resident.tolist()
        events: list[tuple[int, bool]] = [(number, False) for number in range(len(sizes))]
        held: dict[tuple[int, int], list[int]] = {}  # micro-batch, -1 for the iteration, and block
        rows = list(zip(self.what.tolist(), self.which.tolist(), self.size.tolist(), strict=True))
        kinds = [rows[first:last] for first, last in zip(self.ends[:-1], self.ends[1:], strict=True)]
        for kind, micro_batch in zip(self.order.tolist(), self.micro_batch.tolist(), strict=True):
            there = {which for what, which, _ in kinds[kind] if what not in _OWN and held.get((-1, which))}
            for what, which, size in kinds[kind]:
                own = held.setdefault((micro_batch if what in _OWN else -1, which), [])
                if what == (_Event.ALLOCATE_IF_ABSENT if which in there else _Event.FREE_IF_PRESENT):
                    continue
                if what in _FREES:
                    events.append((own.pop(0), True))
                else:
                    own.append(len(sizes))
                    events.append((len(sizes), False))
                    sizes.append(size)
        return np.array(sizes, np.int64), np.array([row + frees * len(sizes) for row, frees in events], np.int64)


def allocation_order(
    blocks: MemoryBlocks, fragments: Sequence[BlockUses], order: Int64, micro_batch: Int64
) -> AllocationOrder:
    """What an iteration allocates and frees on a device, but for what is freed at its end.

    Args:
        blocks: what can occupy memory.
        fragments: what the different fragments of programs use.
        order: row of ``fragments``, of all that are run, in order.
        micro_batch: which one each works on.

    Raises:
        Undecided: the order is to be found from lifetimes.
    """
    here = (blocks.size > 0) & (blocks.home == MemoryLocation.DEVICE)
    size = -(-blocks.size // ROUND_BYTES) * ROUND_BYTES
    of_pass, once = (here & (blocks.scope == scope) for scope in (BlockLifetime.MICRO_BATCH, BlockLifetime.ITERATION))
    within = [uses.of(of_pass[uses.block]) for uses in fragments]
    beside = _once([uses.of(once[uses.block]) for uses in fragments], size)
    kind, kinds = _kinds(within, beside, order, micro_batch, size)
    what, which, sizes = (np.concatenate(column) for column in zip(*(one.ordered() for one in kinds), strict=True))
    return AllocationOrder(
        size[here & (blocks.scope == BlockLifetime.RESIDENT)], np.cumsum([0, *(len(one.time) for one in kinds)]),
        what.astype(np.int8), which.astype(np.int32), sizes, kind.astype(np.int32), micro_batch.astype(np.int32),
    )  # fmt: skip


@dataclass(frozen=True)
class _PassEvents:
    """Events of a pass: twice the instruction, one more after it; after which others at that time; the rest as of
    :class:`AllocationOrder`, and the block, by which they are told apart last."""

    time: Int64
    entry: Int64
    block: Int64
    what: Int64
    which: Int64
    size: Int64

    @staticmethod
    def joined(some: Sequence[_PassEvents]) -> _PassEvents:
        """All of them."""
        names = ("time", "entry", "block", "what", "which", "size")
        return _PassEvents(*(np.concatenate([getattr(one, name) for one in some]) for name in names))

    def ordered(self) -> tuple[Int64, Int64, Int64]:
        """What happens, to which, of how many bytes."""
        at = np.lexsort((self.block, self.entry, self.time))
        return self.what[at], self.which[at], self.size[at]


_LATE = 1 << 40
"""Entry of what is told after all of a micro-batch: blocks of the iteration."""
_STAYS = 1 << 41
"""Entry of what stays, or is freed by another fragment."""


def _once(within: Sequence[BlockUses], size: Int64) -> list[_PassEvents]:
    """Events of blocks of which there is one in an iteration.

    Raises:
        Undecided: at one time several are allocated of which one is freed by another fragment.
    """
    freed, used = np.zeros(len(size), bool), np.zeros(len(size), bool)
    for uses in within:
        freed[uses.block[uses.frees]] = used[uses.block] = True
    number, found = np.cumsum(used) - 1, []
    for uses in within:
        block, turn = uses.block, _numbers(uses.block)
        begins, ends = uses.first != NEVER, uses.frees & ((uses.first != NEVER) | (turn == 0))
        if undecided(uses, freed):
            raise Undecided
        entry = np.where(uses.frees, _LATE + turn, _STAYS)
        allocates = np.where(turn == 0, _Event.ALLOCATE_IF_ABSENT, _Event.ALLOCATE)
        frees = np.where(begins, _Event.FREE_FIRST, _Event.FREE_IF_PRESENT)
        found.append(
            _PassEvents(
                np.append(2 * uses.first[begins], 2 * uses.last[ends] + 1), np.append(entry[begins], entry[ends]),
                np.append(block[begins], block[ends]), np.append(allocates[begins], frees[ends]),
                number[np.append(block[begins], block[ends])], size[np.append(block[begins], block[ends])],
            )
        )  # fmt: skip
    return found


def undecided(uses: BlockUses, freed: NDArray[np.bool_]) -> bool:
    """Whether a fragment allocates several blocks of the iteration at one time of which another one frees some.

    Args:
        uses: of blocks of which there is one in an iteration.
        freed: of each block whether any fragment frees it.
    """
    stays = (uses.first != NEVER) & ~uses.frees
    late, often = np.sort(uses.first[stays]), uses.first[stays & freed[uses.block]]
    return bool((np.searchsorted(late, often, "right") - np.searchsorted(late, often) > 1).any())


def _numbers(block: Int64) -> Int64:
    """Of stretches by block: the how many of its block each is, from 0."""
    count = np.arange(len(block))
    begins = np.append(True, block[1:] != block[:-1])[: len(block)]
    return count - np.maximum.accumulate(np.where(begins, count, 0)) if len(block) else count


def _kinds(
    within: Sequence[BlockUses], beside: Sequence[_PassEvents], order: Int64, micro_batch: Int64, size: Int64
) -> tuple[Int64, list[_PassEvents]]:
    """The kind of each pass that is run, and what happens in each kind.

    Fragments in which nothing of a micro-batch is come first; the others are of one kind for each way that
    micro-batches take through them.

    Raises:
        Undecided: micro-batches run fragments in different orders.
    """
    kind, kinds = order.copy(), list(beside)
    at = np.flatnonzero(np.array([len(one.block) > 0 for one in within], bool)[order])
    at = at[np.argsort(micro_batch[at], kind="stable")]
    begins = np.flatnonzero(np.diff(micro_batch[at], prepend=-1))
    paths: dict[tuple[int, ...], list[Int64]] = {}
    for rows in np.split(at, begins[1:]) if len(at) else []:
        paths.setdefault(tuple(order[rows].tolist()), []).append(rows)
    place: dict[int, int] = {}  # of each fragment: after how many others
    for path in paths:
        for number, fragment in enumerate(path):
            if place.setdefault(fragment, number) != number:
                raise Undecided
    of = _LastUses.of(within, place, len(size))
    for path, members in paths.items():
        made = _passes([within[fragment] for fragment in path], [place[fragment] for fragment in path], of, size)
        rows = np.array(members)
        for number, (fragment, own) in enumerate(zip(path, made, strict=True)):
            kind[rows[:, number]] = len(kinds)
            kinds.append(_PassEvents.joined([own, beside[fragment]]))
    return kind, kinds


@dataclass(frozen=True)
class _LastUses:
    """What is known of the blocks of micro-batches.

    Attributes:
        latest: place of the last pass of a micro-batch that uses each.
        several: whether others do.
        freed: whether a pass frees it itself.
    """

    latest: Int64
    several: NDArray[np.bool_]
    freed: NDArray[np.bool_]

    @staticmethod
    def of(within: Sequence[BlockUses], place: dict[int, int], count: int) -> _LastUses:
        """Of all fragments that are run."""
        latest, passes, freed = np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, bool)
        for fragment, number in sorted(place.items(), key=lambda item: item[1]):
            uses = within[fragment]
            used = distinct(uses.block)
            passes[used] += latest[used] != number
            latest[used] = number
            freed[uses.block[uses.frees]] = True
        return _LastUses(latest, passes > 1, freed)


def _passes(path: Sequence[BlockUses], places: Sequence[int], of: _LastUses, size: Int64) -> list[_PassEvents]:
    """Events of the passes of a micro-batch, of the blocks that it has for itself.

    Args:
        path: what its passes use, in order.
        places: of each of them.
        of: what is known of all blocks.
        size: of all blocks.
    """
    count = len(size)
    begun, ended, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    first = np.full(count, NEVER, np.int64)
    rows: list[tuple[Int64, ...]] = []  # block, pass and time of its allocation, pass and time of its free

    def ends(block: Int64) -> None:
        block = block[first[block] != NEVER]
        rows.append((block, begun[block], 2 * first[block], ended[block], 2 * last[block] + 1))
        first[block] = NEVER

    for number, uses in enumerate(path):
        for own in turns(uses):
            new = (first[own.block] == NEVER) & (own.first != NEVER)
            first[own.block[new]], begun[own.block[new]] = own.first[new], number
            ended[own.block], last[own.block] = number, own.last
            if own.frees.any():
                ends(own.block[own.frees])
    for uses, place in zip(path, places, strict=True):
        block = distinct(uses.block)
        block = block[of.latest[block] == place]
        again, several = of.freed[block], of.several[block]
        for chosen in (again, several & ~again, ~several & ~again):
            ends(block[chosen])
    entry = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    block, begins_in, begin, ends_in, end = (np.concatenate(column) for column in zip(*rows, strict=True))
    row = np.arange(len(block))
    found = []
    for number in range(len(path)):
        at = np.append(np.flatnonzero(begins_in == number), np.flatnonzero(ends_in == number))
        frees = np.arange(len(at)) >= np.count_nonzero(begins_in == number)
        what = np.where(frees, _Event.FREE_OWN, _Event.ALLOCATE_OWN)
        time = np.where(frees, end[at], begin[at])
        found.append(_PassEvents(time, entry[at], block[at], what, row[at], size[block[at]]))
    return found
