"""Rings through devices that are linked to each other directly, with no switch: as many at once as the links allow.

Every ring passes each device once and uses one link into it and one out of it.  Full-duplex links carry a ring and the
same ring backwards.  NCCL and RCCL search their rings in such machines likewise (DGX-1, MI300X).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MOST_MEMBERS = 16
"""Larger groups are not searched: the number of cycles grows without bound."""

_BUDGET = 20_000
"""Steps after which the best rings found so far are taken."""


def disjoint_rings(links: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Rings that share no link, forwards and backwards.

    Args:
        links: number of full-duplex links between each two members, symmetric, shape ``(members, members)``.

    Returns:
        the members of each ring, in its order; none if no ring passes through all.
    """
    if len(links) == 2:
        return ((0, 1),) * int(links[0, 1])
    search = _CycleSearch(np.array(links, np.int64))
    search.extend(())
    forward = search.best
    return tuple(ring for cycle in forward for ring in (cycle, (cycle[0], *cycle[:0:-1])))


def widest_rings(bandwidth: NDArray[np.float64]) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Rings over links of any bandwidth, forwards and backwards, and what they carry together.

    A link carries one ring for each time that a unit goes into its bandwidth, and all rings carry as much as the one on
    the fullest link.  The units tried are the narrowest link, and every other in one to four parts, so that a link that
    is a little less than twice as wide as another still carries two rings.

    Args:
        bandwidth: between each two members, symmetric, 0 for no link, shape ``(members, members)``.
    """
    widths = np.unique(bandwidth[bandwidth > 0])
    if not len(widths):
        return (), 0.0
    units = [widths[0], *(width / parts for width in widths[1:_WIDTHS] for parts in range(1, _PARTS + 1))]
    best: tuple[tuple[int, ...], ...] = ()
    most = 0.0
    for unit in dict.fromkeys(unit for unit in units if unit > widths[0] / 2):
        rings = disjoint_rings(np.floor(bandwidth / unit + 1e-6).astype(np.int64))
        if not rings:
            continue
        used = np.zeros(bandwidth.shape)
        for ring in rings:
            np.add.at(used, (ring, (*ring[1:], ring[0])), 1)
        carried = len(rings) * float((bandwidth[used > 0] / used[used > 0]).min())
        if carried > most * (1 + 1e-9):
            best, most = rings, carried
    return best, most


_WIDTHS, _PARTS = 6, 4


class _CycleSearch:
    """Takes one cycle after another out of the links that are left, and goes back where that leads to few."""

    def __init__(self, links: NDArray[np.int64]) -> None:
        self.left = links.copy()
        np.fill_diagonal(self.left, 0)
        self.best: tuple[tuple[int, ...], ...] = ()
        self.most = int(self.left.sum(axis=1).min()) // 2
        self.steps = 0

    def extend(self, found: tuple[tuple[int, ...], ...]) -> None:
        if len(found) > len(self.best):
            self.best = found
        for cycle in self._cycles([0]):
            if len(self.best) == self.most or self.steps > _BUDGET:
                return
            if len(found) + int(self.left.sum(axis=1).min()) // 2 <= len(self.best):
                return
            self._take(cycle, 1)
            self.extend((*found, cycle))
            self._take(cycle, -1)

    def _cycles(self, path: list[int]) -> Iterator[tuple[int, ...]]:
        """Cycles through all members that begin with a path, links of which most are left first."""
        self.steps += 1
        if self.steps > _BUDGET:
            return
        row = self.left[path[-1]]
        if len(path) == len(self.left):
            if row[path[0]] > 0 and path[1] < path[-1]:  # each once, not backwards too
                yield tuple(path)
            return
        ahead = [m for m in np.argsort(-row, kind="stable").tolist() if row[m] > 0 and m not in path]
        for member in ahead:
            yield from self._cycles([*path, member])

    def _take(self, cycle: tuple[int, ...], times: int) -> None:
        here, there = np.array(cycle), np.roll(cycle, -1)
        np.subtract.at(self.left, (here, there), times)
        np.subtract.at(self.left, (there, here), times)
