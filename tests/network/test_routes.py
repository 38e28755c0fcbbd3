"""Routes through small systems, and the wires made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.core.errors import InputError
from triosim.engine.graph import UNLIMITED
from triosim.hardware.accelerator import UNNAMED
from triosim.hardware.system import Edge, Link, System, Tier, assemble, both_ways
from triosim.network.routes import Router

FAST = Link(100e9, latency=1e-6, overhead=3e-6)
SLOW = Link(1e9, latency=1e-6)


def system(devices: int, others: Sequence[str], edges: Sequence[Edge], hosts: Sequence[int] = (-1,)) -> System:
    names = [f"gpu{i}" for i in range(devices)] + list(others)
    return assemble("test", [UNNAMED], [0] * devices, [0] * devices, names, hosts, edges)


def nodes(s: System, route: Sequence[int]) -> list[int]:
    return [int(s.edge_source[route[0]]), *(int(s.edge_target[edge]) for edge in route)] if route else []


def ring(devices: int, link: Link = FAST) -> System:
    return system(devices, [], [e for p in range(devices) for e in both_ways(p, (p + 1) % devices, link)])


def test_the_way_to_oneself_is_empty() -> None:
    assert Router(ring(3)).route(1, 1) == ()


def test_fewer_hops_win_where_latency_does_not_decide() -> None:
    s = ring(5, Link(1e9))
    assert nodes(s, Router(s).route(0, 2)) == [0, 1, 2]
    assert nodes(s, Router(s).route(0, 3)) == [0, 4, 3]


@pytest.mark.parametrize("seconds", [0.0, 1.999e-6, 2.001e-6, 3e-6])
def test_latency_does_not_matter(seconds: float) -> None:
    edges = [*both_ways(0, 1, Link(1e9, 1e-6)), *both_ways(1, 2, Link(1e9, 1e-6)), *both_ways(0, 2, Link(1e9, seconds))]
    s = system(3, [], edges)
    assert nodes(s, Router(s).route(0, 2)) == [0, 2]


def test_bandwidth_does_not_matter() -> None:
    edges = [*both_ways(0, 1, SLOW), *both_ways(0, 2, FAST), *both_ways(2, 1, FAST)]
    s = system(3, [], edges)
    assert nodes(s, Router(s).route(0, 1)) == [0, 1]


def test_equal_routes_go_by_the_lowest_nodes_and_then_the_lowest_links() -> None:
    # Two switches, and two links to the first, all alike.
    edges = [e for hub in (3, 2, 2) for gpu in (0, 1) for e in both_ways(gpu, hub, FAST)]
    s = system(2, ["switch a", "switch b"], edges)
    route = Router(s).route(0, 1)
    assert nodes(s, route) == [0, 2, 1]
    assert route == (4, 7)


def test_links_differ_by_direction() -> None:
    s = system(3, [], [Edge(0, 1, FAST), Edge(1, 2, FAST), Edge(2, 0, FAST)])
    assert nodes(s, Router(s).route(2, 1)) == [2, 0, 1]


def test_traffic_between_devices_passes_through_a_host_only_where_it_must() -> None:
    host = Link(1e9, latency=1e-9)
    up = [e for gpu in (0, 1) for e in both_ways(gpu, 2, host, Tier.HOST)]
    with_switch = system(2, ["host", "switch"], [*up, *both_ways(0, 3, FAST), *both_ways(1, 3, FAST)], [2])
    assert nodes(with_switch, Router(with_switch).route(0, 1)) == [0, 3, 1]
    without = system(2, ["host"], up, [2])
    assert nodes(without, Router(without).route(0, 1)) == [0, 2, 1]


def test_traffic_inside_a_server_does_not_leave_it() -> None:
    out = Link(1e9, latency=1e-9)
    edges = [*both_ways(0, 1, FAST), *(e for gpu in (0, 1) for e in both_ways(gpu, 2, out, Tier.SCALE_OUT))]
    s = system(2, ["switch"], edges)
    assert nodes(s, Router(s).route(0, 1)) == [0, 1]


def test_where_nothing_leads_both_ends_are_named() -> None:
    s = system(2, ["spare"], [*both_ways(0, 1, FAST), Edge(2, 0, FAST)])
    with pytest.raises(InputError, match="no links lead from 'gpu1' to 'spare'"):
        Router(s).route(1, 2)


def test_wires_have_an_edge_for_a_link_and_a_pair_for_a_route() -> None:
    s = system(2, ["switch"], [*both_ways(0, 2, FAST), *both_ways(1, 2, Link(math.inf, 2.5e-12, 1e-6))])
    router = Router(s)
    pairs = [(0, 1), (1, 0), (0, 0)]
    w = router.wires(pairs)
    assert w.capacity.tolist() == [100 * 10**9 * 1024] * 2 + [UNLIMITED] * 2
    assert [row.tolist() for row in w.routes] == [[0, 3], [2, 1], []]
    assert w.latency.tolist() == [10**6 + 2, 10**6 + 2, 0]
    assert router.overhead(pairs).tolist() == [3 * 10**6, 3 * 10**6, 0]


@pytest.mark.parametrize(("bandwidth", "cure"), [(1e-4, "the least is 1 B/s"), (1e16, "use inf")])
def test_a_bandwidth_that_cannot_be_counted_is_refused(bandwidth: float, cure: str) -> None:
    s = system(2, [], both_ways(0, 1, Link(bandwidth)))
    with pytest.raises(InputError, match=f"the link from 'gpu0' to 'gpu1' has a bandwidth of .*: {cure}"):
        Router(s).wires([(0, 1)])


@settings(deadline=None)
@given(
    count=st.integers(2, 6),
    extra=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3), st.sampled_from(Tier))),
)
def test_no_route_is_better_and_of_equal_routes_it_is_the_lowest(
    count: int, extra: list[tuple[int, int, int, Tier]]
) -> None:
    extra = [(a % count, b % count, ticks, tier) for a, b, ticks, tier in extra if (a - b) % count][:12]
    edges = [Edge(p, (p + 1) % count, Link(1e9, 2e-12)) for p in range(count)]
    edges += [Edge(a, b, Link(1e9, ticks * 1e-12), tier) for a, b, ticks, tier in extra]
    s = system(count, [], edges)
    router = Router(s)

    def rank(route: Sequence[int]) -> tuple:
        tiers = [s.edge_tier[edge] for edge in route]
        cost = tiers.count(Tier.HOST) + tiers.count(Tier.NVME), tiers.count(Tier.SCALE_OUT), len(route)
        return *cost, [(int(s.edge_target[edge]), edge) for edge in route]

    for a, b in itertools.product(range(count), repeat=2):
        assert list(router.route(a, b)) == min(every_route(s, a, b), key=rank)


def every_route(s: System, node: int, target: int, seen: tuple[int, ...] = ()) -> Iterator[list[int]]:
    """All routes that pass no node twice."""
    if node == target:
        yield []
        return
    for edge in np.flatnonzero(s.edge_source == node).tolist():
        there = int(s.edge_target[edge])
        if there not in seen:
            yield from ([edge, *rest] for rest in every_route(s, there, target, (*seen, node)))
