"""Double binary tree: two trees over the servers, each carrying half of the buffer up to its root and down again.

Every server but one is an inner node of one tree and a leaf of the other, so that together they use the full bandwidth
(Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing
35(12), 2009), at a latency that grows with the logarithm of the servers.  Inside a server the members form a chain, as
in NCCL, and there is a pair of trees for every two members, each through another member's way out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import Algorithm, Schedule, part
from triosim.collectives.algorithms.ring import CHUNK_BYTES
from triosim.collectives.group import Group, blocks_of
from triosim.core.columns import Ragged
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

    def schedule(self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None) -> Schedule:
        """See :meth:`Algorithm.schedule`."""
        blocks = blocks_of(group, members)
        width = min(len(b) for b in blocks)
        trees = max(width, 2) if len(blocks) > 1 else 1
        above = [_member_tree(blocks, number % width, number % 2 == 1) for number in range(trees)]
        share = part(size, trees)
        tail = min(_chunk(share, max(heights(a) for a in above)), share)
        return Schedule(_both_ways(above, members, part(share - tail, PIECES), tail), tuple(range(members)))


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
    sizes = np.array([len(block) for block in blocks])
    for size in np.unique(sizes[sizes > 1]).tolist():
        alike = np.stack([block for block in blocks if len(block) == size])
        chain = np.roll(alike, -way, axis=1)
        above[chain[:, 1:]] = chain[:, :-1]
    up = parents(len(blocks), mirrored)
    above[heads] = np.where(up < 0, -1, heads[up])
    return above


def _both_ways(above: list[NDArray[np.int64]], members: int, piece: int, tail: int) -> Pattern:
    """For each member of each tree but the root an edge up and an edge down, first of the stream, then of the tail.

    Args:
        above: parent of each member in each tree.
        members: members of the group.
        piece: bytes of each piece of the stream; 0 for no stream.
        tail: bytes of the last chunk.
    """
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
    edge, other = np.concatenate(of), np.concatenate(needed)
    lag = np.zeros(len(edge), np.int32)
    sizes, counts = np.full(first, tail, np.int64), np.ones(first, np.int32)
    if piece and first:  # the tail of an edge comes after its stream
        own = np.arange(first)
        lag = np.concatenate([np.ones(len(edge), np.int32), lag, np.full(first, ALL, np.int32)])
        edge, other = np.concatenate([edge, edge + first, own + first]), np.concatenate([other, other + first, own])
        sizes = np.concatenate([np.full(first, piece, np.int64), sizes])
        counts = np.concatenate([np.full(first, PIECES, np.int32), counts])
        source, target, first = 2 * source, 2 * target, 2 * first
    order = np.argsort(edge, kind="stable")
    offsets = np.searchsorted(edge[order], np.arange(first + 1)).astype(np.int64)
    return Pattern(
        members, np.concatenate(source).astype(np.int32), np.concatenate(target).astype(np.int32), sizes, counts,
        Ragged(other[order].astype(np.int32), offsets), lag[order], np.zeros(first, np.int64),
    )  # fmt: skip
