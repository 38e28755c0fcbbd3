"""Systems from a few figures: ``flat``."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardware.graphs import distances, edges_of
from triosim.core.errors import InputError
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.hardware.build import accelerator, flat, from_file
from triosim.hardware.cluster import sources
from triosim.hardware.system import Link, System, Tier
from triosim.hardware.topology import TOPOLOGIES


def latency(system: System, a: int, b: int) -> float:
    rows = [e for e in edges_of(system) if e.tier == Tier.SCALE_UP]
    return distances(rows, system.nodes, a, lambda e: e.link.latency)[b]


def test_figures_are_used_as_given():
    s = flat(devices=4, link="113.75GB/s", latency="5us")
    assert s.models == (UNNAMED,)
    assert (s.devices, s.servers, s.nodes) == (4, 1, 5)
    assert s.node_names == ("gpu0", "gpu1", "gpu2", "gpu3", "switch")
    assert set(s.bandwidth) == {113.75e9}
    assert set(s.overhead) == {0}
    assert latency(s, 0, 3) == 5e-6
    assert (s.server_host.tolist(), s.pool, s.topology) == ([-1], -1, "switch")


def test_a_bandwidth_without_latency_has_none():
    s = flat("H100", 2, link="50GB/s")
    assert s.latency.tolist() == s.overhead.tolist() == [0] * 4


def test_the_devices_own_link():
    s = flat("H100", 8)
    assert set(s.bandwidth) == {450e9 * 0.8}
    assert latency(s, 0, 7) == 0.6e-6
    assert s.overhead.max() == 6e-6
    assert s.node_names[8] == "nvswitch"
    assert s.name == "8 x H100-SXM5-80GB, switch"
    assert any("NVLink4" in source for source in s.sources)
    assert latency(flat("H100", 8, latency="2us"), 0, 7) == 2e-6


@pytest.mark.parametrize(
    ("topology", "devices", "each"),
    [
        ("switch", 8, 448e9),
        ("full", 8, 64e9),
        ("full", 4, 128e9),
        ("ring", 8, 192e9),
        ("ring", 2, 448e9),
        ("torus", 16, 64e9),
    ],
)
def test_the_own_link_is_divided_among_neighbours(topology: str, devices: int, each: float):
    s = flat("MI300X", devices, topology)  # seven links of 64 GB/s, of which large transfers reach 0.68
    assert len(set(s.bandwidth)) == 1
    assert s.bandwidth[0] == pytest.approx(each * 0.68)


def test_a_given_link_is_one_neighbour_link():
    assert set(flat("MI300X", 8, "ring", "10GB/s").bandwidth) == {10e9}


def test_links_of_the_catalog_by_name():
    assert set(flat("T4", 4, link="PCIe3x16").bandwidth) == {15.76e9 * 0.8}
    assert set(flat("A800", 4, link="nvlink3").bandwidth) == {200e9 * 0.8}  # eight links, not the twelve of an A100
    assert set(flat(devices=4, link="NVLink3").bandwidth) == {300e9 * 0.8}


def test_a_link_object_and_bare_numbers():
    s = flat(devices=2, topology="ring", link=Link(7.0, 1.0, 2.0))
    assert (s.bandwidth.tolist(), s.latency.tolist(), s.overhead.tolist()) == ([7.0, 7.0], [1.0, 1.0], [2.0, 2.0])
    assert flat(devices=2, topology="ring", link=5e9, latency=1e-6).latency.tolist() == [1e-6, 1e-6]
    assert flat(devices=2, link="inf").bandwidth.tolist() == [math.inf] * 4


def test_shape_as_text_or_numbers():
    a = flat(devices=8, topology="mesh", link="1GB/s", shape="4x2")
    b = flat(devices=8, topology="mesh", link="1GB/s", shape=(4, 2))
    assert a.edge_source.tolist() == b.edge_source.tolist()
    assert len(a.edge_name) == 2 * (2 * 8 - 4 - 2)


def test_host_and_pool_are_linked_to_every_device():
    s = flat(devices=2, link="10GB/s", latency="1us", host_link="PCIe4x16", pool_link="5GB/s")
    assert s.node_names == ("gpu0", "gpu1", "switch", "host0", "pool")
    assert (s.server_host.tolist(), s.pool) == ([3], 4)
    host = [e for e in edges_of(s) if 3 in (e.source, e.target)]
    assert sorted((e.source, e.target) for e in host) == [(0, 3), (1, 3), (3, 0), (3, 1)]
    assert {(e.link.bandwidth, e.link.latency, e.tier) for e in host} == {(31.5e9 * 0.82, 0.6e-6, Tier.HOST)}
    pool = [e for e in edges_of(s) if 4 in (e.source, e.target)]
    assert {(e.link.bandwidth, e.link.latency, e.tier) for e in pool} == {(5e9, 0.0, Tier.HOST)}


def test_one_device_needs_nothing():
    s = flat()
    assert (s.devices, s.nodes, len(s.edge_name), s.topology) == (1, 1, 0, "")
    assert flat("T4").model(0).name == "T4"
    assert flat("T4", host_link="PCIe3x16").nodes == 2


@pytest.mark.parametrize("topology", TOPOLOGIES.names())
def test_every_topology(topology: str):
    assert flat("H100", 8, topology).devices == 8


def test_names_tell_the_kind():
    assert flat("Xeon-8480+", 2, "full").node_names == ("cpu0", "cpu1")
    assert flat("TPU-v4", 4, "ring").node_names[0] == "chip0"
    assert flat("MI300A", 4, "full").node_names[0] == "gpu0"


def test_a_users_own_device():
    mine = Accelerator("mine", link_bandwidth=90e9, source="dreams")
    assert set(flat(mine, 4, "torus").bandwidth) == {45e9}
    assert set(flat(mine, 4).bandwidth) == {90e9}


def test_a_device_from_a_file(tmp_path):
    file = tmp_path / "dream.toml"
    file.write_text('name = "Dream-1"\nlike = "H100"\npeak_flops = { bf16 = "2 PFLOP/s" }\nmemory = "192 GiB"\n')
    dream = accelerator(file)
    h100 = accelerator("H100")
    assert (dream.name, dream.memory_bytes) == ("Dream-1", 192 * 2**30)
    assert dream.peak_flops == {**h100.peak_flops, "bfloat16": 2e15}
    assert dream.memory_bandwidth == h100.memory_bandwidth
    assert dream.source == "as H100-SXM5-80GB, with changes by the user"
    assert flat(str(file), 2).models == (dream,)


def test_a_system_from_figures_loads_nothing_heavy():
    program = "import sys; from triosim.hardware.build import flat; flat('H100', 8); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "yaml", "pyarrow", "torch"} & set(loaded)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices must be from 1 to 1,000,000, got 0"),
        ({"devices": -3}, "devices must be from 1"),
        ({"devices": 2.0}, "devices must be a whole number, got 2.0"),
        ({"devices": True}, "devices must be a whole number, got True"),
        ({"devices": "8"}, "devices must be a whole number, got '8'"),
        ({"devices": 2}, "give --link, for example 50GB/s, or --device"),
        ({"device": "H1000"}, "unknown device 'H1000': did you mean H100"),
        ({"device": "T4", "devices": 2}, "no link from one T4 to another is known: .*PCIe3x16"),
        ({"device": "EPYC-7763", "devices": 2}, "no link from one EPYC-7763 to another is known"),
        ({"device": "A40", "devices": 4}, "NVLink3-bridge joins at most 2 of these devices, not 4"),
        ({"devices": 2, "link": "0GB/s"}, "--link '0GB/s' must be above zero"),
        ({"devices": 2, "link": "-5GB/s"}, "must be above zero"),
        ({"devices": 2, "link": math.nan}, "--link is not a number"),
        ({"devices": 2, "link": "nan"}, "--link 'nan' is not a number"),
        ({"devices": 2, "link": "NVLink44"}, "unknown link 'NVLink44': did you mean NVLink4"),
        ({"devices": 2, "link": "5 parsecs"}, "unknown unit 'parsecs'"),
        ({"devices": 2, "link": "1GB/s", "latency": "-1us"}, "--latency '-1us' is negative"),
        ({"devices": 2, "link": "1GB/s", "latency": math.nan}, "--latency is not a number"),
        ({"devices": 2, "link": "1GB/s", "latency": math.inf}, "latency must be zero or a positive time"),
        ({"devices": 2, "link": "1GB/s", "topology": "taurus"}, "unknown topology 'taurus': did you mean torus"),
        ({"devices": 9, "link": "1GB/s", "topology": "mesh", "shape": "2x4"}, "nearest shape for 9 is 3x3"),
        ({"devices": 4, "link": "1GB/s", "shape": "2x2"}, "topology switch has no shape"),
        ({"devices": 4, "link": "1GB/s", "topology": "mesh", "shape": "2by2"}, "for example 4x2"),
        ({"devices": 2, "link": "1GB/s", "host_link": "0"}, "--host-link '0' must be above zero"),
        ({"devices": 2, "link": "1GB/s", "pool_link": "fast"}, "unknown link 'fast'"),
        ({"devices": 5000, "link": "1GB/s", "topology": "full"}, "joins up to 4096 devices, not 5000"),
        ({"device": "nowhere.toml"}, "nowhere.toml: no such file"),
    ],
)
def test_what_cannot_be(arguments: dict, message: str):
    with pytest.raises(InputError, match=message):
        flat(**arguments)


def test_what_a_file_leaves_out_of_a_link_is_said_with_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    lines = ['name = "pair"', "[devices]", 'model = "A100"', "count = 2", "[scale_up]", 'topology = "ring"']
    lines.append('bandwidth = "50 GB/s"')
    file.write_text("\n".join(lines))
    assert any("as of NVLink4, for the file states none" in source for source in from_file(file).sources)
    file.write_text("\n".join([*lines, 'latency = "0 us"', 'overhead = "0 us"']))
    assert not any("the file states none" in source for source in from_file(file).sources)


def test_a_source_is_said_once() -> None:
    device = Accelerator("x", source="a datasheet")
    assert sources([device, device], [Link(1e9)], "pair: its makers") == ("pair: its makers", "x: a datasheet")
    assert sources([UNNAMED], [Link(1e9)]) == ()
