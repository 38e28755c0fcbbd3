"""Batches of routes, and how they were chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class RouteBatch:
    """Routes as columns, ``n`` rows.

    Attributes:
        source, target: ends of each, shape ``(n,)``, int64.
        edges: of each, in order, int32.
        forks: nodes that were compared to choose each, the lower first, int64.
        others: beside ``forks.values`` the higher.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    edges: Ragged
    forks: Ragged
    others: NDArray[np.int64]

    @staticmethod
    def single(source: NDArray[np.int64], target: NDArray[np.int64], edge: NDArray[np.int64]) -> RouteBatch:
        """Walks of one edge each, to which there is no other way."""
        edges = Ragged.even(edge.astype(np.int32)[:, None])
        return RouteBatch(source, target, edges, Ragged.empty(len(source)), np.zeros(0, np.int64))

    @staticmethod
    def joined(parts: Sequence[RouteBatch]) -> RouteBatch:
        """The rows of several tables, one table after another."""
        return RouteBatch(
            np.concatenate([p.source for p in parts]),
            np.concatenate([p.target for p in parts]),
            Ragged.stacked([p.edges for p in parts]),
            Ragged.stacked([p.forks for p in parts]),
            np.concatenate([p.others for p in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> RouteBatch:
        """The rows with these numbers, in this order."""
        others = Ragged(self.others, self.forks.offsets).take(rows).values
        return RouteBatch(self.source[rows], self.target[rows], self.edges.take(rows), self.forks.take(rows), others)
