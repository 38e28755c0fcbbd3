"""The double binary tree: its shape, that everything gets everywhere, and what it sends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import PLAIN, holdings, run, servers
from tests.exploring import examples
from triosim.collectives.algorithm import ALGORITHMS, CollectiveSchedule
from triosim.collectives.algorithms.tree import PIECES, heights, parents
from triosim.collectives.group import Group
from triosim.collectives.scheduling import Collectives
from triosim.core.columns import Ragged
from triosim.engine.graph import Pattern


def tree(group: Group, size: int) -> CollectiveSchedule:
    return ALGORITHMS.get("tree")().schedule("all_reduce", group.members, size, 0, group)


def test_parents_of_eight_nodes_by_hand() -> None:
    assert parents(8, mirrored=False).tolist() == [-1, 2, 4, 2, 0, 6, 4, 6]
    assert parents(8, mirrored=True).tolist() == [1, 3, 1, 7, 5, 3, 5, -1]


@given(st.integers(1, 200), st.booleans())
def test_every_node_hangs_on_one_root_at_logarithmic_depth_with_few_children(nodes: int, mirrored: bool) -> None:
    above = parents(nodes, mirrored)
    assert (above < 0).sum() == 1
    assert heights(above) <= np.ceil(np.log2(nodes)) + 1
    assert np.bincount(above[above >= 0], minlength=1).max(initial=0) <= 2


@given(st.integers(1, 100).map(lambda n: 2 * n))
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(nodes: int) -> None:
    inner = [set(parents(nodes, m).tolist()) - {-1} for m in (False, True)]
    assert not inner[0] & inner[1]


@settings(max_examples=examples(40))
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**24))
def test_everything_gets_everywhere(count: int, width: int, size: int) -> None:
    group = servers(count, width)
    pattern, order = tree(group, size)
    n = group.members
    assert order == tuple(range(n))
    for way in tails(pattern, n):
        assert holdings(only(pattern, way), [{p} for p in range(n)]) == [set(range(n))] * n
    assert holdings(pattern, [{p} for p in range(n)]) == [set(range(n))] * n
    total = int((pattern.bytes * pattern.count).sum())
    assert total >= 2 * (n - 1) * size
    assert total <= 2 * (n - 1) * size + (PIECES + 1) * len(pattern) * max(width, 2)


@pytest.mark.parametrize("kind", ["first", "last"])
def test_a_tree_without_an_edge_leaves_somebody_out(kind: str) -> None:
    pattern, _ = tree(servers(4, 1), 1000)
    way = tails(pattern, 4)[0]
    some = only(pattern, way[1:] if kind == "first" else way[:-1])
    assert holdings(some, [{p} for p in range(4)]) != [{0, 1, 2, 3}] * 4


def test_a_stream_runs_at_half_the_bandwidth_and_its_tail_fills_the_tree() -> None:
    group = servers(16, 1, PLAIN, PLAIN)
    made = Collectives("tree").schedule("all_reduce", group, 2**30)
    seconds = run(made, group).finish.max() / 1e12
    least = 2 * 2**30 / PLAIN.bandwidth  # everyone sends up twice and down twice half of the buffer, less at the ends
    assert 0.9 * least < seconds < 1.1 * least


def test_4096_members_have_edges_in_proportion() -> None:
    pattern, _ = tree(servers(512, 8), 2**30)
    assert len(pattern) == 2 * 8 * 2 * 4095


def tails(pattern: Pattern, members: int) -> list[list[int]]:
    """Edges of the last chunk of each tree: they follow each other, as many up as down."""
    each = 2 * (members - 1)
    last = np.flatnonzero(pattern.count == 1) if len(pattern) else np.zeros(0, int)
    assert not each or len(last) % each == 0
    return [last[first : first + each].tolist() for first in range(0, len(last), each)] if each else []


def only(pattern: Pattern, edges: list[int]) -> Pattern:
    """The pattern of some edges, what they need of others left out."""
    place = {edge: at for at, edge in enumerate(edges)}
    needs = [[place[f] for f in pattern.needs[edge].tolist() if f in place] for edge in edges]
    flat = Ragged.of(needs, np.int32)
    return Pattern(
        pattern.members, pattern.source[edges], pattern.target[edges], pattern.bytes[edges], pattern.count[edges], flat,
        np.zeros(len(flat.values), np.int32), pattern.pause[edges],
    )  # fmt: skip
