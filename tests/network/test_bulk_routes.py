"""Routes of many pairs at once are the routes of the single pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.hardware.accelerator import UNNAMED
from triosim.hardware.build import flat, ready
from triosim.hardware.system import Edge, Link, System, Tier, assemble, both_ways
from triosim.network.routes import Router

ROUTED = 16  # more pairs than are routed one by one


def all_pairs(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(list(itertools.product(range(nodes), repeat=2)))
    return pairs[:, 0], pairs[:, 1]


def same_one_by_one(system: System) -> None:
    source, target = all_pairs(system.nodes)
    source, target = np.resize(source, max(len(source), ROUTED + 1)), np.resize(target, max(len(target), ROUTED + 1))
    single = Router(system)
    found = Router(system).routes(source, target)
    assert found.lists() == [list(single.route(a, b)) for a, b in zip(source.tolist(), target.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("dgx-h100", 3), ("dgx-1v", 2), ("dgx-a100", 2), ("pcie-t4-4", 2), ("tpu-v5e-16", 1), ("cpu-2s", 1)],
)
def test_ready_systems(name: str, nodes: int) -> None:
    same_one_by_one(ready(name, nodes))


@pytest.mark.parametrize("topology", ["switch", "full", "ring", "mesh", "torus", "tree", "fat-tree"])
def test_one_server_of_every_topology(topology: str) -> None:
    same_one_by_one(flat(None, 12, topology, "10GB/s", "1us", host_link="1GB/s", pool_link="1GB/s"))


def test_a_server_that_differs_is_not_taken_for_another() -> None:
    s = ready("dgx-h100", 4)
    tiers = s.edge_tier.copy()
    tiers[(s.edge_source == 9) & (tiers == Tier.SCALE_OUT)] = Tier.HOST  # GPU 1 of the second server goes round by
    edges = zip(s.edge_source.tolist(), s.edge_target.tolist(), tiers.tolist(), strict=True)  # another NIC of it
    odd = assemble(
        "odd", s.models, s.device_model, s.device_server, s.node_names, s.server_host,
        [Edge(a, b, Link(1e9), Tier(tier)) for a, b, tier in edges],
    )  # fmt: skip
    source, target = np.arange(32), (np.arange(32) + 8) % 32
    lengths = Router(odd).routes(source, target).lengths()
    assert lengths[9] > 4
    assert (np.delete(lengths, 9) == 4).all()
    same_one_by_one(odd)


def test_where_nothing_leads_both_ends_are_named() -> None:
    edges = [e for gpu in range(4) for e in both_ways(gpu, 4, Link(1e9))]
    s = assemble("test", [UNNAMED], [0] * 4, [0] * 4, [*(f"gpu{i}" for i in range(4)), "switch", "spare"], [-1], edges)
    with pytest.raises(InputError, match="no links lead from 'gpu0' to 'spare'"):
        Router(s).routes(np.arange(20) % 4, np.full(20, 5))


def test_no_pairs_have_no_routes() -> None:
    routes = Router(ready("dgx-h100", 2)).routes([], [])
    assert len(routes) == 0
    assert routes.values.dtype == np.int32


def test_a_switch_numbered_between_the_servers_turns_ties() -> None:
    # Two ways from each GPU to the far switch: over its NIC, numbered 2 or 5, or over the near switch, 3.
    near, far = 3, 4
    joins = [(0, 2), (0, near), (2, far), (1, 5), (1, near), (5, far), (near, far)]
    edges = [e for a, b in joins for e in both_ways(a, b, Link(1e9))]
    names = ["gpu0", "gpu1", "nic0", "near", "far", "nic1"]
    s = assemble("test", [UNNAMED], [0, 0], [0, 1], names, [-1, -1], edges)
    routes = Router(s).routes(np.arange(20) % 2, np.full(20, far))
    assert [int(s.edge_target[route[0]]) for route in routes] == [2, near] * 10


@st.composite
def clusters(draw: st.DrawFn) -> System:
    """A few servers of two sorts around a few switches, with ties wherever they can be.

    Switches may be joined by nothing but servers, and have numbers before, between and after those of servers.
    """
    switches = draw(st.integers(1, 3))
    ticks, tiers = st.integers(0, 1), st.sampled_from([Tier.SCALE_UP, Tier.SCALE_UP, Tier.SCALE_OUT])
    sorts = []
    for _ in range(2):
        inside = st.integers(0, draw(st.integers(1, 3)))  # node 0 is the device
        joined = st.tuples(inside, inside, ticks, tiers)
        outward = st.tuples(inside, st.integers(0, switches - 1), ticks, tiers)
        sorts.append((draw(st.lists(joined, max_size=4)), draw(st.lists(outward, min_size=1, max_size=3))))
    servers = draw(st.lists(st.integers(0, 1), min_size=2, max_size=5))
    devices = len(servers)
    order = draw(st.lists(st.integers(0, devices), min_size=switches, max_size=switches))  # after how many servers
    places: list[tuple[str, int, int]] = []  # what has the numbers after the devices
    for number in range(devices + 1):
        places += [("switch", k, 0) for k in range(switches) if order[k] == number]
        places += [("server", number, k) for k in range(1, 4) if number < devices]
    numbers = {place: devices + k for k, place in enumerate(places)}
    numbers |= {("server", k, 0): k for k in range(devices)}
    between = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1), ticks, tiers)
    joins = [(("switch", a, 0), ("switch", b, 0), *rest) for a, b, *rest in draw(st.lists(between, max_size=3))]
    joins += [(("switch", k, 0), ("switch", k + 1, 0), 0, Tier.HOST) for k in range(switches - 1)]
    for number, sort in enumerate(servers):
        joined, outward = sorts[sort]
        joins += [(("server", number, a), ("server", number, b), *rest) for a, b, *rest in joined]
        joins += [(("server", number, a), ("switch", b, 0), *rest) for a, b, *rest in outward]
        joins += [(("server", number, k), ("server", number, k + 1), 1, Tier.HOST) for k in range(3)]
    edges = [
        e
        for a, b, latency, tier in joins
        if a != b
        for e in both_ways(numbers[a], numbers[b], Link(1e9, latency * 1e-12), tier)
    ]
    names = [str(k) for k in range(devices + len(places))]
    return assemble("test", [UNNAMED], [0] * devices, range(devices), names, [-1] * devices, edges)


@settings(max_examples=examples(100))
@given(
    devices=st.integers(2, 9),
    links=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans()), min_size=4, max_size=24),
    odd=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.sampled_from(Tier), st.integers(0, 3)), max_size=3),
)
def test_any_network_of_links_that_are_alike(
    devices: int, links: list[tuple[int, int, bool]], odd: list[tuple[int, int, Tier, int]]
) -> None:
    # Two pools of devices that only a host joins where no other link does; links in parallel, and one way only.
    host = devices
    edges = [e for gpu in range(devices) for e in both_ways(gpu, host, Link(1e9, 1e-12), Tier.HOST)]
    for a, b, back in links:
        a, b = a % devices, b % devices
        if a != b:
            edges += both_ways(a, b, Link(1e9, 5e-12))[: 1 + back]
    for a, b, tier, latency in odd:
        a, b = a % devices, b % devices
        if a != b and tier != Tier.SCALE_UP:
            edges += [Edge(a, b, Link(1e9, latency * 1e-12), tier)]
    names = [str(k) for k in range(devices + 1)]
    same_one_by_one(assemble("test", [UNNAMED], [0] * devices, [0] * devices, names, [host], edges))


@settings(max_examples=examples(100))
@given(system=clusters())
def test_any_cluster(system: System) -> None:
    same_one_by_one(system)
