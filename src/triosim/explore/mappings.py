"""Mappings of one problem to one design, by cycles and joules.

A choice says in which slot each prime factor of each bound lies, and for each store but the innermost which dimension's
loop is innermost; the others keep the problem's order.  What a store keeps is what the design says.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.architecture import Architecture
from triosim.accelerator.evaluate import costs
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.mapspace import space
from triosim.accelerator.problem import Problem
from triosim.core.errors import InputError
from triosim.explore.exploration import Costs, Exploration
from triosim.explore.space import ChoiceSpace, Point, Value, VariedValue


class MappingExploration(Exploration):
    """Mappings that fit a design.

    Args:
        design, problem: see there.
        timing: of :data:`triosim.accelerator.evaluate.TIMINGS`.
    """

    objectives = ("cycles", "energy")

    def __init__(self, design: Architecture, problem: Problem, timing: str = "bandwidth") -> None:
        super().__init__()
        self.where = space(design, problem)
        self.timing = timing
        nest, dims = self.where.nest, problem.dimensions
        slots = [f"{slot.node}{'.' if slot.axis else ''}{slot.axis}" for slot in nest.slots]
        choices = [
            VariedValue(f"{dims[d]} {p} ({gene})", tuple(slots[at] for at in options))
            for gene, ((d, p), options) in enumerate(zip(self.where.primes, self.where.choices, strict=True))
        ]
        self.stores = [store.name for store in design.stores[:-1]]
        large = [name for name in dims if problem.bound[name] > 1]
        choices += [VariedValue(f"innermost at {store}", tuple(large or dims)) for store in self.stores]
        self.space = ChoiceSpace(tuple(choices))
        self._place = [{int(slot): at for at, slot in enumerate(of)} for of in self.where.choices]
        self._slot = {name: at for at, name in enumerate(slots)}

    def drawn(self, random: np.random.Generator) -> Point:
        """A mapping that fits: few of all do."""
        genes = self.where.random_one(random)
        return (*self._places(genes), *self.space.drawn(random)[len(genes) :])

    def fitted(self, point: Point) -> Point:
        """See :class:`Exploration`: factors that make tiles exceed their stores stay outside."""
        slots = [int(of[at]) for of, at in zip(self.where.choices, point, strict=False)]
        return (*self._places(self.where.fitted(slots)), *point[len(slots) :])

    def _places(self, genes: list[int]) -> list[int]:
        """Places of slots among those that each prime factor may lie in."""
        return [of[gene] for of, gene in zip(self._place, genes, strict=True)]

    def mapping(self, values: dict[str, Value]) -> LoopMapping:
        """The mapping that a point stands for.

        Raises:
            InputError: it does not fit.
        """
        factors, orders = self._arrays(values)
        return self.where.nest.mapping(factors[..., 0], orders[..., 0])

    def evaluated(self, values: dict[str, Value]) -> Costs:
        """See :class:`Exploration`."""
        found = costs(self.where.nest, *self._arrays(values), self.timing)
        return float(found.cycles[0]), float(found.total_j[0])

    def _arrays(self, values: dict[str, Value]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Factors and orders, of one mapping."""
        chosen = list(values.values())
        primes, dims = len(self.where.primes), self.where.nest.problem.dimensions
        rows, _, excess = self.where.placed([self._slot[str(slot)] for slot in chosen[:primes]])
        if excess > 0:
            raise InputError(f"tiles and fan-outs exceed what is there by a factor of {math.exp(excess):.3g} in all")
        factors = np.array(rows, np.int64)[..., None]
        orders = np.empty((len(self.stores) + 1, len(dims), 1), np.int8)
        orders[-1, :, 0] = np.arange(len(dims))
        for at, inner in enumerate(chosen[primes:]):
            last = dims.index(str(inner))
            orders[at, :, 0] = [*(d for d in range(len(dims)) if d != last), last]
        return factors, self.where.ordered(orders)
