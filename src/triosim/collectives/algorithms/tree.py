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
from triosim.columns import Ragged
from triosim.engine.graph import Pattern
from triosim.registry import registered

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
    """All-reduce along trees, in chunks that follow each other: up to the root and down again."""

    kinds = ("all_reduce",)

    def schedule(self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None) -> Schedule:
        """See :meth:`Algorithm.schedule`."""
        blocks = blocks_of(group, members)
        width = min(len(b) for b in blocks)
        trees = max(width, 2) if len(blocks) > 1 else 1
        above = [_member_tree(blocks, number % width, number % 2 == 1) for number in range(trees)]
        share = part(size, trees)
        depth = max(heights(a) for a in above)
        chunk = CHUNK_BYTES
        while chunk > LEAST_CHUNK_BYTES and share < 8 * depth * chunk:
            chunk //= 2
        count = max(part(share, chunk), 1)
        return Schedule(_both_ways(above, members, part(share, count), count), tuple(range(members)))


def _member_tree(blocks: list[NDArray[np.int64]], way: int, mirrored: bool) -> NDArray[np.int64]:
    """Parent of each member: the tree over servers goes through the ``way``-th member of each, and the others hang
    on it in a chain."""
    above = np.full(sum(len(b) for b in blocks), -1, np.int64)
    chains = [np.roll(b, -way) for b in blocks]
    for chain in chains:
        above[chain[1:]] = chain[:-1]
    heads = np.array([chain[0] for chain in chains])
    up = parents(len(blocks), mirrored)
    above[heads] = np.where(up < 0, -1, heads[up])
    return above


def _both_ways(above: list[NDArray[np.int64]], members: int, size: int, count: int) -> Pattern:
    """For each member of each tree but the root an edge up and an edge down: up when the children's chunk has come,
    down when the parent has it."""
    source, target, needs, of = [], [], [], []
    first = 0
    for parent in above:
        child = np.flatnonzero(parent >= 0)
        up_edge = np.full(members, -1, np.int64)
        up_edge[child] = first + np.arange(len(child))
        down_edge = up_edge + len(child)
        top = parent[child]
        source += [child, top]
        target += [top, child]
        below_top = parent[top] < 0  # the parent is the root: what goes down is what all its children sent up
        inner = np.flatnonzero(parent[np.maximum(top, 0)] >= 0)
        needs.append(up_edge[child[inner]])  # the edge up from a parent needs that of its child
        of.append(up_edge[top[inner]])
        needs.append(down_edge[top[inner]])
        of.append(down_edge[child[inner]])
        at_root = child[below_top]
        needs.append(np.tile(up_edge[at_root], len(at_root)))
        of.append(np.repeat(down_edge[at_root], len(at_root)))
        first += 2 * len(child)
    edges = np.concatenate([np.concatenate(needs), np.concatenate(of)]).reshape(2, -1)
    order = np.argsort(edges[1], kind="stable")
    offsets = np.searchsorted(edges[1][order], np.arange(first + 1))
    values = edges[0][order].astype(np.int32)
    return Pattern(
        members, np.concatenate(source).astype(np.int32), np.concatenate(target).astype(np.int32),
        np.full(first, size, np.int64), np.full(first, count, np.int32), Ragged(values, offsets.astype(np.int64)),
        np.zeros(len(values), np.int32), np.zeros(first, np.int64),
    )  # fmt: skip
