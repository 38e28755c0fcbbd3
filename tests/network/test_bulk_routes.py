"""Routes of many pairs at once are the routes of the single pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import InputError
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
    slow = np.flatnonzero((s.edge_source == 9) & (s.edge_tier == Tier.SCALE_OUT))
    latency = s.latency.copy()
    latency[slow] += 1e-3  # GPU 1 of the second server goes round by another NIC of its server
    edges = zip(s.edge_source.tolist(), s.edge_target.tolist(), latency.tolist(), s.edge_tier.tolist(), strict=True)
    odd = assemble(
        "odd", s.models, s.device_model, s.device_server, s.node_names, s.server_host,
        [Edge(a, b, Link(1e9, seconds), Tier(tier)) for a, b, seconds, tier in edges],
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


@st.composite
def clusters(draw: st.DrawFn) -> System:
    """A few servers of two sorts around a few switches, with ties wherever they can be."""
    sorts = []
    switches = draw(st.integers(1, 3))
    ticks = st.integers(0, 2)
    tiers = st.sampled_from(Tier)
    for _ in range(2):
        size = draw(st.integers(2, 4))  # one or two devices and what else is in the server
        inner = [(k, (k + 1) % size, draw(ticks), draw(tiers)) for k in range(size)]
        inner += draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1), ticks, tiers), max_size=4))
        outer = st.tuples(st.integers(0, size - 1), st.integers(0, switches - 1), ticks, tiers)
        sorts.append((size, inner, draw(st.lists(outer, min_size=1, max_size=3))))
    servers = draw(st.lists(st.integers(0, 1), min_size=2, max_size=5))
    core_first = draw(st.booleans())  # switches between the devices and the rest of the servers
    devices = len(servers)
    rest = devices + (switches if core_first else 0)
    core = devices if core_first else devices + sum(sorts[sort][0] - 1 for sort in servers)
    edges = []
    for number, sort in enumerate(servers):
        size, inner, outer = sorts[sort]
        nodes = [number, *range(rest, rest + size - 1)]
        rest += size - 1
        for a, b, latency, tier in inner:
            if a != b:
                edges += both_ways(nodes[a], nodes[b], Link(1e9, latency * 1e-12), tier)
        for a, b, latency, tier in outer:
            edges += both_ways(nodes[a], core + b, Link(1e9, latency * 1e-12), tier)
    between = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1), ticks, tiers)
    for a, b, latency, tier in draw(st.lists(between, max_size=4)) + [
        (k, k + 1, 0, Tier.SCALE_OUT) for k in range(switches - 1)
    ]:
        if a != b:
            edges += both_ways(core + a, core + b, Link(1e9, latency * 1e-12), tier)
    nodes = max(rest, core + switches)
    return assemble(
        "test", [UNNAMED], [0] * devices, range(devices), [str(k) for k in range(nodes)], [-1] * devices, edges
    )


@settings(deadline=None, max_examples=200)
@given(system=clusters())
def test_any_cluster(system: System) -> None:
    same_one_by_one(system)
