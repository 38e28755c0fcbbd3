"""From lifetimes to the peak: what tensors hold, and what PyTorch's caching allocator reserves for them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.memory.lifetimes import Lifetimes

try:
    from triosim.memory._allocator import reserved
except ImportError:  # there was no compiler when TrioSim was installed

    def reserved(sizes: NDArray[np.int64], events: NDArray[np.int64]) -> int:
        """The same, without a compiler."""
        return played(sizes, events)


# PyTorch c10/cuda/CUDACachingAllocator (and "CUDA semantics: memory management" in its documentation)
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
SMALL_SEGMENT = 2 << 20
MEDIUM_BYTES = 10 << 20
MEDIUM_SEGMENT = 20 << 20
LARGE_ROUND = 2 << 20

LARGEST_ROUND = 32 << 20
"""More than any segment is larger than what it is asked for."""
MOST_BYTES = 1 << 59
"""What can be counted, of all that is allocated one after another."""

ADDRESS_BITS = 60
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank over its program.

    Attributes:
        peak_bytes: most that tensors hold at one moment (sizes rounded to the allocator's 512 bytes).
        peak_row: program row during which that is, -1 before the first.
        reserved_bytes: what the caching allocator holds at the end, which is its peak.
        at_peak: bytes by category at the peak, indexed by category code.
        rows: program rows at which memory changes, ascending; -1 is before the first.
        ended: whether the change comes when the row has ended rather than when it begins.
        changes: what is allocated and freed.
    """

    peak_bytes: int
    peak_row: int
    reserved_bytes: int
    at_peak: NDArray[np.int64]
    rows: NDArray[np.int32]
    ended: NDArray[np.bool_]
    changes: AllocationEvents

    @property
    def held(self) -> NDArray[np.int64]:
        """Bytes by category from each of ``rows`` on, shape ``(len(rows), categories)``."""
        return self.changes.held()

    @property
    def total(self) -> NDArray[np.int64]:
        """Bytes from each of ``rows`` on, shape ``(len(rows),)``."""
        total: NDArray[np.int64] = np.cumsum(self.changes.bytes)[self.changes.keep]
        return total


@dataclass(frozen=True)
class AllocationEvents:
    """Allocations and frees in the order in which they happen.

    Attributes:
        bytes: allocated, below 0 where they are freed.
        category: of each.
        keep: the last change of each of a footprint's rows.
        categories: number of category codes.
    """

    bytes: NDArray[np.int64]
    category: NDArray[np.int8]
    keep: NDArray[np.int64]
    categories: int

    def held(self) -> NDArray[np.int64]:
        """Bytes by category after each of ``keep``, shape ``(len(keep), categories)``."""
        held = np.zeros((len(self.keep), self.categories), np.int64)
        for category in range(self.categories):
            own = np.flatnonzero(self.category == category)
            total = np.concatenate([[0], np.cumsum(self.bytes[own])])
            held[:, category] = total[np.searchsorted(own, self.keep, side="right")]
        return held


