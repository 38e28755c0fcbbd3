"""Mappings drawn one by one from those that fit."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from triosim.accelerator.mapper import Candidates, Scores
from triosim.accelerator.mapspace import MappingSpace
from triosim.core.registry import registered

BATCH = 2048


@registered
class Random:
    """Primes move in from outside in a random order, as long as tiles fit; orders are equally likely."""

    def search(
        self, space: MappingSpace, random: np.random.Generator, budget: int
    ) -> Generator[Candidates, Scores, None]:
        """Yields as many mappings as the budget has."""
        for done in range(0, budget, BATCH):
            size = min(BATCH, budget - done)
            factors, _ = space.factors(space.random_genes(random, size))
            yield Candidates(factors, space.random_orders(random, size))
