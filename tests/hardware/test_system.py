"""Edges in columns and the checks of a System."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.errors import InputError
from triosim.hardware.accelerator import UNNAMED
from triosim.hardware.system import Edge, Edges, Fabric, Link, Tier, assemble, both_ways

LINK = Link(1e9)
links = st.builds(Link, st.floats(1, 1e12), st.floats(0, 1), st.floats(0, 1))
edges = st.lists(st.builds(Edge, st.integers(0, 9), st.integers(0, 9), links, st.sampled_from(Tier)), max_size=8)


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan])
def test_a_link_has_bandwidth(bandwidth: float):
    with pytest.raises(InputError, match="bandwidth must be above zero"):
        Link(bandwidth)


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_latency_and_overhead_are_times(seconds: float):
    with pytest.raises(InputError, match="latency must be zero or a positive time"):
        Link(1.0, latency=seconds)
    with pytest.raises(InputError, match="link X: overhead must be zero or a positive time"):
        Link(1.0, overhead=seconds, name="X")


def test_a_link_may_be_unlimited():
    assert Link(math.inf).bandwidth == math.inf


@given(edges)
def test_columns_are_the_edges(rows: list[Edge]):
    assert list(Edges.of(rows)) == rows


@given(edges, edges)
def test_join_is_one_after_the_other(a: list[Edge], b: list[Edge]):
    assert list(Edges.join([Edges.of(a), Edges.of(b)])) == a + b


@given(edges)
def test_renumbered_copies(rows: list[Edge]):
    numbers = np.array([np.arange(10) + 100, np.arange(10) * 2])
    expected = [Edge(int(row[e.source]), int(row[e.target]), e.link, e.tier) for row in numbers for e in rows]
    assert list(Edges.of(rows).renumbered(numbers)) == expected


def system(names, pairs, devices=2, **more):
    rows = [Edge(a, b, LINK) for a, b in pairs]
    return assemble("s", [UNNAMED], [0] * devices, [0] * devices, names, [-1], rows, **more)


def test_columns_of_a_system():
    rows = [*both_ways(0, 1, Link(2e9, 1e-6, 3e-6, "wire")), *both_ways(0, 2, LINK, Tier.HOST)]
    s = assemble("s", [UNNAMED], [0, 0], [0, 1], ["a", "b", "h"], [2, -1], rows)
    assert (s.devices, s.nodes, s.servers) == (2, 3, 2)
    assert s.edge_source.tolist() == [0, 1, 0, 2]
    assert s.edge_target.tolist() == [1, 0, 2, 0]
    assert s.bandwidth.tolist() == [2e9, 2e9, 1e9, 1e9]
    assert s.latency.tolist() == [1e-6, 1e-6, 0, 0]
    assert s.overhead.tolist() == [3e-6, 3e-6, 0, 0]
    assert s.edge_name == ("wire", "wire", "", "")
    assert s.edge_tier.tolist() == [0, 0, 2, 2]
    assert s.model(1) is UNNAMED


def test_one_device_needs_no_link():
    assert system(["a"], [], devices=1).devices == 1


def test_an_empty_system_is_refused():
    with pytest.raises(InputError, match="has no device"):
        system([], [], devices=0)


def test_names_are_distinct():
    with pytest.raises(InputError, match="two nodes are called 'a'"):
        system(["a", "a"], [(0, 1), (1, 0)])


@pytest.mark.parametrize(("pair", "wrong"), [((0, 7), "7"), ((-1, 0), "-1")])
def test_links_name_nodes_that_exist(pair, wrong):
    with pytest.raises(InputError, match=f"a link names node {wrong}, but there are 2"):
        system(["a", "b"], [(0, 1), (1, 0), pair])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "'b' cannot be reached from 'a'"),
        ([(0, 1)], "'b' cannot reach 'a'"),
        ([(1, 0)], "'b' cannot be reached from 'a'"),
    ],
)
def test_every_device_is_reachable_both_ways(pairs, message):
    with pytest.raises(InputError, match=message):
        system(["a", "b"], pairs)


def test_one_way_round_is_enough():
    assert system(["a", "b", "c"], [(0, 1), (1, 2), (2, 0)], devices=3).devices == 3


def test_hosts_and_pool_are_reachable():
    with pytest.raises(InputError, match="'h' cannot be reached from 'a'"):
        assemble("s", [UNNAMED], [0], [0], ["a", "h"], [1], [])
    with pytest.raises(InputError, match="'p' cannot be reached from 'a'"):
        assemble("s", [UNNAMED], [0], [0], ["a", "p"], [-1], [], pool=1)


def test_a_long_ring_is_walked_to_the_end():
    n = 3000
    assert system([str(i) for i in range(n)], [(i, (i + 1) % n) for i in range(n)], devices=n).devices == n


def test_fabric_of_single_edges():
    fabric = Fabric.of(2, both_ways(0, 1, LINK))
    assert (fabric.devices, fabric.switches, fabric.roots, len(fabric.edges)) == (2, 0, (), 2)
