"""Larger fabrics, counted by hand: links, hops, bisection, oversubscription, and their options."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from tests.hardware.graphs import hops
from triosim.core.errors import InputError
from triosim.hardware.build import flat, from_file, ready
from triosim.hardware.system import Fabric, Link, Tier
from triosim.hardware.topology import TOPOLOGIES, builder

LINK = Link(100e9, latency=2e-6, overhead=5e-6, name="wire")


def build(topology: str, devices: int, shape: tuple[int, ...] | None = None, **options: object) -> Fabric:
    return builder(topology, options).build(devices, LINK, shape)


def degrees(fabric: Fabric) -> list[int]:
    return [Counter(e.source for e in fabric.edges)[node] for node in range(fabric.devices + fabric.switches)]


def crossing(fabric: Fabric, side: set[int]) -> float:
    """Bandwidth from some nodes to all others."""
    return sum(e.link.bandwidth for e in fabric.edges if e.source in side and e.target not in side)


# --- dragonfly ----------------------------------------------------------------------------------------------------


def test_the_dragonfly_of_the_paper() -> None:
    # Figure 5 of Kim et al.: h = p = 2, a = 4, g = 9, 72 devices.
    fabric = build("dragonfly", 72)
    assert fabric.switches == 36
    assert degrees(fabric) == [1] * 72 + [2 + 3 + 2] * 36
    assert len(fabric.edges) == 2 * (72 + 9 * 6 + 9 * 8 // 2)
    far = hops(fabric, 0)[:72]
    assert Counter(far[:8]) == {0: 1, 2: 1, 3: 6}  # its router, its group
    assert set(far[8:]) == {3, 4, 5}  # a global link, with a local one before, after or both
    assert Counter(far)[3] == 6 + 2 * 2  # two global links of its own router


@given(
    groups=st.integers(1, 6),
    routers=st.integers(1, 4),
    own=st.integers(1, 3),
    more=st.one_of(st.none(), st.integers(0, 3)),
)
@settings(max_examples=examples(80))
def test_every_group_of_a_dragonfly_has_as_much_towards_every_other(
    groups: int, routers: int, own: int, more: int | None
) -> None:
    least = max(1, math.ceil((groups - 1) / routers))
    links = least if more is None else least + more
    options = {} if more is None else {"global_links": links}
    fabric = build("dragonfly", groups * routers * own, (groups, routers, own), **options)
    devices = fabric.devices

    def group(node: int) -> int:
        return node // (routers * own) if node < devices else (node - devices) // routers

    between: Counter = Counter()
    ports: Counter = Counter()
    for e in fabric.edges:
        if group(e.source) != group(e.target):
            between[group(e.source), group(e.target)] += e.link.bandwidth / LINK.bandwidth
            ports[e.source] += e.link.bandwidth / LINK.bandwidth
    each = routers * links // (groups - 1) if groups > 1 else 0
    assert between == {(a, b): each for a in range(groups) for b in range(groups) if a != b}
    assert max(ports.values(), default=0) <= links
    assert all(math.isfinite(d) and d <= 5 for d in hops(fabric, 0)[:devices])


def test_a_dragonfly_that_does_not_reach_every_group_is_refused() -> None:
    with pytest.raises(InputError, match="2 routers of 1 global links reach 2 of 4 other groups: give at least 2"):
        build("dragonfly", 20, (5, 2, 2), global_links=1)


# --- leaves and spines ----------------------------------------------------------------------------------------------


def test_leaf_spine() -> None:
    fabric = build("leaf-spine", 12, (3, 4), spines=2, oversubscription=2)
    assert fabric.switches == 2 + 3
    assert degrees(fabric) == [1] * 12 + [3, 3] + [6, 6, 6]
    uplinks = {e.link.bandwidth for e in fabric.edges if e.source >= 14 and e.target in (12, 13)}
    assert uplinks == {100e9}  # 4 x 100 GB/s / 2, half to each spine
    assert hops(fabric, 0)[:12] == [0, 2, 2, 2] + [4] * 8
    assert crossing(fabric, {0, 1, 2, 3, 14}) == 4 * 100e9 / 2


@given(
    leaves=st.integers(2, 5), own=st.integers(1, 5), spines=st.integers(1, 4), ratio=st.sampled_from([1.0, 2.0, 3.5])
)
@settings(max_examples=examples(40))
def test_what_leaves_a_leaf_is_what_oversubscription_says(leaves: int, own: int, spines: int, ratio: float) -> None:
    fabric = build("leaf-spine", leaves * own, (leaves, own), spines=spines, oversubscription=ratio)
    leaf = {*range(own), fabric.devices + spines}
    assert crossing(fabric, leaf) == pytest.approx(own * LINK.bandwidth / ratio)


def test_one_spine_is_a_fat_tree() -> None:
    one, tree = build("leaf-spine", 8, (2, 4), oversubscription=4), build("fat-tree", 8, (2, 4), oversubscription=4)
    assert sorted((e.source, e.target, e.link) for e in one.edges) == sorted(
        (e.source, e.target, e.link) for e in tree.edges
    )


def test_a_fat_tree_thins_out_at_each_level() -> None:
    fabric = build("fat-tree", 8, (2, 2, 2), oversubscription=2)
    assert {e.link.bandwidth for e in fabric.edges} == {100e9}  # two below, and half of that up
    assert crossing(fabric, {0, 1, 2, 3, 9, 11, 12}) == 4 * 100e9 / 4


def test_rail_optimised() -> None:
    # Two groups of two servers with four NICs.
    fabric = build("rail-optimised", 16, (2, 2), server=4, spines=2)
    assert fabric.switches == 2 + 8
    rail = {e.source: e.target - 18 for e in fabric.edges if e.source < 16}
    assert [rail[nic] for nic in range(16)] == [0, 1, 2, 3] * 2 + [4, 5, 6, 7] * 2
    far = hops(fabric, 0)
    assert [far[nic] for nic in (1, 4, 5, 8)] == [4, 2, 4, 4]
    assert {e.link.bandwidth for e in fabric.edges} == {100e9}  # two NICs of 100 GB/s, one uplink to each of two spines


def test_the_last_group_may_be_smaller() -> None:
    rails = build("rail-optimised", 20, server=4, group=2)
    assert rails.switches == 1 + 3 * 4
    assert [e.target - 21 for e in rails.edges if e.source == 17] == [9]  # NIC 1 of the only server of the third group
    leaves = build("leaf-spine", 7, leaf=3, oversubscription=1.5)
    assert leaves.switches == 1 + 3
    assert {e.link.bandwidth for e in leaves.edges if e.target == 7} == {200e9}  # every leaf can take three devices
    with pytest.raises(InputError, match="shape 2x4 and leaf 4: give one of them"):
        build("leaf-spine", 8, (2, 4), leaf=4)
    with pytest.raises(InputError, match="shape 2x1 and group 1: give one of them"):
        build("rail-optimised", 8, (2, 1), server=4, group=1)


def test_a_superpod_has_eight_leaves_for_32_servers() -> None:
    s = ready("dgx-superpod-h100", 40)
    assert s.devices == 320
    assert sum(name.startswith("network") for name in s.node_names) == 1 + 2 * 8
    ndr = s.bandwidth[s.edge_source == s.nodes - 1].min()
    spine = s.nodes - 17
    assert set(s.bandwidth[s.edge_target == spine]) == {32 * ndr}


def test_rails_are_the_nics_of_a_server(tmp_path) -> None:
    file = tmp_path / "rails.toml"
    file.write_text(
        """
        [devices]
        model = "H100"
        count = 8
        [scale_up]
        topology = "switch"
        [scale_out]
        topology = "rail-optimised"
        link = "InfiniBand-NDR"
        nics = 4
        options = { spines = 2, oversubscription = "1.5" }
        """
    )
    s = from_file(file, 3)
    assert sum(name.startswith("network") for name in s.node_names) == 2 + 4
    leaf = {}
    for a, b in zip(s.edge_source.tolist(), s.edge_target.tolist(), strict=True):
        if "nic" in s.node_names[a] and s.node_names[b].startswith("network"):
            leaf[s.node_names[a]] = s.node_names[b]
    assert all(leaf[f"node{n}/nic{k}"] == f"network{2 + k}" for n in range(3) for k in range(4))


def test_servers_that_do_not_fill_the_rails_are_refused() -> None:
    with pytest.raises(InputError, match="10 devices are not servers of 4"):
        build("rail-optimised", 10, server=4)
    with pytest.raises(InputError, match="shape 3x2 holds 6 servers, not 4"):
        build("rail-optimised", 16, (3, 2), server=4)
    with pytest.raises(InputError, match="a shape is groups x servers of a group"):
        build("rail-optimised", 16, (4,), server=4)


# --- inside a server ------------------------------------------------------------------------------------------------


def test_the_hybrid_cube_mesh_is_that_of_the_dgx_1() -> None:
    built, written = flat("V100-SXM2-32GB", 8, "hybrid-cube-mesh"), ready("dgx-1v")
    links = written.edge_tier == Tier.SCALE_UP

    def table(s, rows) -> dict:
        columns = s.edge_source[rows].tolist(), s.edge_target[rows].tolist(), s.bandwidth[rows].tolist()
        return {(a, b): bandwidth for a, b, bandwidth in zip(*columns, strict=True)}

    assert table(built, slice(None)) == table(written, links)


def test_the_hybrid_cube_mesh_of_p100() -> None:
    fabric = build("hybrid-cube-mesh", 8, links=4)
    assert degrees(fabric) == [4] * 8
    assert {e.link for e in fabric.edges} == {LINK}
    assert crossing(fabric, {0, 1, 2, 3}) == 4 * LINK.bandwidth
    assert sorted(hops(fabric, 0)) == [0, 1, 1, 1, 1, 2, 2, 2]
    assert flat("P100-SXM2", 8, "hybrid-cube-mesh", options={"links": 4}).bandwidth[0] == pytest.approx(20e9 * 0.85)


@pytest.mark.parametrize(("options", "devices", "problem"), [({"links": 5}, 8, "must be 4 or 6"), ({}, 9, "up to 8")])
def test_a_hybrid_cube_mesh_that_does_not_exist(options: dict, devices: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build("hybrid-cube-mesh", devices, **options)


def test_pcie_with_two_sockets() -> None:
    fabric = build("pcie", 8, (2, 2, 2))
    assert (fabric.switches, fabric.roots) == (2 + 4, (8, 9))
    assert degrees(fabric) == [1] * 8 + [3, 3] + [3] * 4
    assert hops(fabric, 0)[:8] == [0, 2, 4, 4, 5, 5, 5, 5]
    assert crossing(fabric, {0, 1, 10}) == LINK.bandwidth  # two devices share an uplink
    upi = {e.link.name for e in fabric.edges if {e.source, e.target} == {8, 9}}
    assert upi == {"UPI-3"}


def test_devices_at_the_ports_of_the_root_complex() -> None:
    fabric = build("pcie", 4, (2, 2, 1))
    assert (fabric.switches, fabric.roots) == (2, (4, 5))
    assert hops(fabric, 0)[:4] == [0, 2, 3, 3]


def test_a_host_is_under_both_sockets(tmp_path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[devices]\nmodel = "T4"\ncount = 8\n[scale_up]\ntopology = "pcie"\nlink = "PCIe3x16"\n[host]\n')
    s = from_file(file)
    host = s.server_host[0]
    assert sorted(s.edge_source[s.edge_target == host]) == [8, 9]


def test_an_unknown_socket_link_is_refused() -> None:
    with pytest.raises(InputError, match="unknown link 'cable'"):
        build("pcie", 8, socket_link="cable")


# --- grids and rings ------------------------------------------------------------------------------------------------


def test_the_wafer_of_the_paper() -> None:
    fabric = build("wafer", 84, (12, 7))
    assert len(fabric.edges) == 2 * (2 * 84 - 12 - 7)
    assert hops(fabric, 0)[83] == 11 + 6
    assert crossing(fabric, set(range(42))) == 7 * LINK.bandwidth


def test_a_wafer_with_a_short_row() -> None:
    fabric = build("wafer", 7)
    assert {(e.source, e.target) for e in fabric.edges if e.source < e.target} == {
        (0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5), (3, 6),
    }  # fmt: skip
    with pytest.raises(InputError, match="shape 2x3 holds 4 to 6 dies, not 7: with 3 columns give 3 rows"):
        build("wafer", 7, (2, 3))


def test_double_ring() -> None:
    fabric = build("double-ring", 8)
    assert degrees(fabric) == [3] * 8
    assert sorted(e.target for e in fabric.edges if e.source == 0) == [1, 3, 4]
    assert sorted(hops(fabric, 0)) == [0, 1, 1, 1, 2, 2, 2, 3]
    assert crossing(fabric, {0, 1, 2, 3}) == 4 * LINK.bandwidth
    assert len(build("double-ring", 4).edges) == 2 * 4
    with pytest.raises(InputError, match="two equal rings: give 6 devices, not 5"):
        build("double-ring", 5)


def test_a_torus_in_three_dimensions() -> None:
    fabric = build("torus", 64, (4, 4, 4))
    assert degrees(fabric) == [6] * 64
    assert crossing(fabric, set(range(32))) == 2 * 16 * LINK.bandwidth
    assert max(hops(fabric, 0)) == 6


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "options", "problem"),
    [
        ("fat-tree", {"oversubscripton": 2}, "unknown option 'oversubscripton': did you mean oversubscription"),
        ("ring", {"spines": 2}, "topology ring has no options: leave out spines"),
        ("leaf-spine", {"spines": "two"}, "topology leaf-spine: spines must be a whole number from 1 up, got 'two'"),
        ("leaf-spine", {"spines": 1.5}, "spines must be a whole number"),
        ("leaf-spine", {"oversubscription": 0}, "oversubscription must be a number above zero"),
        ("leaf-spine", {"oversubscription": "nan"}, "oversubscription must be a number above zero"),
        ("leaf-spine", {"oversubscription": True}, "oversubscription must be a number above zero"),
        ("pcie", {"socket_link": 3}, "socket_link must be a text"),
        ("dragonfly", {"global-links": -1}, "global-links must be a whole number from 1 up"),
    ],
)
def test_an_option_that_is_wrong_is_named(topology: str, options: dict, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        builder(topology, options)


def test_texts_and_numbers_are_the_same_options() -> None:
    assert builder("leaf-spine", {"spines": "4", "oversubscription": "2"}) == builder(
        "leaf-spine", {"spines": 4, "oversubscription": 2}
    )


def test_options_of_a_file_are_checked(tmp_path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        '[devices]\nmodel = "T4"\n[scale_out]\ntopology = "fat-tree"\n'
        'link = "InfiniBand-HDR"\noptions = { spines = 3 }\n'
    )
    with pytest.raises(InputError, match=r"bad.toml: scale_out: unknown option 'spines'"):
        from_file(file)


def test_all_options_have_a_default() -> None:
    for name in TOPOLOGIES:
        builder(name)
