"""Links between cores and memory, and which of them a transfer crosses."""

from __future__ import annotations

from functools import cached_property

from triosim.core.dataclass import dataclass
from triosim.tiles.graph import TileGraph

MEMORY = -1
"""The memory, where a core is asked for."""


@dataclass(frozen=True)
class CoreLinks:
    """The links of a graph's cores, and the routes over them, each worked out when it is first asked for: of a
    thousand cores most pairs never talk.

    Attributes:
        graph: whose cores they are.
        names: of the links; the first is the memory's.
        bandwidth: bytes in a cycle, None is unlimited.
        out, into: of each core: the links by which it sends and receives.
        inner: of a mesh, the links between neighbours.
    """

    graph: TileGraph
    names: tuple[str, ...]
    bandwidth: tuple[float | None, ...]
    out: list[list[int]]
    into: list[list[int]]
    inner: dict[tuple[int, int], list[int]]

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[tuple[int, ...], float]]:
        """Routes that were asked for."""
        return {}

    def route(self, source: int, target: int) -> tuple[tuple[int, ...], float]:
        """Links from one core, or the memory (:data:`MEMORY`), to another, and the cycles until the first byte."""
        found = self._known.get((source, target))
        if found is None:
            found = self._known[source, target] = self._route(source, target)
        return found

    def _route(self, source: int, target: int) -> tuple[tuple[int, ...], float]:
        network = self.graph.network
        path = [0] if source == MEMORY else []
        begin, end = (network.memory_at if place == MEMORY else place for place in (source, target))
        steps = _steps(begin, end, network.columns) if network.topology == "mesh" else [(source, target)]
        path += self.out[source] if source != MEMORY else []
        path += [one for step in steps for one in self.inner.get(step, [])]
        path += self.into[target] if target != MEMORY else []
        path += [0] if target == MEMORY else []
        latency = len(steps) * network.latency + (self.graph.memory.latency if 0 in path else 0.0)
        return tuple(dict.fromkeys(path)), latency


def links(graph: TileGraph) -> CoreLinks:
    """All links: the memory's, and those between cores."""
    network, memory, count = graph.network, graph.memory, len(graph.cores)
    names, bandwidth = ["memory"], [memory.bandwidth]
    inner: dict[tuple[int, int], list[int]] = {}

    def link(name: str) -> int:
        names.append(name)
        bandwidth.append(network.bandwidth)
        return len(names) - 1

    if network.topology == "bus":
        bus = link("bus")
        return CoreLinks(graph, tuple(names), tuple(bandwidth), [[bus]] * count, [[]] * count, {})
    out = [[link(f"{name} out")] for name in graph.cores]
    into = [[link(f"{name} in")] for name in graph.cores]
    if network.topology == "mesh":
        inner = {
            (a, b): [link(f"{graph.cores[a]} > {graph.cores[b]}")]
            for a in range(count) for b in _beside(a, network.columns, count)
        }  # fmt: skip
    return CoreLinks(graph, tuple(names), tuple(bandwidth), out, into, inner)


def _beside(place: int, columns: int, count: int) -> list[int]:
    """Places next to one in a grid."""
    row, column = divmod(place, columns)
    found = [(row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column)]
    return [r * columns + c for r, c in found if r >= 0 and 0 <= c < columns and r * columns + c < count]


def _steps(source: int, target: int, columns: int) -> list[tuple[int, int]]:
    """From place to place along the row, then along the column."""
    (row, column), (last_row, last) = divmod(source, columns), divmod(target, columns)
    steps = []
    while column != last:
        onward = column + (1 if last > column else -1)
        steps.append((row * columns + column, row * columns + onward))
        column = onward
    while row != last_row:
        onward = row + (1 if last_row > row else -1)
        steps.append((row * columns + column, onward * columns + column))
        row = onward
    return steps
