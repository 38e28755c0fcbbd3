"""Parts of a System that are alike, so that what holds between two of them holds between all such two.

A cluster is many copies of one server around a few switches.  Take those switches away (the *core*) and it falls into
*parts*.  Parts with the same nodes and edges inside and the same edges to the same nodes of the core are of one
*kind*: exchanging one for another changes nothing in the graph, so a route between two parts is a route between any two
of the same kinds, with each edge replaced by the one in the same place.

A System can be taken apart at several levels: servers around leaf switches and spines, then groups of servers under one
leaf switch around the spines alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.hardware.system import System
from triosim.network.route_batch import RouteBatch

CORE = -1
"""The part of a node that belongs to none."""

_NEW = -2
_FACTOR = np.int64(0x5851F42D4C957F2D)
"""An odd number whose powers tell columns apart: the multiplier of Knuth's MMIX generator (TAOCP volume 2, 3.3.4)."""


@dataclass(frozen=True)
class SystemDecomposition:
    """Decomposition of a System into parts; no edge joins two of them.

    Attributes:
        part: of each node, or :data:`CORE`, int64.
        code: of each node: the same number for the nodes in the same place of parts of one kind, int64.
        nodes: of each part, lowest first.
        place: of each node in ``nodes`` of its part, int64.
        edge_part: part of each edge, :data:`CORE` where both ends are of the core, int64.
        edges: of each part, lowest first, those from and to the core among them.
        edge_place: of each edge in ``edges`` of its part, int64.
        core_last: whether all nodes of the core have higher numbers than all others.
    """

    part: NDArray[np.int64]
    code: NDArray[np.int64]
    nodes: Ragged
    place: NDArray[np.int64]
    edge_part: NDArray[np.int64]
    edges: Ragged
    edge_place: NDArray[np.int64]
    core_last: bool

    def alike(
        self, source: NDArray[np.int64], target: NDArray[np.int64], which: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which pairs of nodes are alike: in the same places of parts of the same kinds, or both in one part.

        Args:
            source, target: the nodes.
            which: pairs are not alike if they differ in this.

        Returns:
            row of the first pair of each sort, and for each pair the number of its sort.
        """
        codes = int(self.code.max(initial=0)) + 1
        within = (self.part[source] == self.part[target]) & (self.part[source] != CORE)
        key = (self.code[source] * codes + self.code[target]) * 2 + within
        if which.any():
            _, key = np.unique(key, return_inverse=True)
            different, way = np.unique(which, return_inverse=True)
            key = key * len(different) + way
        _, first, sort = np.unique(key, return_index=True, return_inverse=True)
        return first, sort

    def hold(self, walks: RouteBatch) -> NDArray[np.bool_]:
        """Whether each walk would be chosen between all pairs that are alike.

        Choices are by the lowest node, so they are the same if the nodes compared stand in the same order in each such
        pair: two of one part or of the core, or one of a part and one of the core where the core comes last.
        """
        ends = self.part[walks.source], self.part[walks.target]
        holds = np.ones(len(walks.source), np.bool_)
        row = walks.edges.rows()
        holds[row[~_among(self.edge_part[walks.edges.values], ends, row)]] = False
        row = walks.forks.rows()
        lower, higher = self.part[walks.forks.values], self.part[walks.others]
        ordered = lower == higher
        if self.core_last:
            ordered |= (lower == CORE) | (higher == CORE)
        holds[row[~(ordered & _among(lower, ends, row) & _among(higher, ends, row))]] = False
        return holds

    def carried(
        self, walks: RouteBatch, sort: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> RouteBatch:
        """Walks between other pairs of nodes that are alike.

        Args:
            walks: one of each sort.
            sort: of each pair, its row in ``walks``.
            source, target: the pairs.
        """
        ends = (self.part[walks.source], self.part[walks.target])
        into = (self.part[source], self.part[target])
        edges = _moved(walks.edges, self.edge_part, self.edge_place, self.edges, ends, sort, into)
        forks, others = (
            _moved(Ragged(nodes, walks.forks.offsets), self.part, self.place, self.nodes, ends, sort, into)
            for nodes in (walks.forks.values, walks.others)
        )
        return RouteBatch(source, target, edges, forks, others.values)


def _among(part: NDArray[np.int64], ends: tuple[NDArray, NDArray], row: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each part is the core or that of one end of the walk in its row."""
    among: NDArray[np.bool_] = (part == CORE) | (part == ends[0][row]) | (part == ends[1][row])
    return among


def _moved(
    things: Ragged,
    part: NDArray[np.int64],
    place: NDArray[np.int64],
    members: Ragged,
    ends: tuple[NDArray, NDArray],
    sort: NDArray[np.int64],
    into: tuple[NDArray, NDArray],
) -> Ragged:
    """Nodes or edges of walks, each replaced by the one in the same place of the part to which its part is moved.

    Args:
        things: of one walk of each sort.
        part, place: of each thing.
        members: things of each part.
        ends: parts of source and target of each walk.
        sort: row of ``things`` for each new row.
        into: parts of source and target of each new row.
    """
    if not len(things.values):
        return Ragged.empty(len(sort), things.values.dtype)
    row, own = things.rows(), part[things.values]
    whose = np.zeros(len(own), np.int64)  # 1 of the source's part, 2 of the target's, 0 of neither
    for number, end in enumerate(ends):
        whose[(own != CORE) & (own == end[row])] = number + 1
    where = np.where(whose > 0, place[things.values], things.values)
    lengths = things.lengths()
    offsets = np.zeros(len(sort) + 1, np.int64)
    np.cumsum(lengths[sort], out=offsets[1:])
    moved = np.empty(int(offsets[-1]), things.values.dtype)
    for length in distinct(lengths).tolist():  # walks of one length are a table
        if not length:
            continue
        rows = np.flatnonzero(lengths[sort] == length)
        shift = np.zeros((3, len(rows)), np.int64)
        for number, end in enumerate(into):
            shift[number + 1] = members.offsets[end[rows]]
        columns = things.offsets[sort[rows]]
        for step in range(length):
            at = columns + step
            move, found = whose[at], where[at]
            found += shift[move, np.arange(len(rows))]
            own = np.flatnonzero(move)
            found[own] = members.values[found[own]]
            moved[offsets[rows] + step] = found
    return Ragged(moved, offsets)


def levels(system: System, cost: NDArray[np.integer]) -> list[SystemDecomposition]:
    """A System taken apart, finest first: servers (devices where there is one server), then groups of them.

    Args:
        system: the machine.
        cost: of each edge, by which parts are compared.
    """
    part: NDArray[np.int64] | None = _grown(system)
    found = []
    while part is not None:
        found.append(_parts(system, cost, part))
        part = _grouped(system, found[-1])
    return found


def _parts(system: System, cost: NDArray[np.integer], part: NDArray[np.int64]) -> SystemDecomposition:
    count = int(part.max(initial=CORE)) + 1
    edge_part = np.maximum(part[system.edge_source], part[system.edge_target])
    nodes, place = _rows(part, count)
    edges, edge_place = _rows(edge_part, count)
    core = part == CORE
    own = np.where(core, np.arange(system.nodes) + int(nodes.lengths().max(initial=0)), place)
    kind = _kinds(nodes.lengths(), edges, (own[system.edge_source], own[system.edge_target], cost))
    first = np.zeros(
        count + 1, np.int64
    )  # the code of the first node of each kind, which is numbered by its first part
    first[1:] = np.cumsum(np.where(kind == np.arange(count), nodes.lengths(), 0))
    code = np.where(core, np.arange(system.nodes) + first[-1], place)
    code[~core] += first[kind[part[~core]]]
    inside, outside = np.flatnonzero(~core), np.flatnonzero(core)
    core_last = not len(inside) or not len(outside) or bool(inside[-1] < outside[0])
    return SystemDecomposition(part, code, nodes, place, edge_part, edges, edge_place, core_last)


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


def _grouped(system: System, parts: SystemDecomposition) -> NDArray[np.int64] | None:
    """Part of each node where only what is next to no part is core; None where all is core then, or one part."""
    part = parts.part
    near = np.zeros(system.nodes, np.bool_)
    near[system.edge_source[parts.edge_part != CORE]] = near[system.edge_target[parts.edge_part != CORE]] = True
    core = (part == CORE) & ~near
    if not core.any():
        return None
    start = np.where(part == CORE, len(parts.edges) + np.arange(system.nodes), part)
    inside = ~(core[system.edge_source] | core[system.edge_target]) & (
        start[system.edge_source] != start[system.edge_target]
    )
    count = len(parts.edges) + system.nodes
    pairs = distinct(start[system.edge_source[inside]] * count + start[system.edge_target[inside]])
    joined = np.stack(np.divmod(pairs, count))
    group = np.arange(count)
    while True:
        lowest = group.copy()
        for a, b in (joined, joined[::-1]):
            np.minimum.at(lowest, a, group[b])
        lowest = lowest[lowest]
        if (lowest == group).all():
            break
        group = lowest
    own = group[start[~core]]
    names = distinct(own)
    if len(names) < 2:
        return None
    found = np.full(system.nodes, CORE, np.int64)
    found[~core] = np.searchsorted(names, own)
    return found


def _rows(row: NDArray[np.int64], rows: int) -> tuple[Ragged, NDArray[np.int64]]:
    """Things by the row that they are in (below 0: in none), lowest first; and the place of each in its row."""
    order = np.argsort(row, kind="stable")
    order = order[np.searchsorted(row[order], 0) :]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[order], minlength=rows), out=offsets[1:])
    place = np.full(len(row), -1, np.int64)
    place[order] = np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))
    return Ragged(order, offsets), place


