"""A genetic search: good mappings exchange primes and orders, and move single primes.

A child takes each dimension's primes and each store's order from one of two parents, each the better of two drawn.
Then a few primes move to other slots and a few loops change places.  Parents and children compete for the next
generation; equals are kept once, so that the population stays different.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from triosim.accelerator.mapper import Candidates, Scores
from triosim.accelerator.mapspace import Genes, MappingSpace, Orders
from triosim.core.registry import registered

POPULATION = 1024
MOVED = 1.5  # primes that move in a child, on average
SWAPPED = 0.2  # of a store's order, the chance that two loops change places
STALE = 25  # generations without a better mapping after which most of the population starts anew
KEPT = 0.05  # of the population, when it starts anew


@registered
class Genetic:
    """Crossing and mutation of a population."""

    def search(
        self, space: MappingSpace, random: np.random.Generator, budget: int
    ) -> Generator[Candidates, Scores, None]:
        """Yields generations and takes their scores, for as long as it is asked."""
        size = max(min(POPULATION, budget // 8), 16)
        genes, orders = space.random_genes(random, size), space.random_orders(random, size)
        factors, genes = space.factors(genes)
        scores = yield Candidates(factors, orders)
        best, since = np.inf, 0
        while True:
            children, child_orders = self._children(space, random, genes, orders, scores)
            factors, children = space.factors(children)
            child_scores = yield Candidates(factors, child_orders)
            genes, orders, scores = _survivors(
                np.concatenate([genes, children], axis=1), np.concatenate([orders, child_orders], axis=2),
                np.concatenate([scores, child_scores]), size,
            )  # fmt: skip
            since = 0 if scores[0] < best else since + 1
            best = min(best, float(scores[0]))
            if since > STALE:
                genes, orders, scores, since = genes.copy(), orders.copy(), scores.copy(), 0
                kept = max(int(size * KEPT), 1)
                genes[:, kept:] = space.random_genes(random, size - kept)
                orders[:, :, kept:] = space.random_orders(random, size - kept)
                factors, genes = space.factors(genes)
                scores = yield Candidates(factors, orders)

    def _children(
        self, space: MappingSpace, random: np.random.Generator, genes: Genes, orders: Orders, scores: Scores
    ) -> tuple[Genes, Orders]:
        size = genes.shape[1]
        drawn = random.integers(0, size, (2, 2, size))
        mother, father = np.where(scores[drawn[:, 0]] <= scores[drawn[:, 1]], drawn[:, 0], drawn[:, 1])
        dims = len(space.nest.problem.dimensions)
        from_mother = random.random((dims, size), dtype=np.float32) < 0.5
        whole = random.random(size, dtype=np.float32) < 0.3  # some children have one parent and only mutate
        from_mother |= whole
        of = [d for d, _ in space.primes]
        children = np.where(from_mother[of], genes[:, mother], genes[:, father])
        stores = orders.shape[0]
        order_from_mother = (random.random((stores, 1, size), dtype=np.float32) < 0.5) | whole
        child_orders = np.where(order_from_mother, orders[:, :, mother], orders[:, :, father])
        moved = random.random(children.shape, dtype=np.float32) < MOVED / max(len(of), 1)
        for g in range(len(of)):
            columns = np.flatnonzero(moved[g])
            options = space.choices[g]
            children[g, columns] = options[random.integers(0, len(options), len(columns))]
        for s in range(stores - 1):
            columns = np.flatnonzero(random.random(size, dtype=np.float32) < SWAPPED)
            one, other = random.integers(0, dims, (2, len(columns)))
            child_orders[s, one, columns], child_orders[s, other, columns] = (
                child_orders[s, other, columns], child_orders[s, one, columns],
            )  # fmt: skip
        return children, space.ordered(child_orders)


def _survivors(genes: Genes, orders: Orders, scores: Scores, size: int) -> tuple[Genes, Orders, Scores]:
    """The best, equals once."""
    ranked = np.argsort(scores, kind="stable")
    first = np.ones(len(ranked), bool)
    first[1:] = np.diff(scores[ranked]) != 0
    chosen = np.concatenate([ranked[first], ranked[~first]])[:size]
    return genes[:, chosen], orders[:, :, chosen], scores[chosen]
