"""Cores for tiles that name none: each in its turn goes where it would be done first.

The guess of when that is knows the time of what was placed before, transfers over links of their own and the memory
read by one tile after another; what shares a link when it is played may end later than guessed.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.tiles.graph import Tile, TileGraph, in_order
from triosim.tiles.interconnect import MEMORY, CoreLinks, links


def assigned(graph: TileGraph) -> TileGraph:
    """The same with a core for every tile; of equally early ones the first.

    Raises:
        InputError: tiles wait for each other in a circle.
    """
    if all(tile.core is not None for tile in graph.tiles):
        return graph
    guess = _EstimatedFinish(graph)
    cores = {row: guess.place(graph.tiles[row], row) for row in in_order(graph.tiles)}
    tiles = tuple(replace(tile, core=cores[row]) for row, tile in enumerate(graph.tiles))
    return replace(graph, tiles=tiles)


class _EstimatedFinish:
    """When everything that was placed is thought to be done, in cycles."""

    def __init__(self, graph: TileGraph) -> None:
        self.graph, self.links = graph, links(graph)
        self.kept = graph.kept_bytes
        self.free = [0.0] * len(graph.cores)
        self.memory = 0.0
        self.done: dict[int, float] = {}
        self.core: dict[int, int] = {}
        self.there: set[tuple[int, str]] = set()

    def place(self, tile: Tile, row: int) -> int:
        """The core on which a tile would be done first; the tile is placed there."""
        choices = range(len(self.free)) if tile.core is None else (tile.core,)
        ends = {core: self._end(tile, core) for core in choices}
        core = min(ends, key=lambda one: (ends[one][0], one))
        self.free[core], self.memory = ends[core]
        self.done[row], self.core[row] = ends[core][0], core
        self.there.update((core, name) for name in tile.keeps)
        return core

    def _end(self, tile: Tile, core: int) -> tuple[float, float]:
        """When it would be done on a core, and when the memory would be free again."""
        begin, memory = self.free[core], self.memory
        begin = max([begin, *(self.done[other] for other in tile.after)])
        size = tile.reads + sum(self.kept[name] for name in tile.keeps if (core, name) not in self.there)
        if size:
            memory = max([memory, *(self.done[other] for other in tile.after)]) + self._moving(MEMORY, core, size)
            begin = max(begin, memory)
        for other, sent in tile.sources:
            begin = max(begin, self.done[other] + self._moving(self.core[other], core, sent))
        return begin + tile.cycles, memory

    def _moving(self, source: int, target: int, size: int) -> float:
        return moving(self.links, source, target, size) if source != target else 0.0


def moving(links: CoreLinks, source: int, target: int, size: int) -> float:
    """Cycles of a transfer that shares no link."""
    crossed, latency = links.route(source, target)
    limits = [limit for limit in (links.bandwidth[link] for link in crossed) if limit is not None]
    return latency + (size / min(limits) if limits else 0.0)
