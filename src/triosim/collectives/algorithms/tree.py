"""Double binary tree: two trees over the servers, each carrying half of the buffer up to its root and down again.

Every server but one is an inner node of one tree and a leaf of the other, so that together they use the full bandwidth
(Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing
35(12), 2009), at a latency that grows with the logarithm of the servers.  Inside a server the members form a chain, as
in NCCL, and there is a pair of trees for every two members, each through another member's way out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.algorithms.ring import CHUNK_BYTES
from triosim.collectives.group import Group, blocks_of
from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.engine.graph import ALL, Pattern

PIECES = 4
"""Pieces of what streams through a tree.  A piece is passed on while it is still coming in, one piece behind at most,
so that thousands of chunks need not be followed one by one."""

LEAST_CHUNK_BYTES = 32 * 2**10
"""Below this NCCL cuts the chunks of a tree no smaller (``src/enqueue.cc``)."""


def parents(nodes: int, mirrored: bool) -> NDArray[np.int64]:
    """Parent of each node of a binary tree over ``0 .. nodes - 1`` (-1 for the root), shape ``(nodes,)``.

    Leaves are the odd numbers, and all nodes of a subtree follow each other.  The mirrored tree counts from the other
    end, or from one further where that would make leaves of leaves again.
    """
    node = np.arange(nodes, dtype=np.int64)
    bit = node & -node  # the lowest one: the height of a node
    up = (node ^ bit) | (bit << 1)
    up = np.where(up >= nodes, node ^ bit, up)
    up[0] = -1
    if not mirrored:
        return up
    if nodes % 2 == 0:
        other = nodes - 1 - up[::-1]
        return np.where(up[::-1] < 0, -1, other)
    before = (node - 1) % nodes
    return np.where(up[before] < 0, -1, (up[before] + 1) % nodes)


def heights(parent: NDArray[np.int64]) -> int:
    """Hops from the deepest node to the root."""
    deepest, at = 0, np.arange(len(parent))
    while (at >= 0).any():
        at = np.where(at >= 0, parent[at], -1)
        deepest += 1
    return deepest - 1


@registered
class Tree(Algorithm):
    """All-reduce along trees: up to the root and down again.

    The buffer streams through all edges at once; the last chunk of it goes from edge to edge, each time when it has
    come, which is what filling the pipeline takes.
    """

    kinds = ("all_reduce",)
    placed = True

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`."""
        return self._sent(_wired(members, _servers(group)), size)

    def busiest(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.busiest`: of hundreds of thousands of edges a handful."""
        return self._sent(_busiest(members, _servers(group)), size)

    @staticmethod
    def _sent(wired: _TreePattern, size: int) -> CollectiveSchedule:
        share = part(size, wired.trees)
        tail = min(_chunk(share, wired.depth), share)
        return CollectiveSchedule(wired.pattern(part(share - tail, PIECES), tail), tuple(range(wired.members)))


def _servers(group: Group | None) -> bytes:
    """The server of each member, int32; nothing where all are in one."""
    return b"" if group is None else np.asarray(group.server, np.int32).tobytes()


@kept(16)
def _busiest(members: int, server: bytes) -> _TreePattern:
    """Of the trees that :func:`_wired` makes, the edges of two members: one that sends most in its server, and one that
    sends most to others.  Nothing is said of what they wait for."""
    wired = _wired(members, server)
    if not len(wired.source):
        return wired
    place = np.frombuffer(server, np.int32) if server else np.zeros(members, np.int32)
    across = place[wired.source] != place[wired.target]
    sends = [np.bincount(wired.source[rows], minlength=members) for rows in (across, ~across)]
    own = np.isin(wired.source, [sent.argmax() for sent in sends])
    none = np.empty(0, np.int64)
    return replace(wired, source=wired.source[own], target=wired.target[own], edge=none, needed=none)


@kept(16)
def _wired(members: int, server: bytes) -> _TreePattern:
    """The trees over members, whose servers are int32 as bytes; all are in one where none are given."""
    blocks = blocks_of(Group(np.frombuffer(server, np.int32)) if server else None, members)
    width = min(len(b) for b in blocks)
    trees = max(width, 2) if len(blocks) > 1 else 1
    above = [_member_tree(blocks, number % width, number % 2 == 1) for number in range(trees)]
    return _TreePattern.of(above, members)


def _chunk(share: int, depth: int) -> int:
    """Bytes of a chunk: as large as may be, as long as the tree is filled several times."""
    chunk = CHUNK_BYTES
    while chunk > LEAST_CHUNK_BYTES and share < 8 * depth * chunk:
        chunk //= 2
    return chunk


def _member_tree(blocks: list[NDArray[np.int64]], way: int, mirrored: bool) -> NDArray[np.int64]:
    """Parent of each member: the tree over servers goes through the ``way``-th member of each, and the others hang
    on it in a chain."""
    above = np.full(sum(len(b) for b in blocks), -1, np.int64)
    heads = np.array([block[way % len(block)] for block in blocks])
    for length in {len(block) for block in blocks} - {1}:
        alike = np.stack([block for block in blocks if len(block) == length])
        chain = np.roll(alike, -way, axis=1)
        above[chain[:, 1:]] = chain[:, :-1]
    up = parents(len(blocks), mirrored)
    above[heads] = np.where(up < 0, -1, heads[up])
    return above


@dataclass(frozen=True)
class _TreePattern:
    """Trees over members, whatever is sent: ``e`` edges, for each member of each tree but the root one up and one down.

    Attributes:
        members: members of the group.
        trees: number of trees.
        depth: hops from the deepest member of any to its root.
        source, target: of each edge, shape ``(e,)``.
        edge, needed: an edge, and one that it waits for.
    """

    members: int
    trees: int
    depth: int
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    edge: NDArray[np.int64]
    needed: NDArray[np.int64]

    @staticmethod
    def of(above: list[NDArray[np.int64]], members: int) -> _TreePattern:
        """From the parent of each member in each tree."""
        child = [np.flatnonzero(parent >= 0) for parent in above]
        source, target, needed, of = [], [], [], []
        first = 0
        for parent, low in zip(above, child, strict=True):
            high, up = parent[low], np.full(members, -1, np.int64)
            up[low] = first + np.arange(len(low))
            down = up + len(low)
            source += [low, high]
            target += [high, low]
            inner, top = parent[high] >= 0, low[parent[high] < 0]
            needed += [up[low[inner]], down[high[inner]], np.tile(up[top], len(top))]  # the root sends what all its
            of += [up[high[inner]], down[low[inner]], np.repeat(down[top], len(top))]  # children have sent up
            first += 2 * len(low)
        return _TreePattern(
            members, len(above), max(heights(a) for a in above), np.concatenate(source).astype(np.int32),
            np.concatenate(target).astype(np.int32), np.concatenate(of), np.concatenate(needed),
        )  # fmt: skip

    def pattern(self, piece: int, tail: int) -> Pattern:
        """First the stream goes over all edges, then the tail.

        Args:
            piece: bytes of each piece of the stream; 0 for no stream.
            tail: bytes of the last chunk.
        """
        edges = len(self.source)
        if not piece or not edges:
            source, target, needs, lag = self._tail
            return Pattern(
                self.members, source, target, np.full(edges, tail, np.int64), np.ones(edges, np.int32), needs, lag,
                np.zeros(edges, np.int64),
            )  # fmt: skip
        source, target, needs, lag = self._streamed
        return Pattern(
            self.members, source, target, np.repeat([piece, tail], edges), np.repeat(_COUNTS, edges), needs, lag,
            np.zeros(2 * edges, np.int64),
        )  # fmt: skip

    @cached_property
    def _tail(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Ragged, NDArray[np.int32]]:
        """Source, target, needs and lags of the edges that the last chunk takes."""
        needs, order = _by_edge(self.edge, self.needed, len(self.source))
        return self.source, self.target, needs, np.zeros(len(order), np.int32)

    @cached_property
    def _streamed(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Ragged, NDArray[np.int32]]:
        """The same of those that the stream takes, then of those that the last chunk takes, each after its stream."""
        first, own = len(self.source), np.arange(len(self.source))
        edge = np.concatenate([self.edge, self.edge + first, own + first])
        other = np.concatenate([self.needed, self.needed + first, own])
        waits = len(self.edge)
        lag = np.concatenate([np.ones(waits, np.int32), np.zeros(waits, np.int32), np.full(first, ALL, np.int32)])
        needs, order = _by_edge(edge, other, 2 * first)
        return np.tile(self.source, 2), np.tile(self.target, 2), needs, lag[order]


def _by_edge(edge: NDArray[np.int64], needed: NDArray[np.int64], edges: int) -> tuple[Ragged, NDArray[np.int64]]:
    """What each edge needs, and the order in which that was given."""
    order = np.argsort(edge, kind="stable")
    offsets = np.searchsorted(edge[order], np.arange(edges + 1)).astype(np.int64)
    return Ragged(needed[order].astype(np.int32), offsets), order


_COUNTS = np.array([PIECES, 1], np.int32)
