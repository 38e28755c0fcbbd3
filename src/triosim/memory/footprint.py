"""From lifetimes to the peak: what tensors hold, and what PyTorch's caching allocator reserves for them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.memory.lifetimes import Lifetimes

# PyTorch c10/cuda/CUDACachingAllocator (and "CUDA semantics: memory management" in its documentation)
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
SMALL_SEGMENT = 2 << 20
MEDIUM_BYTES = 10 << 20
MEDIUM_SEGMENT = 20 << 20
LARGE_ROUND = 2 << 20


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
        held: bytes by category from then on, shape ``(len(rows), categories)``.
    """

    peak_bytes: int
    peak_row: int
    reserved_bytes: int
    at_peak: NDArray[np.int64]
    rows: NDArray[np.int32]
    ended: NDArray[np.bool_]
    held: NDArray[np.int64]


def footprint(lifetimes: Lifetimes, categories: int) -> Footprint:
    """Follow allocations and frees through a program.

    Args:
        lifetimes: what lives from which program row to which; it is allocated when ``start`` begins and freed when
            ``end`` has ended.
        categories: number of category codes.
    """
    size = -(-lifetimes.bytes // ROUND_BYTES) * ROUND_BYTES
    start, end = lifetimes.start.astype(np.int64), lifetimes.end.astype(np.int64)
    # at one row allocations come before frees: time 2 row for those, 2 row + 1 for these
    times = np.concatenate([2 * start, 2 * end + 1])
    change = np.concatenate([size, -size])
    what = np.concatenate([lifetimes.category, lifetimes.category])
    order = np.argsort(times, kind="stable")
    times, change, what = times[order], change[order], what[order]
    total = np.cumsum(change)
    at = int(np.argmax(total)) if len(total) else 0
    by_category = np.zeros((len(times), categories), np.int64)
    by_category[np.arange(len(times)), what] = change
    by_category = np.cumsum(by_category, axis=0)
    last = np.flatnonzero(np.append(np.diff(times) != 0, True)) if len(times) else np.zeros(0, np.int64)
    stays = end.max(initial=-1)
    keep = last[times[last] <= 2 * stays] if len(last) else last
    return Footprint(
        peak_bytes=int(total[at]) if len(total) else 0,
        peak_row=int(times[at] // 2) if len(total) else -1,
        reserved_bytes=_reserved(size, order),
        at_peak=by_category[at] if len(total) else np.zeros(categories, np.int64),
        rows=(times[keep] // 2).astype(np.int32),
        ended=(times[keep] % 2).astype(bool),
        held=by_category[keep],
    )


def _reserved(size: NDArray[np.int64], events: NDArray[np.int64]) -> int:
    """Play the allocations through a best-fit caching allocator with split and merged blocks.

    Event ``i`` allocates block ``i``; event ``len(size) + i`` frees it.
    """
    allocator = _CachingAllocator()
    sizes = size.tolist()
    where: dict[int, tuple[int, int]] = {}
    for event in events.tolist():
        if event < len(sizes):
            where[event] = allocator.allocate(sizes[event])
        else:
            allocator.free(where.pop(event - len(sizes)))
    return allocator.reserved


class _CachingAllocator:
    """Best fit over free blocks of small and large pools; segments are never returned."""

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address), sorted
        self._by_address: dict[int, tuple[int, bool]] = {}  # free block -> size, pool
        self._by_end: dict[int, int] = {}  # end of a free block -> its address
        self._used: dict[int, int] = {}
        self._next = 0

    def allocate(self, size: int) -> tuple[int, int]:
        """Address and size of a block of at least ``size`` bytes."""
        small = size <= SMALL_BYTES
        pool = self._free[small]
        at = bisect_left(pool, (size, -1))
        if at < len(pool):
            block, address = pool[at]
            self._remove(block, address, small)
        else:
            block = (
                SMALL_SEGMENT
                if small
                else MEDIUM_SEGMENT
                if size < MEDIUM_BYTES
                else -(-size // LARGE_ROUND) * LARGE_ROUND
            )
            address = self._next
            self._next += block + 1  # a gap, so that segments never merge
            self.reserved += block
        rest = block - size
        if rest >= ROUND_BYTES if small else rest > SMALL_BYTES:
            self._insert(rest, address + size, small)
            block = size
        self._used[address] = block
        return address, int(small)

    def free(self, where: tuple[int, int]) -> None:
        """Give a block back, merged with free neighbours."""
        address, small = where[0], bool(where[1])
        size = self._used.pop(address)
        right = self._by_address.get(address + size)
        if right is not None and right[1] == small:
            self._remove(right[0], address + size, small)
            size += right[0]
        left = self._by_end.get(address)
        if left is not None and self._by_address[left][1] == small:
            extent = self._by_address[left][0]
            self._remove(extent, left, small)
            address, size = left, size + extent
        self._insert(size, address, small)

    def _insert(self, size: int, address: int, small: bool) -> None:
        insort(self._free[small], (size, address))
        self._by_address[address] = (size, small)
        self._by_end[address + size] = address

    def _remove(self, size: int, address: int, small: bool) -> None:
        pool = self._free[small]
        del pool[bisect_left(pool, (size, address))]
        del self._by_address[address]
        del self._by_end[address + size]
