"""Every mapping, where they are few."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from triosim.accelerator.mapper import Candidates, Scores
from triosim.accelerator.mapspace import MappingSpace
from triosim.core.registry import registered

BATCH = 4096


@registered
class Exhaustive:
    """All ways to lay the factors over the slots, in all orders that differ."""

    def search(
        self, space: MappingSpace, random: np.random.Generator, budget: int
    ) -> Generator[Candidates, Scores, None]:
        """Yields all mappings."""
        for factors, orders in space.everything(BATCH):
            yield Candidates(factors, orders)
