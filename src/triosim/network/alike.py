"""Parts of a System that are alike, so that what holds between two of them holds between all such two.

A cluster is many copies of one server around a few switches.  Take those switches away (the *core*) and it falls into
*parts*.  Parts with the same nodes and edges inside and the same edges to the same nodes of the core are of one
*kind*: exchanging one for another changes nothing in the graph, so a route between two parts is a route between any two
of the same kinds, with each edge replaced by the one in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.hardware.system import System

CORE = -1
"""The part of a node that belongs to none."""

_NEW = -2


@dataclass(frozen=True)
class Walk:
    """A route and how it was chosen.

    Attributes:
        source, target: its ends.
        edges: in order.
        forks: ``(node taken, node passed over)`` wherever an equal route went on to another node.
    """

    source: int
    target: int
    edges: tuple[int, ...]
    forks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Parts:
    """A System taken apart.  No edge joins two parts.

    Attributes:
        part: of each node, or :data:`CORE`, int64.
        code: of each node: the same number for the nodes in the same place of parts of one kind, int64.
        edge_part: part of each edge, :data:`CORE` where both ends are of the core, int64.
        edge_place: place of each edge in ``edges`` of its part, int64.
        edges: of each part, lowest first, those from and to the core among them.
        core_last: whether all nodes of the core have higher numbers than all others.
    """

    part: NDArray[np.int64]
    code: NDArray[np.int64]
    edge_part: NDArray[np.int64]
    edge_place: NDArray[np.int64]
    edges: Ragged
    core_last: bool

    def alike(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Which pairs of nodes are alike: in the same places of parts of the same kinds, or both in one part.

        Returns:
            row of the first pair of each sort, and for each pair the number of its sort.
        """
        codes = int(self.code.max()) + 1
        within = (self.part[source] == self.part[target]) & (self.part[source] != CORE)
        key = (self.code[source] * codes + self.code[target]) * 2 + within
        _, first, sort = np.unique(key, return_index=True, return_inverse=True)
        return first, sort

    def hold_for_alike(self, walk: Walk) -> bool:
        """Whether the choices of a walk would be the same between all pairs that are alike.

        They are by the lowest node, so they are if the nodes chosen from stand in the same order in each such pair: two
        of one part or of the core, or one of a part and one of the core where the core comes last.
        """
        ends = (int(self.part[walk.source]), int(self.part[walk.target]), CORE)
        if any(int(self.edge_part[edge]) not in ends for edge in walk.edges):
            return False
        forks = ((int(self.part[taken]), int(self.part[other])) for taken, other in walk.forks)
        return all(
            here in ends and there in ends and (here == there or (CORE in (here, there) and self.core_last))
            for here, there in forks
        )

    def carried(self, routes: Ragged, models: tuple[NDArray, NDArray], pairs: tuple[NDArray, NDArray]) -> Ragged:
        """Routes between pairs that are alike.

        Args:
            routes: those between ``models``, a row for each.
            models, pairs: sources and targets.
        """
        row = routes.rows()
        owner, place = self.edge_part[routes.values], self.edge_place[routes.values]
        values = routes.values.copy()
        for model, pair in zip(models, pairs, strict=True):
            mine = (owner != CORE) & (owner == self.part[model][row])
            values[mine] = self.edges.values[self.edges.offsets[self.part[pair][row[mine]]] + place[mine]]
        return Ragged(values, routes.offsets)


def parts_of(system: System, cost: NDArray[np.int64]) -> Parts:
    """The servers of a System, or the devices where there is one server, with all that hangs on no other.

    Args:
        system: the machine.
        cost: of each edge, by which parts are compared.
    """
    part = _grown(system)
    count = int(part.max(initial=CORE)) + 1
    source, target = part[system.edge_source], part[system.edge_target]
    edge_part = np.maximum(source, target)
    nodes, place = _rows(part, count)
    edges, edge_place = _rows(edge_part, count)
    outside = np.where(part == CORE, np.arange(system.nodes) + int(nodes.lengths().max(initial=0)), place)
    start, end = outside[system.edge_source], outside[system.edge_target]
    kind = _kinds(nodes.lengths(), edges, (start, end, cost))
    first = np.zeros(len(kind) + 1, np.int64)  # kinds are numbered by their first part
    first[1:] = np.cumsum(np.where(kind == np.arange(count), nodes.lengths(), 0))
    core = part == CORE
    code = np.where(core, np.arange(system.nodes) + first[-1], place)
    code[~core] += first[kind[part[~core]]]
    least, most = np.flatnonzero(core)[:1], np.flatnonzero(~core)[-1:]
    return Parts(part, code, edge_part, edge_place, edges, not len(least) or not len(most) or least[0] > most[0])


def _grown(system: System) -> NDArray[np.int64]:
    """Part of each node: grown from the devices by one edge at a time until parts meet; where they meet is core."""
    part = np.full(system.nodes, _NEW, np.int64)
    part[: system.devices] = system.device_server if system.servers > 1 else np.arange(system.devices)
    source, target = system.edge_source, system.edge_target
    grown = np.arange(system.devices)
    while len(grown):
        clash = (part[source] >= 0) & (part[target] >= 0) & (part[source] != part[target])
        met = np.zeros(system.nodes, np.bool_)
        met[source[clash]] = met[target[clash]] = True
        part[grown[met[grown]]] = CORE
        new = (part[source] == _NEW) | (part[target] == _NEW)
        source, target = source[new], target[new]
        forth, back = part[source] >= 0, part[target] >= 0
        near = np.concatenate([source[forth], target[back]])
        grown = np.concatenate([target[forth], source[back]])
        part[grown] = part[near]
    return np.maximum(part, CORE)


def _rows(row: NDArray[np.int64], rows: int) -> tuple[Ragged, NDArray[np.int64]]:
    """Things by the row that they are in (below 0: in none), lowest first; and the place of each in its row."""
    order = np.argsort(row, kind="stable")
    order = order[np.searchsorted(row[order], 0) :]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[order], minlength=rows), out=offsets[1:])
    place = np.full(len(row), -1, np.int64)
    place[order] = np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))
    return Ragged(order, offsets), place


def _kinds(nodes: NDArray[np.int64], edges: Ragged, columns: tuple[NDArray[np.int64], ...]) -> NDArray[np.int64]:
    """For each part the first part that is like it: as many nodes, and the same columns edge by edge."""
    kind = np.arange(len(edges))
    sizes = np.stack([nodes, edges.lengths()], axis=1)
    for size in np.unique(sizes, axis=0):
        alike = np.flatnonzero((sizes == size).all(axis=1))
        rows = edges.values[edges.offsets[alike, None] + np.arange(size[1])]
        facts = np.concatenate([column[rows] for column in columns], axis=1)
        if not facts.shape[1]:
            kind[alike] = alike[0]
            continue
        whole = np.ascontiguousarray(facts).view(np.dtype((np.void, facts.itemsize * facts.shape[1])))[:, 0]
        _, first, same = np.unique(whole, return_index=True, return_inverse=True)
        kind[alike] = alike[first[same]]
    return kind
