"""Routes within a scale-up network: breadth first from many targets at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.hardware.system import System, Tier
from triosim.network.route_batch import RouteBatch

_NEIGHBOURS = 16
"""Where nodes have more, a search from both ends looks at fewer of them."""

_ENTRIES = 1 << 24
"""Distances held at once."""

_FAR = int(np.iinfo(np.int16).max)


@dataclass(frozen=True)
class ScaleUpRoutes:
    """Shortest routes over the edges of tier SCALE_UP of a System, as in a torus.

    Nodes that are joined by such edges are best joined by the fewest of them.

    Attributes:
        there: neighbours of each node, lowest first, filled up with a node that does not exist,
            shape ``(nodes + 1, most)``.
        over: the lowest edge to each.
    """

    there: NDArray[np.int64]
    over: NDArray[np.int64]

    @staticmethod
    def of(system: System) -> ScaleUpRoutes | None:
        """The hops of a System; None if it has none or a node has too many."""
        edges = np.flatnonzero(system.edge_tier == Tier.SCALE_UP)
        if not len(edges):
            return None
        key = system.edge_source[edges] * np.int64(system.nodes) + system.edge_target[edges]
        _, first = np.unique(key, return_index=True)  # sorted by node and neighbour, the lowest edge of each pair
        edges = edges[first]
        source = system.edge_source[edges]
        counts = np.bincount(source, minlength=system.nodes)
        if counts.max() > _NEIGHBOURS:
            return None
        column = np.arange(len(edges)) - np.repeat(np.cumsum(counts) - counts, counts)
        there = np.full((system.nodes + 1, counts.max()), system.nodes)
        over = np.full_like(there, -1)
        there[source, column], over[source, column] = system.edge_target[edges], edges
        return ScaleUpRoutes(there, over)

    def walks(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[NDArray[np.int64], RouteBatch]:
        """The lowest of the best routes, where edges of tier SCALE_UP lead from source to target.

        Returns:
            rows of the pairs for which they do, and the walks between those.
        """
        targets, column = np.unique(target, return_inverse=True)
        width = max(1, _ENTRIES // len(self.there))
        rows, walks = [np.zeros(0, np.int64)], [_collected(source[:0], target[:0], [], [])]
        for start in range(0, len(targets), width):
            some = np.flatnonzero((column >= start) & (column < start + width))
            found = self._walked(source[some], target[some], targets[start : start + width], column[some] - start)
            rows.append(some[found[0]])
            walks.append(found[1])
        return np.concatenate(rows), RouteBatch.joined(walks)

    def _walked(
        self,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        targets: NDArray[np.int64],
        column: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], RouteBatch]:
        away = self._distances(targets, source, column)
        led = np.flatnonzero(away[source, column] < _FAR)
        source, target, column = source[led], target[led], column[led]
        steps, forks = [], []
        row = np.flatnonzero(source != target)
        here = source[row]
        while len(row):
            there = self.there[here]
            nearer = away[there, column[row, None]] == away[here, column[row]][:, None] - 1
            chosen = nearer.argmax(axis=1)
            steps.append((row, self.over[here, chosen]))
            here = self.there[here, chosen]
            other = nearer.copy()
            other[np.arange(len(row)), chosen] = False
            at, which = np.nonzero(other)
            forks.append((row[at], here[at], there[at, which]))
            going = here != target[row]
            row, here = row[going], here[going]
        return led, _collected(source, target, steps, forks)

    def _distances(
        self, targets: NDArray[np.int64], source: NDArray[np.int64], column: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        """Hops from each node to each target, as far out as the sources are; shape ``(nodes + 1, targets)``."""
        away = np.full((len(self.there), len(targets)), _FAR, np.int16)
        away[targets, np.arange(len(targets))] = 0
        ring = away == 0
        for distance in range(1, _FAR):
            if not (away[source, column] == _FAR).any():
                break
            wider = np.zeros_like(ring)
            for neighbour in self.there.T:
                wider |= ring[neighbour]
            wider &= away == _FAR
            wider[-1] = False  # the node that does not exist
            if not wider.any():
                break
            away[wider] = distance
            ring = wider
        return away


def _collected(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    steps: list[tuple[NDArray, NDArray]],
    forks: list[tuple[NDArray, NDArray, NDArray]],
) -> RouteBatch:
    """Walks from what was found step by step, each time for the rows that were still on their way."""
    none = np.zeros(0, np.int64)
    row, edge = (np.concatenate([none, *column]) for column in (zip(*steps, strict=True) if steps else ((), ())))
    order, edges = _rows(row, len(source))
    fork_row, lower, higher = (
        np.concatenate([none, *column]) for column in (zip(*forks, strict=True) if forks else ((), (), ()))
    )
    fork_order, forked = _rows(fork_row, len(source))
    return RouteBatch(
        source,
        target,
        Ragged(edge[order].astype(np.int32), edges),
        Ragged(lower[fork_order], forked),
        higher[fork_order],
    )


def _rows(row: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order that brings things of a row together, and where each row begins."""
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    return np.argsort(row, kind="stable"), offsets
