"""Pairs of nodes whose only best route is the link between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.hardware.system import System, Tier
from triosim.network.route_batch import RouteBatch

# The cost of an edge without its hop, so that the cost of two can be added and compared at once.
_SCALE_OUT, _HOST = 1, 4


class DirectLinks:
    """Routes of one link each.

    Args:
        system: the machine.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        tiers = np.array(
            [{Tier.SCALE_OUT: _SCALE_OUT, Tier.HOST: _HOST, Tier.NVME: _HOST}.get(tier, 0) for tier in Tier], np.int64
        )
        self._cost = tiers[system.edge_tier]

    def walks(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[NDArray[np.int64], RouteBatch]:
        """The link from each source to the target beside it where no other route is as good.

        Every other route has an edge that leaves the source and another that enters the target; where the cheapest of
        those together cost no less than the link, the link is better, having fewer hops.  Of several such links it is
        the lowest of the cheapest.

        Returns:
            rows of the pairs for which it is so, and the walks between those.
        """
        system, cost = self._system, self._cost
        edges = system.leaving.take(np.unique(source)).values
        if not len(edges):
            return np.zeros(0, np.int64), RouteBatch.single(source[:0], target[:0], edges)
        key = system.edge_source[edges] * np.int64(system.nodes) + system.edge_target[edges]
        order = np.lexsort((edges, cost[edges], key))
        key, edges = key[order], edges[order]
        wanted = source * system.nodes + target
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        bound = _least(system.leaving, cost, source) + _least(system.entering, cost, target)
        rows = np.flatnonzero((key[at] == wanted) & (cost[edges[at]] <= bound))
        return rows, RouteBatch.single(source[rows], target[rows], edges[at[rows]])


def _least(edges: Ragged, cost: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least cost among the edges of each node; 0 where there are none."""
    different, row = np.unique(nodes, return_inverse=True)
    own = edges.take(different)
    some = np.flatnonzero(own.lengths())
    least = np.zeros(len(different), np.int64)
    if len(some):
        least[some] = np.minimum.reduceat(cost[own.values], own.offsets[some])
    return least[row]