def _kinds(nodes: NDArray[np.int64], edges: Ragged, columns: tuple[NDArray[np.integer], ...]) -> NDArray[np.int64]:
    """For each part the first part that is like it: as many nodes, and the same columns edge by edge."""
    kind = np.arange(len(edges))
    sizes = np.stack([nodes, edges.lengths()], axis=1)
    for size in np.unique(sizes, axis=0, return_index=True)[0]:
        alike = np.flatnonzero((sizes == size).all(axis=1))
        rows = edges.values[edges.offsets[alike, None] + np.arange(size[1])]
        facts = np.concatenate([column[rows] for column in columns], axis=1)
        if not facts.shape[1]:
            kind[alike] = alike[0]
            continue
        first, same = _same_rows(np.ascontiguousarray(facts, np.int64))
        kind[alike] = alike[first[same]]
    return kind


def _same_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first of each distinct row, and for each row the number of its own among them."""
    factors = np.cumprod(np.full(rows.shape[1], _FACTOR))  # wraps around, as the sums below
    _, first, same = np.unique(rows @ factors, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    if not all(np.array_equal(column, column[first[same]]) for column in rows.T):  # two rows with the same sum
        whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
        _, first, same = np.unique(whole, return_index=True, return_inverse=True)
    return first, same.reshape(-1)
