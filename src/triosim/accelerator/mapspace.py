"""All mappings of a problem to a design: prime factors over slots, and orders.

A mapping is written as *genes*.  Each prime factor of each bound has one, which says in which slot it lies.  Each store
has an order of its dimensions.  Any genes are the factors of a perfect mapping, so that searching is moving primes.
Fan-outs are kept within their size while genes are decoded: a prime that no longer fits moves to the store above.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.architecture import Architecture, tensors_kept
from triosim.accelerator.directives import Constraints, LevelConstraint
from triosim.accelerator.mapping import check_keeps
from triosim.accelerator.nest import LoopNest, compiled
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

Genes = NDArray[np.int8]
Orders = NDArray[np.int8]


def primes_of(number: int) -> list[int]:
    """Prime factors, the largest first."""
    found, p = [], 2
    while p * p <= number:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    if number > 1:
        found.append(number)
    return found[::-1]


@dataclass(frozen=True)
class MappingSpace:
    """Mappings that constraints allow.

    Attributes:
        nest: problem, design and what is kept.
        fixed: (slots, dimensions) factors that constraints set.
        allowed: (slots, dimensions) whether a prime of a dimension may lie in a slot.
        most: (slots, dimensions) the largest factor there, 0 where there is no limit.
        inner: for each store the dimensions of its innermost loops, from the innermost.
        one_axis: whether a dimension may run along one axis of a fan-out alone.
    """

    nest: LoopNest
    fixed: tuple[tuple[int, ...], ...]
    allowed: tuple[tuple[bool, ...], ...]
    most: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[int, ...], ...]
    one_axis: bool = False

    @cached_property
    def primes(self) -> tuple[tuple[int, int], ...]:
        """(dimension, prime) of every gene."""
        found = []
        for d, bound in enumerate(self.nest.problem.bounds):
            left = bound // math.prod(row[d] for row in self.fixed)
            found += [(d, p) for p in primes_of(left)]
        return tuple(sorted(found, key=lambda gene: -gene[1]))

    @cached_property
    def choices(self) -> tuple[NDArray[np.int8], ...]:
        """Slots that each gene may lie in."""
        sizes = [slot.size for slot in self.nest.slots]
        return tuple(
            np.array([
                s for s, row in enumerate(self.allowed)
                if row[d] and (not sizes[s] or p <= sizes[s]) and (not self.most[s][d] or p <= self.most[s][d])
            ], np.int8)
            for d, p in self.primes
        )  # fmt: skip

    @cached_property
    def tight(self) -> tuple[bool, ...]:
        """Of every slot whether what lies in it is limited, by a fan-out or a constraint."""
        return tuple(bool(slot.size) or any(self.most[s]) for s, slot in enumerate(self.nest.slots))

    @cached_property
    def home(self) -> tuple[tuple[int, ...], ...]:
        """For each gene and slot where a prime goes that does not fit there: the nearest store above that is allowed
        and has no limit, or any other such slot."""
        found = []
        for d, _ in self.primes:
            free = [s for s, row in enumerate(self.allowed) if row[d] and not self.tight[s]]
            found.append(tuple(
                max((f for f in free if f < s), default=free[0] if free else s) for s in range(len(self.nest.slots))
            ))  # fmt: skip
        return tuple(found)

    def factors(self, genes: Genes) -> tuple[NDArray[np.int64], Genes]:
        """Factors (slots, dimensions, B) of genes (primes, B), and the genes with those moved that did not fit."""
        batch = genes.shape[1]
        fixed = np.array(self.fixed, np.int64)
        found = np.repeat(fixed.ravel(), batch)  # flat, of (slots, dimensions, B)
        held = np.repeat(fixed.prod(axis=1), batch)  # flat, of (slots, B)
        sizes, most, limited, checked = self._limits
        genes = genes.copy()
        dims = fixed.shape[1]
        places = genes.astype(np.intp)
        columns = np.arange(batch)
        slots = places * batch + columns  # where each prime is held, for all primes at once
        own = places * (dims * batch) + (np.array([[d] for d, _ in self.primes], np.intp) * batch + columns)
        for g, (d, p) in enumerate(self.primes):
            if checked[g]:
                at = places[g]
                over = held[slots[g]] * p > sizes[at]
                if limited:
                    over |= found[own[g]] * p > most[at, d]
                if over.any():
                    moved = np.flatnonzero(over)
                    to = np.array(self.home[g])[at[moved]]
                    genes[g, moved] = to
                    slots[g, moved] = to * batch + moved
                    own[g, moved] = to * (dims * batch) + (d * batch + moved)
            found[own[g]] *= p
            held[slots[g]] *= p
        return found.reshape(len(fixed), dims, batch), genes

    @cached_property
    def _limits(self) -> tuple[NDArray[np.int64], NDArray[np.int64], bool, tuple[bool, ...]]:
        """Instances of each slot, most of each slot and dimension, whether any of these is limited, and for each gene
        whether it may lie where something is."""
        sizes = np.array([slot.size or 2**62 for slot in self.nest.slots])
        most = np.array(self.most, np.int64)
        limited = bool(most.any())
        most[most == 0] = 2**62
        checked = tuple(any(self.tight[s] for s in choices) for choices in self.choices)
        return sizes, most, limited, checked

    def placed(self, genes: Sequence[int]) -> tuple[list[list[int]], list[int], float]:
        """:meth:`factors` (slots, dimensions), genes as moved, and :meth:`excess` of one mapping, in plain numbers: ten
        times faster than as a batch of one."""
        rows, moved, held = self._laid(genes)
        return rows, moved, self._excess_of(rows, held)

    def _laid(self, genes: Sequence[int]) -> tuple[list[list[int]], list[int], list[int]]:
        """Factors of one mapping, its genes as moved, and the product of the factors of each slot."""
        fixed, begun, sizes, limited = self._plain
        rows, moved, held = [list(row) for row in fixed], list(genes), list(begun)
        for g, (d, p) in enumerate(self.primes):
            at = moved[g]
            if held[at] * p > sizes[at] or (limited and rows[at][d] * p > (self.most[at][d] or math.inf)):
                at = moved[g] = self.home[g][at]
            rows[at][d] *= p
            held[at] *= p
        return rows, moved, held

    @cached_property
    def _plain(self) -> tuple[tuple[tuple[int, ...], ...], list[int], list[float], bool]:
        """What :meth:`_laid` begins with: fixed factors, their products, instances of slots, whether more is bound."""
        return (
            self.fixed, [math.prod(row) for row in self.fixed],
            [slot.size or math.inf for slot in self.nest.slots], any(any(row) for row in self.most),
        )  # fmt: skip

    def _fits(self, rows: Sequence[Sequence[int]], held: Sequence[int]) -> bool:
        """Whether :meth:`_excess_of` is 0, at the first slot that says no."""
        if any(min(both) > 1 for x, y in self.pairs for both in zip(rows[x], rows[y], strict=True)):
            return False
        inner = [1] * len(rows[0])
        for s in range(len(rows) - 1, -1, -1):
            if held[s] > 1:
                inner = [one * factor for one, factor in zip(inner, rows[s], strict=True)]
            size, room, tensors = self._room[s]
            if size:
                if held[s] > size:
                    return False
            elif room:
                needed = 0
                for axes in tensors:
                    words = 1
                    for terms in axes:
                        if len(terms) == 1 and terms[0][1] == 1:
                            words *= inner[terms[0][0]]
                        else:
                            words *= 1 + sum(c * (inner[d] - 1) for d, c in terms)
                    needed += words
                if needed > room:
                    return False
        return True

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Slots along X and Y of one fan-out, where a dimension may run along only one of them."""
        if not self.one_axis:
            return ()
        slots = self.nest.slots
        return tuple((s, s + 1) for s in range(len(slots) - 1) if slots[s].axis and slots[s].node == slots[s + 1].node)

    def _excess_of(self, rows: Sequence[Sequence[int]], held: Sequence[int]) -> float:
        found, inner = 0.0, [1] * len(rows[0])
        for x, y in self.pairs:
            found += sum(math.log(min(both)) for both in zip(rows[x], rows[y], strict=True))
        for s in range(len(rows) - 1, -1, -1):
            inner = [one * factor for one, factor in zip(inner, rows[s], strict=True)]
            size, room, tensors = self._room[s]
            if size and held[s] > size:
                found += math.log(held[s] / size)
            elif room:
                needed = 0
                for axes in tensors:
                    words = 1
                    for terms in axes:
                        words *= 1 + sum(c * (inner[d] - 1) for d, c in terms)
                    needed += words
                if needed > room:
                    found += math.log(needed / room)
        return found

    @cached_property
    def _room(self) -> tuple[tuple[int, float, tuple[tuple[tuple[tuple[int, int], ...], ...], ...]], ...]:
        """For each slot the size of a fan-out, or the words of a store and the axes of the tensors that it keeps, each
        as dimensions with what one step of them moves it by."""
        nest = self.nest
        found: list[tuple[int, float, tuple[tuple[tuple[tuple[int, int], ...], ...], ...]]] = []
        index = nest.problem.dimensions.index
        axes = [tuple(tuple((index(d), c) for d, c in axis) for axis in one.axes) for one in nest.problem.tensors]
        for s, slot in enumerate(nest.slots):
            if slot.axis:
                found.append((slot.size, 0.0, ()))
                continue
            store = nest.store_slots.index(s)
            one = nest.architecture.stores[store]
            kept = tuple(axes[t] for t in range(len(axes)) if nest.keeps[store][t])
            found.append((0, (one.capacity_words or 0) / one.buffering, kept))
        return tuple(found)

    # --- making mappings ----------------------------------------------------------------------------------------------

    def random_orders(self, random: np.random.Generator, batch: int) -> Orders:
        """(stores, dimensions, B) orders."""
        stores, dims = len(self.nest.store_slots), len(self.nest.problem.dimensions)
        keys = random.random((stores, dims, batch), dtype=np.float32)
        return self.ordered(np.argsort(keys, axis=1).astype(np.int8))

    def ordered(self, orders: Orders) -> Orders:
        """The same with the innermost loops that constraints set."""
        for s, inner in enumerate(self.inner):
            if inner:
                place = np.zeros(orders.shape[1], np.int64)
                place[list(inner)] = np.arange(len(inner), 0, -1) + orders.shape[1]
                keys = np.where(
                    place[orders[s]] > 0, place[orders[s]], np.arange(orders.shape[1])[:, None]
                )  # the outer ones stay in their order
                orders[s] = np.take_along_axis(orders[s], np.argsort(keys, axis=0, kind="stable"), axis=0)
        return orders

    def random_genes(self, random: np.random.Generator, batch: int) -> Genes:
        """(primes, B) genes of mappings that fit: every prime starts far outside and moves in as long as tiles fit."""
        genes = np.zeros((len(self.primes), batch), np.int8)
        for g in range(len(self.primes)):
            genes[g] = self._outermost(g)
        for g in random.permutation(len(self.primes)):
            options = self.choices[g]
            tried = genes.copy()
            tried[g] = options[random.integers(0, len(options), batch)]
            factors, tried = self.factors(tried)
            fits = self.excess(factors) == 0
            genes[:, fits] = tried[:, fits]
        return genes

    def random_one(self, random: np.random.Generator) -> list[int]:
        """Genes of one mapping that fits, drawn as :meth:`random_genes` draws them."""
        slots = self.choices
        order = random.permutation(len(self.primes)).tolist()
        return self._moved_in((g, int(slots[g][random.integers(0, len(slots[g]))])) for g in order)

    def fitted(self, genes: Sequence[int]) -> list[int]:
        """Genes of a mapping that fits: these where they do, else those of them, one after another, with which the
        mapping still fits, and the others far outside."""
        rows, moved, held = self._laid(genes)
        return moved if self._fits(rows, held) else self._moved_in(enumerate(genes))

    def _moved_in(self, moves: Iterable[tuple[int, int]]) -> list[int]:
        """Genes of a mapping whose primes all begin far outside; each move of a gene to a slot is made if tiles fit."""
        genes = [self._outermost(g) for g in range(len(self.primes))]
        for g, slot in moves:
            if genes[g] == slot:
                continue
            rows, tried, held = self._laid([*genes[:g], slot, *genes[g + 1 :]])
            if self._fits(rows, held):
                genes = tried
        return genes

    def _outermost(self, gene: int) -> int:
        return next((int(s) for s in self.choices[gene] if not self.tight[s]), int(self.choices[gene][0]))

    def excess(self, factors: NDArray[np.int64]) -> NDArray[np.float64]:
        """(B) by how much tiles and fan-outs exceed what is there, 0 where everything fits: the sum of the logarithms
        of needed over there, and of what runs along a second axis where that may not be."""
        nest = self.nest
        slots, dims, batch = factors.shape
        found = np.zeros(batch)
        for x, y in self.pairs:
            found += np.log(np.minimum(factors[x], factors[y])).sum(axis=0)
        inner = np.ones((dims, batch))
        stores = nest.architecture.stores
        for s in reversed(range(slots)):
            inner = inner * factors[s]
            if nest.slots[s].axis:
                used = factors[s].prod(axis=0)
                found += np.log(np.maximum(used / nest.slots[s].size, 1.0))
                continue
            store = nest.store_slots.index(s)
            capacity = stores[store].capacity_words
            if capacity is None:
                continue
            needed = np.zeros(batch)
            for t, tensor in enumerate(nest.problem.tensors):
                if nest.keeps[store][t]:
                    needed = needed + nest.words(tensor, inner)
            found += np.log(np.maximum(needed * stores[store].buffering / capacity, 1.0))
        return found

    # --- all of them --------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each dimension every way to lay its bound over the slots, fan-outs and constraints minded one by one."""
        found = []
        for d in range(len(self.nest.problem.dimensions)):
            rows = {tuple(row[d] for row in self.fixed)}
            for g, (dimension, p) in enumerate(self.primes):
                if dimension == d:
                    rows = {
                        (*row[:s], row[s] * p, *row[s + 1 :])
                        for row in rows for s in self.choices[g].tolist()
                        if not self.nest.slots[s].size or row[s] * p <= self.nest.slots[s].size
                        if not self.most[s][d] or row[s] * p <= self.most[s][d]
                    }  # fmt: skip
            found.append(tuple(sorted(rows)))
        return tuple(found)

    @property
    def size(self) -> int:
        """Mappings, those counted that exceed a store or a fan-out."""
        return math.prod(map(len, self.splits)) * math.prod(len(orders) for orders in self.all_orders)

    @cached_property
    def all_orders(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each store the orders that differ: dimensions of bound 1 stay outside, the innermost store has one."""
        bounds = self.nest.problem.bounds
        ones = tuple(d for d, bound in enumerate(bounds) if bound == 1)
        found = []
        for s, inner in enumerate(self.inner):
            last = tuple(d for d in reversed(inner) if d not in ones)
            others = [d for d in range(len(bounds)) if d not in ones and d not in last]
            permuted = itertools.permutations(others)
            if s == len(self.inner) - 1:
                permuted = iter([tuple(others)])  # type: ignore[assignment]
            found.append(tuple((*ones, *order, *last) for order in permuted))
        return tuple(found)

    def everything(self, batch: int) -> Iterator[tuple[NDArray[np.int64], Orders]]:
        """Factors and orders of all mappings, ``batch`` at a time."""
        splits = [np.array(rows, np.int64) for rows in self.splits]  # (ways, slots) each
        orders = [np.array(rows, np.int8) for rows in self.all_orders]  # (ways, dimensions) each
        radices = [*map(len, splits), *map(len, orders)]
        for start in range(0, self.size, batch):
            left = np.arange(start, min(start + batch, self.size))
            digits = []
            for radix in radices:
                digits.append(left % radix)
                left = left // radix
            factors = np.stack([rows[i].T for rows, i in zip(splits, digits, strict=False)], axis=1)
            order = np.stack([rows[i].T for rows, i in zip(orders, digits[len(splits) :], strict=True)])
            yield factors, order


def space(
    architecture: Architecture, problem: Problem, constraints: Constraints | None = None,
    keeps: dict[str, tuple[str, ...]] | None = None,
) -> MappingSpace:  # fmt: skip
    """The mappings that constraints allow.

    Args:
        architecture, problem: see there.
        constraints: of factors and orders; what they keep is taken unless ``keeps`` is given.
        keeps: tensors of each store.

    Raises:
        InputError: no mapping can be found; the sentence names the constraint that rules all out.
    """
    rules = constraints or Constraints()
    if keeps is None:
        keeps = keeps_under(architecture, problem, rules)
    check_keeps(keeps, architecture, problem)
    nest = compiled(architecture, problem, keeps)
    slots, dims = nest.slots, problem.dimensions
    fixed = [[1] * len(dims) for _ in slots]
    allowed = [[True] * len(dims) for _ in slots]
    most = [[0] * len(dims) for _ in slots]
    inner: list[tuple[int, ...]] = [()] * len(nest.store_slots)
    for rule in rules.levels:
        at = [i for i, slot in enumerate(slots) if slot.node == rule.node]
        if not at:
            large = [d for d, n in (*rule.exact, *rule.least) if n > 1]
            if large:
                raise InputError(
                    f"no mapping is possible: {rule.node} has one instance, and {large[0]} is to be spread over it: "
                    "loosen that constraint"
                )
            continue
        _restrict(rule, at, nest, fixed, allowed, most)
        if not slots[at[0]].axis:
            inner[nest.store_slots.index(at[0])] = tuple(dims.index(d) for d in rule.inner)
    made = MappingSpace(
        nest, tuple(map(tuple, fixed)), tuple(map(tuple, allowed)), tuple(map(tuple, most)), tuple(inner),
        rules.one_axis,
    )  # fmt: skip
    _possible(made)
    return made


def _restrict(
    rule: LevelConstraint, at: list[int], nest: LoopNest, fixed: list[list[int]], allowed: list[list[bool]],
    most: list[list[int]],
) -> None:  # fmt: skip
    """One constraint on the slots of its node."""
    dims = nest.problem.dimensions
    axes = {nest.slots[i].axis: i for i in at}
    if rule.split is not None and "" not in axes:
        for position, dimension in enumerate(rule.inner):
            for axis, slot in axes.items():
                if (axis == "x") != (position < rule.split):
                    allowed[slot][dims.index(dimension)] = False
    for dimension, count in rule.exact:
        d = dims.index(dimension)
        open_ = [i for i in at if allowed[i][d]]
        for i in at:
            allowed[i][d] = False
        if count > 1:
            sizes = {i: nest.slots[i].size or math.inf for i in open_}
            place = next((i for i in open_ if math.prod(fixed[i]) * count <= sizes[i]), None)
            if place is None:
                raise InputError(
                    f"no mapping is possible: {rule.node} is to spread {dimension} over {count}, which does not fit "
                    "its fan-out: loosen that constraint"
                )
            fixed[place][d] = count
    for dimension, count in rule.most:
        for i in at:
            most[i][dims.index(dimension)] = count
    for dimension, count in rule.least:
        d = dims.index(dimension)
        place = next((i for i in at if allowed[i][d]), at[0])
        fixed[place][d] = max(fixed[place][d], count)


def _possible(made: MappingSpace) -> None:
    """Refuse a space without a mapping, and name what rules all out."""
    nest = made.nest
    for d, bound in enumerate(nest.problem.bounds):
        name = nest.problem.dimensions[d]
        set_ = math.prod(row[d] for row in made.fixed)
        if bound % set_:
            raise InputError(
                f"no mapping is possible: constraints set factors of {name} that multiply to {set_}, which does not "
                f"divide its bound {bound}: change one"
            )
    for g, (d, p) in enumerate(made.primes):
        if not len(made.choices[g]):
            name = nest.problem.dimensions[d]
            raise InputError(
                f"no mapping is possible: the constraints leave no place for a factor of {p} of {name}: loosen one "
                f"that names {name}"
            )
    start = np.array([[made._outermost(g)] for g in range(len(made.primes))], np.int8).reshape(-1, 1)
    factors, _ = made.factors(start)
    if made.excess(factors)[0] > 0:
        raise InputError(f"no mapping is possible: {_ruled_out(made, factors)}")


def _ruled_out(made: MappingSpace, factors: NDArray[np.int64]) -> str:
    """Which limit the least tiles exceed."""
    nest = made.nest
    inner = np.ones(factors.shape[1:])
    for s in reversed(range(len(nest.slots))):
        inner = inner * factors[s]
        slot = nest.slots[s]
        if slot.axis:
            if factors[s].prod() > slot.size:
                return f"constraints spread {factors[s].prod()} over {slot.node}, of which {slot.size} are there"
            continue
        store = nest.architecture.stores[nest.store_slots.index(s)]
        kept = [t for t, k in zip(nest.problem.tensors, nest.keeps[nest.store_slots.index(s)], strict=True) if k]
        needed = sum(float(nest.words(t, inner)[0]) for t in kept) * store.buffering
        if store.capacity_words is not None and needed > store.capacity_words:
            names = ", ".join(t.name for t in kept)
            return (
                f"the capacity of {store.name} rules all out: the smallest tiles of {names} take {needed:.0f} words, "
                f"and it holds {store.capacity_words}: let it keep less, or loosen constraints on factors"
            )
    return "constraints rule all out"


def keeps_under(architecture: Architecture, problem: Problem, constraints: Constraints) -> dict[str, tuple[str, ...]]:
    """Tensors of each store: what constraints say, and what the design says where they say nothing; not checked."""
    found = {store.name: tensors_kept(store, problem) for store in architecture.stores}
    for store, tensor, kept in constraints.keeps:
        rest = tuple(t for t in found.get(store, ()) if t != tensor)
        found[store] = tuple(t.name for t in problem.tensors if t.name in rest or (kept and t.name == tensor))
    return found
