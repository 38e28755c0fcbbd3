"""Pairs of nodes whose only best route is the link between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.hardware.system import System, Tier

# The cost of an edge without its hop, so that the cost of two can be added and compared at once.
_LATENCY_BITS, _SCALE_OUT, _HOST = 56, 1 << 57, 1 << 60


def next_door(
    system: System, latency: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The link from each source to the target beside it where no other route is as good, else -1.

    Every other route has an edge that leaves the source and another that enters the target; where the cheapest of
    those together cost no less than the link, it has the fewest hops of the best.  Of several such links it is the
    lowest of the cheapest.

    Args:
        system: the machine.
        latency: of each edge in picoseconds.
        source, target: nodes, shape ``(pairs,)``.
    """
    none = np.full(len(source), -1, np.int64)
    if not len(source) or latency.max(initial=0) >> _LATENCY_BITS:
        return none
    tiers = np.array([{Tier.SCALE_OUT: _SCALE_OUT, Tier.HOST: _HOST}.get(tier, 0) for tier in Tier], np.int64)
    cost = tiers[system.edge_tier] + latency
    starts = np.unique(source)
    edges = system.leaving.take(starts).values
    key = system.edge_source[edges] * np.int64(system.nodes) + system.edge_target[edges]
    order = np.lexsort((edges, cost[edges], key))
    key, edges = key[order], edges[order]
    wanted = source * system.nodes + target
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    if not len(key):
        return none
    linked = key[at] == wanted
    bound = _least(system.leaving, cost, source) + _least(system.entering, cost, target)
    return np.where(linked & (cost[edges[at]] <= bound), edges[at], -1)


def _least(edges: Ragged, cost: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least cost among the edges of each node; 0 where there are none."""
    different, row = np.unique(nodes, return_inverse=True)
    own = edges.take(different)
    some = np.flatnonzero(own.lengths())
    least = np.zeros(len(different), np.int64)
    if len(some):
        least[some] = np.minimum.reduceat(cost[own.values], own.offsets[some])
    return least[row]