def footprint(lifetimes: Lifetimes, categories: int) -> Footprint:
    """Follow allocations and frees through a program.

    Args:
        lifetimes: what lives from which program row to which; it is allocated when ``start`` begins and freed when
            ``end`` has ended.
        categories: number of category codes.

    Raises:
        InputError: more memory than can be counted.
    """
    size, times, order = _events(lifetimes)
    end = lifetimes.end.astype(np.int64)
    change = np.concatenate([size, -size])
    what = np.concatenate([lifetimes.category, lifetimes.category])
    times, change, what = times[order], change[order], what[order]
    total = np.cumsum(change)
    at = int(np.argmax(total)) if len(total) else 0
    last = np.flatnonzero(np.append(np.diff(times) != 0, True)) if len(times) else np.zeros(0, np.int64)
    stays = end.max(initial=-1)
    keep = last[times[last] <= 2 * stays] if len(last) else last
    return Footprint(
        peak_bytes=int(total[at]) if len(total) else 0,
        peak_row=int(times[at] // 2) if len(total) else -1,
        reserved_bytes=int(reserved(size, order)),
        at_peak=_by_category(change[: at + 1], what[: at + 1], categories),
        rows=(times[keep] // 2).astype(np.int32),
        ended=(times[keep] % 2).astype(bool),
        changes=AllocationEvents(change, what, keep, categories),
    )


def reserved_bytes(lifetimes: Lifetimes) -> int:
    """What the caching allocator reserves, as :func:`footprint` says it.

    Raises:
        InputError: more memory than can be counted.
    """
    size, _, order = _events(lifetimes)
    return int(reserved(size, order))


def check_countable(size: NDArray[np.int64], often: NDArray[Any]) -> None:
    """Check that what is allocated can be counted.

    Args:
        size: bytes of allocations.
        often: how often each is made.

    Raises:
        InputError: it cannot.
    """
    if ((size.astype(np.float64) + LARGEST_ROUND) * often).sum() >= MOST_BYTES:
        raise InputError("the tensors of one rank add up to more than 5.7e17 bytes: look for a batch that is too large")


def _events(lifetimes: Lifetimes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sizes as the allocator rounds them; when each is allocated, then when each is freed; the order of these events.

    At one row allocations come before frees: time 2 row for those, 2 row + 1 for these.

    Raises:
        InputError: more memory than can be counted.
    """
    check_countable(lifetimes.bytes, np.ones(len(lifetimes)))
    size = -(-lifetimes.bytes // ROUND_BYTES) * ROUND_BYTES
    times = np.concatenate([2 * lifetimes.start.astype(np.int64), 2 * lifetimes.end.astype(np.int64) + 1])
    return size, times, np.argsort(times, kind="stable")


def _by_category(change: NDArray[np.int64], category: NDArray[np.int8], categories: int) -> NDArray[np.int64]:
    held = np.zeros(categories, np.int64)
    np.add.at(held, category, change)
    return held


def played(size: NDArray[np.int64], events: NDArray[np.int64]) -> int:
    """Play allocations through a best-fit caching allocator with split and merged blocks; returns what it reserves.

    Event ``i`` allocates block ``i``; event ``len(size) + i`` frees it.  Free blocks are kept apart by pool, small and
    large, and segments are never returned.  Hundreds of thousands of events are common, so all is in one loop.

    Raises:
        ValueError: an event allocates a block that is held or frees one that is not, a size is negative, or it is more
            than can be counted.
    """
    _check(size, events)
    sizes, count = size.tolist(), len(size)
    pools: tuple[list[int], list[int]] = ([], [])  # free blocks, large and small: size << ADDRESS_BITS | address
    starts: tuple[dict[int, int], dict[int, int]] = ({}, {})  # address of a free block -> its size
    ends: tuple[dict[int, int], dict[int, int]] = ({}, {})  # end of a free block -> its address
    address, length = [0] * count, [0] * count
    reserved = top = 0
    for event in events.tolist():
        if not sizes[event % count]:
            continue  # an empty tensor takes no block
        if event < count:
            wanted = sizes[event]
            small = wanted <= SMALL_BYTES
            pool = pools[small]
            at = bisect_left(pool, wanted << ADDRESS_BITS)
            if at < len(pool):
                key = pool.pop(at)
                block, where = key >> ADDRESS_BITS, key & ADDRESS_MASK
                del starts[small][where], ends[small][where + block]
            else:
                block = segment(wanted)
                where = top
                top += block + ROUND_BYTES  # a gap, so that segments never merge
                reserved += block
            rest = block - wanted
            if rest >= ROUND_BYTES if small else rest > SMALL_BYTES:
                insort(pool, rest << ADDRESS_BITS | where + wanted)
                starts[small][where + wanted] = rest
                ends[small][where + block] = where + wanted
                block = wanted
            address[event], length[event] = where, block
        else:
            block, where = length[event - count], address[event - count]
            small = sizes[event - count] <= SMALL_BYTES
            pool, start, end = pools[small], starts[small], ends[small]
            right = start.pop(where + block, 0)
            if right:
                del pool[bisect_left(pool, right << ADDRESS_BITS | where + block)], end[where + block + right]
                block += right
            left = end.pop(where, -1)
            if left >= 0:
                extent = start.pop(left)
                del pool[bisect_left(pool, extent << ADDRESS_BITS | left)]
                where, block = left, block + extent
            insort(pool, block << ADDRESS_BITS | where)
            start[where], end[where + block] = block, where
    return reserved


def _check(size: NDArray[np.int64], events: NDArray[np.int64]) -> None:
    """As the allocator in C++ checks it."""
    count = len(size)
    possible = (size >= 0).all() and ((events >= 0) & (events < 2 * count)).all()
    if possible and len(events):
        # The events of a block are an allocation and a free in turn.
        order = np.argsort(events % count, kind="stable")
        block, frees = events[order] % count, events[order] >= count
        first = np.diff(block, prepend=-1) != 0
        possible = np.where(first, ~frees, frees != np.roll(frees, 1)).all()
        room = size[events[events < count]].astype(np.float64) + LARGEST_ROUND
        possible = possible and room.sum() < MOST_BYTES
    if not possible:
        raise ValueError(
            "events must allocate blocks that are not held and free blocks that are; sizes must be 0 or more, and fewer"
            " than 2**59 bytes in all"
        )


def segment(size: int) -> int:
    """Bytes of the segment that is asked of the device for a block of ``size``."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT
    return MEDIUM_SEGMENT if size < MEDIUM_BYTES else -(-size // LARGE_ROUND) * LARGE_ROUND
