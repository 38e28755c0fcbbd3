"""The rules of :mod:`triosim.accelerator.nest` where loops exceed their bounds and the last tile is cut off.

Only the last tile of a dimension is cut, at every level where it is the last one.  Along a dimension, tiles therefore
come as full ones and at most one remainder, and what they hold together is the bound, however it is cut.  Counts are
summed over all instances, which then differ, and divided by the instances in use.

Where every factor divides, these are the counts of the perfect rules.  A remainder is taken to be brought as often as a
full tile: where all loops that index a tensor shrink to one iteration at its edge, a machine might keep it for longer.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.nest import AccessCounts, Floats, LoopNest
from triosim.accelerator.problem import Operand

Mask = NDArray[np.bool_]


def count(nest: LoopNest, factors: NDArray[np.int64], orders: NDArray[np.int8]) -> AccessCounts:
    """What moves under each mapping; see :meth:`LoopNest.count`."""
    return _Count(nest, factors, orders).counts()


class _Count:
    """One batch: the arrays that all rules share."""

    def __init__(self, nest: LoopNest, factors: NDArray[np.int64], orders: NDArray[np.int8]) -> None:
        self.nest = nest
        self.orders = orders
        self.slots, self.dims, self.batch = factors.shape
        self.f = factors.astype(np.float64)
        self.bounds = np.array(nest.problem.bounds, np.float64)[:, None] * np.ones(self.batch)
        self.inner = np.ones((self.slots + 1, self.dims, self.batch))
        for s in reversed(range(self.slots)):
            self.inner[s] = self.inner[s + 1] * self.f[s]
        self.space = np.array([bool(slot.axis) for slot in nest.slots])
        self.innermost = self._innermost()

    def counts(self) -> AccessCounts:
        """All of them."""
        nest, problem = self.nest, self.nest.problem
        shape = (len(nest.store_slots), len(problem.tensors), self.batch)
        tile, reads, fills, updates = (np.zeros(shape) for _ in range(4))
        every = np.ones((self.slots, self.dims, self.batch), bool)
        in_time = every & ~self.space[:, None, None]
        steps = self._tuples(in_time).prod(axis=0)
        above = [self._tuples(every & self._space_above(at)).prod(axis=0) for at in range(self.slots + 1)]
        instances = np.stack([above[at] for at in nest.store_slots])
        for t, tensor in enumerate(problem.tensors):
            keepers = nest.keepers[t]
            for i, s in enumerate(keepers):
                at = nest.store_slots[s]
                full = np.minimum(self.inner[at], self.bounds)
                tile[s, t] = nest.words(tensor, full)
                here = every & self._space_above(at)
                if i + 1 < len(keepers):
                    child = keepers[i + 1]
                    below = nest.store_slots[child]
                    brings = self._brings(t, child)
                    slides = not tensor.output
                    if slides:
                        fills[child, t] = self._moved(t, tensor, below, brings, below, True) / instances[child]
                    moved = self._moved(t, tensor, below, brings, at, slides)
                else:
                    moved = self._moved(t, tensor, self.slots, in_time, at, False)
                if not tensor.output:
                    reads[s, t] = moved / instances[s]
                    continue
                seen = self._seen(t, tensor, at, here)
                updates[s, t] = moved / instances[s]
                reads[s, t] = (moved - seen) / instances[s]
                if i:
                    brought = self._moved(t, tensor, at, self._brings(t, s), at, False)
                    fills[s, t] = (brought - seen) / instances[s]
        return AccessCounts(tile, reads, fills, updates, instances, above[-1], steps)

    # --- along one dimension ------------------------------------------------------------------------------------------

    def _tuples(self, kept: Mask) -> Floats:
        """(dimensions, B) how many different iterations the kept loops run through, those of the others aside.

        Follows the remainder inwards: the full iterations of a kept loop run all that is inside it; the last one runs
        what the remainder runs.  A loop that is not kept adds nothing, and has a full iteration unless it has only one.

        Args:
            kept: (slots, dimensions, B).
        """
        whole = np.ones((self.slots + 1, self.dims, self.batch))  # tuples of a full tile, from a slot inwards
        for s in reversed(range(self.slots)):
            whole[s] = whole[s + 1] * np.where(kept[s], self.f[s], 1.0)
        total = np.zeros((self.dims, self.batch))
        extent = self.bounds.copy()
        open_ = np.ones((self.dims, self.batch), bool)
        for s in range(self.slots):
            runs = np.ceil(extent / self.inner[s + 1])
            counted = kept[s] & open_
            total += np.where(counted, (runs - 1.0) * whole[s + 1], 0.0)
            ends = ~kept[s] & open_ & (runs > 1)
            total += np.where(ends, whole[s + 1], 0.0)
            open_ &= ~ends
            extent = extent - (runs - 1.0) * self.inner[s + 1]
        return total + open_

    def _space_above(self, at: int) -> Mask:
        found: Mask = (self.space & (np.arange(self.slots) < at))[:, None, None]
        return found

    def _innermost(self) -> list[list[NDArray[np.int64]]]:
        """For each store and tensor (B) the rank of the innermost loop above that indexes it, and for the last entry of
        a store the rank of the innermost loop of any kind.  Ranks count loops in time from the outside, from 1; 0 is
        none."""
        nest = self.nest
        tensors = len(nest.problem.tensors)
        found = []
        state = [np.zeros(self.batch, np.int64) for _ in range(tensors + 1)]
        for s, at in enumerate(nest.store_slots):
            found.append([x.copy() for x in state])
            for position in range(self.dims):
                d = self.orders[s, position].astype(np.intp)
                runs = self.f[at, d, np.arange(self.batch)] > 1
                rank = s * self.dims + position + 1
                for t in range(tensors):
                    state[t] = np.where(runs & nest.relevant[t][d], rank, state[t])
                state[-1] = np.where(runs, rank, state[-1])
        return found

    def _ranks(self) -> NDArray[np.int64]:
        """(slots, dimensions, B) rank of each loop in time."""
        ranks = np.full((self.slots, self.dims, self.batch), 10**6)
        columns = np.arange(self.batch)
        for s, at in enumerate(self.nest.store_slots):
            for position in range(self.dims):
                ranks[at, self.orders[s, position].astype(np.intp), columns] = s * self.dims + position + 1
        return ranks

    def _brings(self, t: int, store: int) -> Mask:
        """(slots, dimensions, B) loops in time that bring a tile to a store."""
        above = (np.arange(self.slots) < self.nest.store_slots[store]) & ~self.space
        found: Mask = above[:, None, None] & (self._ranks() <= self.innermost[store][t])
        return found

    # --- over a tensor ------------------------------------------------------------------------------------------------

    def _moved(self, t: int, tensor: Operand, tile_at: int, brings: Mask, sent_from: int, slides: bool) -> Floats:
        """(B) words of all tiles at a slot that the loops bring, over all instances of ``sent_from``: a tile that
        several instances below it share is counted once."""
        nest = self.nest
        size = np.minimum(self.inner[tile_at], self.bounds)
        times = self._tuples(brings | self._space_above(sent_from))
        tiles = np.ceil(self.bounds / self.inner[tile_at])
        moved = np.ones(self.batch)
        for other in np.flatnonzero(~nest.relevant[t]):
            moved = moved * times[other]
        sums = [self._axis_sum(tensor, a, tiles) for a in range(len(tensor.axes))]
        result = moved * np.prod(sums, axis=0)
        if slides and nest.sliding[t]:
            store = nest.store_slots.index(tile_at)
            last = self.innermost[store][-1]
            ranks = self._ranks()
            for d, (axis, coefficient) in nest.sliding[t].items():
                is_last = ranks[:, d] == last  # (slots, B)
                here = is_last.any(axis=0)
                slot = np.argmax(is_last, axis=0)
                step = coefficient * self.inner[slot + 1, d, np.arange(self.batch)]
                overlap = nest.axis_extent(tensor, axis, size) - step
                dropped = brings | self._space_above(tile_at)
                dropped = dropped & ~(is_last[:, None, :] & (np.arange(self.dims) == d)[None, :, None])
                runs = self._tuples(dropped)[d]
                shared = (tiles[d] - runs) * self._overlap_sum(tensor, axis, d, tiles, size, step)
                rest = np.prod([x for a, x in enumerate(sums) if a != axis], axis=0)
                result = np.where(here & (overlap > 0), result - moved * rest * shared, result)
        return np.asarray(result)

    def _axis_sum(self, tensor: Operand, axis: int, tiles: Floats) -> Floats:
        """(B) elements along an axis, summed over all tiles of its dimensions."""
        index = self.nest.problem.dimensions.index
        terms = [(index(d), c) for d, c in tensor.axes[axis]]
        return self._linear(terms, terms, tiles, 1.0)

    def _overlap_sum(self, tensor: Operand, axis: int, d: int, tiles: Floats, size: Floats, step: Floats) -> Floats:
        """(B) elements that two neighbours along ``d`` share, summed over the tiles of the axis' other dimensions."""
        index = self.nest.problem.dimensions.index
        terms = [(index(name), c) for name, c in tensor.axes[axis]]
        own = next(c for dimension, c in terms if dimension == d)
        others = [(dimension, c) for dimension, c in terms if dimension != d]
        return self._linear(others, others, tiles, 1.0 + own * (size[d] - 1.0) - step)

    def _linear(
        self, terms: Iterable[tuple[int, int]], over: list[tuple[int, int]], tiles: Floats, constant: float | Floats
    ) -> Floats:
        """(B) sum over all tiles of ``over`` of the constant and, for each term, coefficient x (extent - 1)."""
        many = np.ones(self.batch)
        for d, _ in over:
            many = many * tiles[d]
        total = many * constant
        for d, c in terms:
            total = total + c * (self.bounds[d] - tiles[d]) * many / tiles[d]
        return total

    def _seen(self, t: int, tensor: Operand, at: int, here: Mask) -> Floats:
        """(B) words of the output that instances ever see, over all of them."""
        nest = self.nest
        outside = np.ones((self.dims, self.batch))
        for s in range(at):
            if self.space[s]:
                outside = outside * self.f[s]
        many = self._tuples(here & self._space_above(at))
        own = np.ones(self.batch)
        for d in np.flatnonzero(~nest.relevant[t]):
            own = own * many[d]
        simple = all(len(axis) == 1 for axis in tensor.axes)
        if simple:
            return own * np.prod([self.bounds[d] for d in np.flatnonzero(nest.relevant[t])], axis=0)
        each = nest.words(tensor, np.minimum(self.inner[0] / outside, self.bounds))
        return own * each * np.prod([many[d] for d in np.flatnonzero(nest.relevant[t])], axis=0)
