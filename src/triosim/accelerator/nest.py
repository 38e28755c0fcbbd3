"""How often every tensor is read, filled and updated at every level of a loop nest.

The rules count data as a machine moves it that fills a tile when the loops above change it, and keeps it otherwise.

* The *tile* of a tensor at a store that keeps it is what all loops at the store and below touch.
* A loop in time that does not index the tensor leaves its tile where it is, if no loop that does lies inside it
  (stationarity).  What remains of the loops above, multiplied, is how often a tile is brought.
* Where the innermost loop above slides the tile (the rows of an input under a filter), only what is new is brought.
* Tiles that are equal in several instances are read once above and sent to all; partial sums of several instances are
  added on their way up.
* Outputs come back: what an instance updates beyond what it ever saw first is read, added to and written again.

Many mappings of one problem to one design are counted side by side: arrays end in an axis of mappings (B).  Counts are
whole numbers in floats, exact up to 2**53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.architecture import Architecture, FanOut, Store
from triosim.accelerator.mapping import Level, Loop, LoopMapping, keeps_of
from triosim.accelerator.problem import Operand, Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoopSlot:
    """A place for one loop of each dimension: a store, or one direction of a fan-out.

    Attributes:
        node: name of the store or fan-out.
        axis: ``""`` in time, ``"x"`` or ``"y"`` in space.
        size: instances of the fan-out in this direction; 0 in time.
    """

    node: str
    axis: str
    size: int


@dataclass(frozen=True)
class AccessCounts:
    """Words moved and accesses, for each of B mappings.

    Attributes:
        tile: (stores, tensors, B) words of the largest tile; 0 where a store does not keep the tensor.
        reads, fills, updates: (stores, tensors, B) words, of one used instance.
        instances: (stores, B) used instances.
        used: (B) used compute units.
        steps: (B) iterations of all loops in time, which is cycles when nothing else binds.
    """

    tile: Floats
    reads: Floats
    fills: Floats
    updates: Floats
    instances: Floats
    used: Floats
    steps: Floats


@dataclass(frozen=True)
class LoopNest:
    """A problem on a design with a choice of what each store keeps: all that mappings have in common.

    Attributes:
        architecture, problem: see there.
        keeps: (stores, tensors) whether a store keeps a tensor.
    """

    architecture: Architecture
    problem: Problem
    keeps: tuple[tuple[bool, ...], ...]
    slots: tuple[LoopSlot, ...] = field(init=False)
    store_slots: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        slots: list[LoopSlot] = []
        for node in self.architecture.nodes:
            if isinstance(node, Store):
                slots.append(LoopSlot(node.name, "", 0))
            else:
                slots += [LoopSlot(node.name, axis, size) for axis, size in (("x", node.x), ("y", node.y)) if size > 1]
        object.__setattr__(self, "slots", tuple(slots))
        object.__setattr__(self, "store_slots", tuple(i for i, slot in enumerate(slots) if not slot.axis))

    @classmethod
    def of(cls, architecture: Architecture, problem: Problem, mapping: LoopMapping | None = None) -> LoopNest:
        """With what the design, or a mapping where it differs, keeps.

        Raises:
            InputError: see :func:`~triosim.accelerator.mapping.keeps_of`.
        """
        kept = keeps_of(architecture, problem, mapping)
        rows = tuple(tuple(t.name in kept[store.name] for t in problem.tensors) for store in architecture.stores)
        return cls(architecture, problem, rows)

    # --- mappings as arrays -------------------------------------------------------------------------------------------

    def arrays(self, mappings: Sequence[LoopMapping]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Factors (slots, dimensions, B) and orders (stores, dimensions, B) of mappings.

        An order names the dimension at each position of a store, outermost first.  Loops of one dimension that stand
        several times at one store are joined at the innermost place.
        """
        dims = self.problem.dimensions
        factors = np.ones((len(self.slots), len(dims), len(mappings)), np.int64)
        orders = np.zeros((len(self.store_slots), len(dims), len(mappings)), np.int8)
        place = {(slot.node, slot.axis): i for i, slot in enumerate(self.slots)}
        for b, mapping in enumerate(mappings):
            for level in mapping.levels:
                for loop in level.loops:
                    slot = place.get((level.node, loop.axis))
                    if slot is not None:
                        factors[slot, dims.index(loop.dimension), b] *= loop.count
                    elif loop.count > 1:
                        raise InputError(f"mapping: {level.node} has no instances along {loop.axis.upper()}")
            for i, at in enumerate(self.store_slots):
                named = [loop.dimension for loop in mapping.level(self.slots[at].node).loops if loop.count > 1]
                last = list(dict.fromkeys(reversed(named)))[::-1]
                rest = [d for d in dims if d not in last]
                orders[i, :, b] = [dims.index(d) for d in [*rest, *last]]
        return factors, orders

    def mapping(self, factors: NDArray[np.int64], orders: NDArray[np.int8]) -> LoopMapping:
        """The mapping of one column of both arrays; loops of 1 are left out."""
        dims = self.problem.dimensions
        levels = []
        store = 0
        for node in self.architecture.nodes:
            loops: list[Loop] = []
            keeps = None
            for i, slot in enumerate(self.slots):
                if slot.node == node.name:
                    order = range(len(dims)) if slot.axis else orders[self.store_slots.index(i)]
                    loops += [Loop(dims[d], int(factors[i, d]), slot.axis) for d in order if factors[i, d] > 1]
            if isinstance(node, Store):
                keeps = tuple(t.name for t, kept in zip(self.problem.tensors, self.keeps[store], strict=True) if kept)
                store += 1
            if not isinstance(node, FanOut) or loops:
                levels.append(Level(node.name, tuple(loops), keeps))
        ragged = bool((factors.prod(axis=0) != np.array(self.problem.bounds)).any())
        return LoopMapping(tuple(levels), ragged)

    # --- what tensors look like ---------------------------------------------------------------------------------------

    @cached_property
    def relevant(self) -> NDArray[np.bool_]:
        """(tensors, dimensions): whether a dimension indexes a tensor."""
        return np.array([[d in t.dimensions for d in self.problem.dimensions] for t in self.problem.tensors])

    @cached_property
    def keepers(self) -> tuple[tuple[int, ...], ...]:
        """Stores that keep each tensor, outermost first."""
        stores = range(len(self.store_slots))
        return tuple(tuple(s for s in stores if self.keeps[s][t]) for t in range(len(self.problem.tensors)))

    @cached_property
    def sliding(self) -> tuple[dict[int, tuple[int, int]], ...]:
        """For each tensor the dimensions that slide it: dimension -> (axis, coefficient)."""
        found = []
        for tensor in self.problem.tensors:
            uses = [d for axis in tensor.axes for d, _ in axis]
            found.append({
                self.problem.dimensions.index(d): (a, c)
                for a, axis in enumerate(tensor.axes) if len(axis) > 1 for d, c in axis if uses.count(d) == 1
            })  # fmt: skip
        return tuple(found)

    def axis_extent(self, tensor: Operand, axis: int, extents: Floats) -> Floats:
        """Elements along one axis of the tile; ``extents``: (dimensions, B)."""
        index = self.problem.dimensions.index
        terms = tensor.axes[axis]
        if len(terms) == 1 and terms[0][1] == 1:
            return extents[index(terms[0][0])]
        total: Floats = 1.0 + sum(c * (extents[index(d)] - 1.0) for d, c in terms)
        return total

    def words(self, tensor: Operand, extents: Floats) -> Floats:
        """Words of the tile; ``extents``: (dimensions, B)."""
        product = np.ones(extents.shape[1:])
        for axis in range(len(tensor.axes)):
            product = product * self.axis_extent(tensor, axis, extents)
        return product

    # --- counting -----------------------------------------------------------------------------------------------------

    def count(self, factors: NDArray[np.int64], orders: NDArray[np.int8]) -> AccessCounts:
        """What moves under each mapping.

        Args:
            factors: (slots, dimensions, B); their product over the slots is the bound of each dimension, or exceeds it.
            orders: (stores, dimensions, B).
        """
        bounds = np.array(self.problem.bounds, np.int64)[:, None]
        if (factors.prod(axis=0) == bounds).all():
            return self._perfect(factors, orders)
        from triosim.accelerator.ragged import count

        return count(self, factors, orders)

    def _perfect(self, factors: NDArray[np.int64], orders: NDArray[np.int8]) -> AccessCounts:
        problem = self.problem
        slots, dims, batch = factors.shape
        f = factors.astype(np.float64)
        shape = (len(self.store_slots), len(problem.tensors), batch)
        tile, reads, fills, updates = (np.zeros(shape) for _ in range(4))
        inner = np.ones((slots + 1, dims, batch))  # size of the tile of the loops from a slot inwards
        for s in reversed(range(slots)):
            np.multiply(inner[s + 1], f[s], out=inner[s])
        spread, distinct, spatial_inner = self._spread(f)
        states = self._stationarity(f, orders, inner)
        steps = inner[0].prod(axis=0) / spread[-1]
        for t, tensor in enumerate(problem.tensors):
            keepers = self.keepers[t]
            for i, s in enumerate(keepers):
                at = self.store_slots[s]
                tile[s, t] = self.words(tensor, inner[at])
                below = self.store_slots[keepers[i + 1]] if i + 1 < len(keepers) else None
                if below is None:
                    moved = steps * distinct[t][slots] / distinct[t][at]
                else:
                    child = keepers[i + 1]
                    visits, halo = states[t, child]
                    brought = visits * self.words(tensor, inner[below])
                    if not tensor.output and halo is not None:
                        brought = self._slid(tensor, t, visits, halo, inner[below])
                    moved = brought * (distinct[t][below] / distinct[t][at])
                    if not tensor.output:
                        fills[child, t] = brought
                if not tensor.output:
                    reads[s, t] = moved
                    continue
                seen = self.words(tensor, inner[0] / spatial_inner[at])
                updates[s, t] = moved
                reads[s, t] = moved - seen
                if i:
                    fills[s, t] = states[t, s][0] * tile[s, t] - seen
        instances = np.stack([spread[at] for at in self.store_slots])
        return AccessCounts(tile, reads, fills, updates, instances, spread[-1], steps)

    def _spread(self, f: Floats) -> tuple[list[Floats], list[list[Floats]], list[Floats]]:
        """Of each slot, one more than there are: instances above it; for each tensor those of them that hold different
        words; and (dimensions, B) the factors in space above it."""
        slots, dims, batch = f.shape
        above = [np.ones(batch)]
        distinct = [[np.ones(batch)] for _ in self.problem.tensors]
        by_dim = [np.ones((dims, batch))]
        for s in range(slots):
            if not self.slots[s].axis:
                above.append(above[-1])
                by_dim.append(by_dim[-1])
                for row in distinct:
                    row.append(row[-1])
                continue
            above.append(above[-1] * f[s].prod(axis=0))
            by_dim.append(by_dim[-1] * f[s])
            for t, row in enumerate(distinct):
                row.append(row[-1] * f[s][self.relevant[t]].prod(axis=0))
        return above, distinct, by_dim

    def _stationarity(
        self, f: Floats, orders: NDArray[np.int8], inner: Floats
    ) -> dict[tuple[int, int], tuple[Floats, tuple[Floats, Floats, Floats] | None]]:
        """For each tensor and store that keeps it: how often its tile is brought, and the innermost loop above.

        That loop is (dimension, iterations, words that it steps over), each of shape (B); None where the tensor slides
        under no loop.  The dimension is -1 where there is no loop above.
        """
        batch = f.shape[2]
        columns = np.arange(batch)
        product = np.ones(batch)  # of all loops in time above
        visits = np.ones((len(self.problem.tensors), batch))  # of those that bring a tile
        last: tuple[Floats, Floats, Floats] = (np.full(batch, -1.0), np.ones(batch), np.ones(batch))
        found: dict[tuple[int, int], tuple[Floats, tuple[Floats, Floats, Floats] | None]] = {}
        slides = any(self.sliding)
        for s, at in enumerate(self.store_slots):
            for t in range(len(self.problem.tensors)):
                if self.keeps[s][t]:
                    found[t, s] = (visits[t], last if self.sliding[t] else None)
            if s == len(self.store_slots) - 1:
                break
            order = orders[s].astype(np.intp)  # (dimensions, B)
            ordered = f[at].take(order * batch + columns)
            runs = ordered > 1
            running = np.cumprod(ordered, axis=0)
            brings = np.where(self.relevant.take(order, axis=1) & runs, running, 0.0).max(axis=1)
            visits = np.maximum(visits, product * brings)
            if slides:
                place = runs.shape[0] - 1 - np.argmax(runs[::-1], axis=0)
                some = runs.any(axis=0)
                dimension = order[place, columns]
                last = (
                    np.where(some, dimension, last[0]),
                    np.where(some, ordered[place, columns], last[1]),
                    np.where(some, inner[at + 1, dimension, columns], last[2]),
                )
            product = product * running[-1]
        return found

    def _slid(
        self, tensor: Operand, t: int, visits: Floats, last: tuple[Floats, Floats, Floats], extents: Floats
    ) -> Floats:
        """Words brought where the innermost loop above slides the tile: all of the first, then what is new."""
        dimension, iterations, step = last
        tile = self.words(tensor, extents)
        brought = visits * tile
        for d, (axis, coefficient) in self.sliding[t].items():
            extent = self.axis_extent(tensor, axis, extents)
            new = tile / extent * np.minimum(extent, coefficient * step)
            slid = visits / iterations * (tile + (iterations - 1.0) * new)
            brought = np.where(dimension == d, slid, brought)
        return brought


def compiled(architecture: Architecture, problem: Problem, keeps: Mapping[str, Sequence[str]]) -> LoopNest:
    """A loop nest with what each store keeps, by its name."""
    rows = tuple(tuple(t.name in keeps[store.name] for t in problem.tensors) for store in architecture.stores)
    return LoopNest(architecture, problem, rows)
