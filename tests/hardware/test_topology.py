"""Laws of the topology builders, and what each of them builds."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from tests.hardware.graphs import hops, latencies
from triosim.core.errors import InputError
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topology import TOPOLOGIES, checked_shape, format_shape, near_square, parse_shape

LINK = Link(100e9, latency=2e-6, overhead=5e-6, name="wire")
ALL = [
    "double-ring", "dragonfly", "fat-tree", "full", "hybrid-cube-mesh", "leaf-spine", "mesh", "pcie", "rail-optimised",
    "ring", "switch", "torus", "tree", "wafer",
]  # fmt: skip
ANY_COUNT = sorted({*ALL} - {"double-ring", "hybrid-cube-mesh"})
counts = st.integers(1, 40)
sides = st.integers(1, 5)


def build(topology: str, devices: int, shape: tuple[int, ...] | None = None, link: Link = LINK) -> Fabric:
    return TOPOLOGIES.get(topology)().build(devices, link, shape)


def out_degrees(fabric: Fabric) -> Counter:
    return Counter(e.source for e in fabric.edges)


def in_degrees(fabric: Fabric) -> Counter:
    return Counter(e.target for e in fabric.edges)


def test_every_topology_is_found_by_its_file_name():
    assert TOPOLOGIES.names() == ALL


@pytest.mark.parametrize("topology", ANY_COUNT)
@given(devices=counts)
@settings(max_examples=examples(25))
def test_every_builder_joins_all_devices_by_full_duplex_links(topology: str, devices: int):
    fabric = build(topology, devices)
    assert fabric.devices == devices
    assert all(math.isfinite(d) for d in hops(fabric, 0)[:devices])
    pairs = Counter((e.source, e.target) for e in fabric.edges)
    assert set(pairs.values()) <= {1}, "two devices have one cable between them"
    assert all((b, a) in pairs and a != b for a, b in pairs)
    bandwidth = {(e.source, e.target): e.link.bandwidth for e in fabric.edges}
    assert all(bandwidth[a, b] == bandwidth[b, a] for a, b in pairs)


@pytest.mark.parametrize("topology", ALL)
def test_one_device_has_no_links(topology: str):
    fabric = build(topology, 1)
    assert (fabric.switches, len(fabric.edges)) == (0, 0)


@pytest.mark.parametrize("topology", ["full", "ring", "switch", "torus"])
@given(devices=counts)
@settings(max_examples=15)
def test_devices_of_a_symmetric_topology_all_see_the_same(topology: str, devices: int):
    fabric = build(topology, devices)
    assert len({out_degrees(fabric)[d] for d in range(devices)}) == 1
    assert len({in_degrees(fabric)[d] for d in range(devices)}) == 1
    assert len({tuple(sorted(hops(fabric, d)[:devices])) for d in range(devices)}) == 1


@pytest.mark.parametrize("topology", sorted({*ANY_COUNT} - {"dragonfly", "rail-optimised"}))
@given(devices=st.integers(2, 40))
@settings(max_examples=15)
def test_neighbours_are_one_latency_apart(topology: str, devices: int):
    fabric = build(topology, devices)
    assert min(latencies(fabric, 0)[1:devices]) == LINK.latency


@given(devices=counts)
@settings(max_examples=15)
def test_link_counts(devices: int):
    n = devices
    assert len(build("ring", n).edges) == 2 * (n if n > 2 else n - 1)
    assert len(build("full", n).edges) == n * (n - 1)
    assert len(build("switch", n).edges) == (2 * n if n > 1 else 0)


@given(st.lists(sides, min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_grid_link_counts(shape: list[int]):
    devices = math.prod(shape)
    lines = [devices // side for side in shape]
    mesh = sum(line * (side - 1) for line, side in zip(lines, shape, strict=True))
    torus = sum(line * (side if side > 2 else side - 1) for line, side in zip(lines, shape, strict=True))
    assert len(build("mesh", devices, tuple(shape)).edges) == 2 * mesh
    assert len(build("torus", devices, tuple(shape)).edges) == 2 * torus


@pytest.mark.parametrize(("rows", "columns"), [(1, 7), (2, 2), (3, 4), (5, 2)])
def test_mesh_has_2rc_minus_r_minus_c_links(rows: int, columns: int):
    fabric = build("mesh", rows * columns, (rows, columns))
    assert len(fabric.edges) // 2 == 2 * rows * columns - rows - columns


def test_ring_of_two_and_torus_side_of_two_have_one_link():
    assert [(e.source, e.target) for e in build("ring", 2).edges] == [(0, 1), (1, 0)]
    assert len(build("torus", 4, (2, 2)).edges) == 8
    assert len(build("torus", 8, (2, 4)).edges) == 2 * (4 + 2 * 4)


def test_grid_numbers_along_the_last_side_first():
    neighbours = {e.target for e in build("mesh", 6, (2, 3)).edges if e.source == 0}
    assert neighbours == {1, 3}
    neighbours = {e.target for e in build("torus", 64, (4, 4, 4)).edges if e.source == 0}
    assert neighbours == {1, 3, 4, 12, 16, 48}


def test_a_ring_joins_each_device_to_the_next():
    assert {(e.source, e.target) for e in build("ring", 5).edges} == {
        pair for i in range(5) for pair in [(i, (i + 1) % 5), ((i + 1) % 5, i)]
    }


def test_the_latency_of_a_switch_is_on_the_way_in():
    edges = list(build("switch", 3).edges)
    assert all(e.link == LINK for e in edges if e.target == 3)
    assert all((e.link.latency, e.link.overhead, e.link.bandwidth) == (0, 0, 100e9) for e in edges if e.source == 3)


@pytest.mark.parametrize("topology", ["tree", "fat-tree"])
def test_each_further_switch_adds_one_latency(topology: str):
    fabric = build(topology, 8, (2, 2, 2))
    far = latencies(fabric, 0)
    assert far[1] == LINK.latency  # same switch
    assert far[2] == far[3] == pytest.approx(3 * LINK.latency)  # up, down, under one switch of the second level
    assert far[4] == far[7] == pytest.approx(5 * LINK.latency)


def test_tree_default_puts_four_under_a_switch():
    fabric = build("tree", 8)
    assert (fabric.switches, fabric.roots) == (3, (8,))
    assert {e.target for e in fabric.edges if e.source < 4} == {9}
    assert {e.target for e in fabric.edges if 4 <= e.source < 8} == {10}
    assert {e.target for e in fabric.edges if e.source == 8} == {9, 10}
    assert build("tree", 3).switches == 1
    assert Counter(e.target for e in build("tree", 6).edges if e.source < 6) == {7: 3, 8: 3}


@given(devices=st.integers(2, 40))
@settings(max_examples=15)
def test_every_link_of_a_tree_is_alike(devices: int):
    fabric = build("tree", devices)
    assert {e.link.bandwidth for e in fabric.edges} == {LINK.bandwidth}
    assert len(fabric.edges) == 2 * (devices + fabric.switches - 1)


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3))
@settings(max_examples=examples(30))
def test_a_fat_tree_sends_up_as_much_as_comes_from_below(shape: list[int]):
    devices = math.prod(shape)
    fabric = build("fat-tree", devices, tuple(shape))
    root = devices
    for switch in range(devices + 1, devices + fabric.switches):
        into = sum(e.link.bandwidth for e in fabric.edges if e.target == switch)
        out = sum(e.link.bandwidth for e in fabric.edges if e.source == switch)
        up = max(e.link.bandwidth for e in fabric.edges if e.source == switch)
        assert into == out == 2 * up
    if fabric.switches:
        assert sum(e.link.bandwidth for e in fabric.edges if e.target == root) == devices * LINK.bandwidth
    assert fabric.roots == ()


def test_fat_tree_default_is_near_square():
    fabric = build("fat-tree", 12)
    assert fabric.switches == 1 + 3
    assert {e.link.bandwidth for e in fabric.edges if e.source > 12} == {100e9, 400e9}


def test_a_prime_number_of_devices_gets_a_line_and_one_leaf():
    assert len(build("mesh", 7).edges) == 12
    assert build("fat-tree", 7).switches == 1


@pytest.mark.parametrize(
    ("count", "dimensions", "shape"),
    [(1, 2, (1, 1)), (8, 2, (2, 4)), (12, 2, (3, 4)), (36, 2, (6, 6)), (7, 2, (1, 7)), (64, 3, (4, 4, 4))],
)
def test_near_square(count: int, dimensions: int, shape: tuple[int, ...]):
    assert near_square(count, dimensions) == shape


@given(devices=st.integers(1, 300), wanted=st.lists(st.integers(1, 20), min_size=1, max_size=3))
@settings(max_examples=examples(60))
def test_a_wrong_shape_names_one_that_works(devices: int, wanted: list[int]):
    shape = tuple(wanted)
    if math.prod(shape) == devices:
        assert checked_shape("mesh", devices, shape) == shape
        return
    with pytest.raises(InputError, match=rf"holds {math.prod(shape)} devices, not {devices}") as error:
        checked_shape("mesh", devices, shape)
    named = parse_shape(str(error.value).rsplit(" ", 1)[1])
    assert math.prod(named) == devices
    assert len(named) == len(shape)


def test_the_nearest_shape_is_near():
    with pytest.raises(InputError, match="nearest shape for 8 is 2x4"):
        checked_shape("mesh", 8, (3, 3))
    with pytest.raises(InputError, match="nearest shape for 24 is 6x4"):
        checked_shape("torus", 24, (8, 4))


@pytest.mark.parametrize("shape", [(), (0, 8), (-2, -4), (2.0, 4), (True, 8)])
def test_a_shape_is_whole_numbers_above_zero(shape: tuple):
    with pytest.raises(InputError, match="whole numbers above zero"):
        checked_shape("mesh", 8, shape)


@pytest.mark.parametrize("topology", ["double-ring", "full", "hybrid-cube-mesh", "ring", "switch"])
def test_what_has_no_shape_refuses_one(topology: str):
    with pytest.raises(InputError, match="has no shape: leave out 2x2"):
        build(topology, 4, (2, 2))


@given(st.lists(st.integers(1, 999), min_size=1, max_size=4))
def test_shape_text_and_back(shape: list[int]):
    assert parse_shape(format_shape(tuple(shape))) == tuple(shape)


@pytest.mark.parametrize("text", ["", "x", "4x", "4,2", "0x4", "-4x2", "4.0x2", "four"])
def test_bad_shape_text(text: str):
    with pytest.raises(InputError, match="for example 4x2"):
        parse_shape(text)


def test_unknown_topology_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown topology 'taurus': did you mean torus"):
        TOPOLOGIES.get("taurus")
