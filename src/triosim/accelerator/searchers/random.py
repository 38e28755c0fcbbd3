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
        """Yields mappings and takes their scores, for as long as it is asked."""
        while True:
            genes = space.random_genes(random, BATCH)
            factors, _ = space.factors(genes)
            yield Candidates(factors, space.random_orders(random, BATCH))
