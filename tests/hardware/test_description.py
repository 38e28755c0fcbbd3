"""Files that describe machines, and what is wrong with wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardware.graphs import distances, edges_of
from triosim.core.errors import InputError
from triosim.hardware.build import from_file, load
from triosim.hardware.system import System, Tier

NODE = """
name = "pair"
source = "a datasheet"
[devices]
model = "H100"
count = 4
[scale_up]
topology = "switch"
bandwidth = "400 GB/s"
latency = "1 us"
[host]
cpu = "EPYC-7763"
link = "PCIe5x16"
[scale_out]
link = "InfiniBand-NDR"
nics = 2
[pool]
bandwidth = "10 GB/s"
"""


def write(folder: Path, text: str | bytes, name: str = "machine.toml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def named(system: System) -> dict[tuple[str, str], tuple[float, float]]:
    """Bandwidth and latency by the names of an edge's ends."""
    return {
        (system.node_names[e.source], system.node_names[e.target]): (e.link.bandwidth, e.link.latency)
        for e in edges_of(system)
    }


def test_one_node(tmp_path):
    s = from_file(write(tmp_path, NODE))
    assert (s.name, s.devices, s.servers, s.topology) == ("pair", 4, 1, "switch")
    assert s.node_names == ("gpu0", "gpu1", "gpu2", "gpu3", "switch", "host0", "pool")
    assert s.server_cpu is not None
    assert s.server_cpu.name == "EPYC-7763"
    edges = named(s)
    assert edges["gpu0", "switch"] == (400e9, 1e-6)
    assert edges["switch", "gpu0"] == (400e9, 0.0)
    assert edges["gpu3", "host0"] == edges["host0", "gpu3"] == (pytest.approx(63.01e9 * 0.85), 0.6e-6)
    assert edges["gpu3", "pool"] == edges["pool", "gpu3"] == (10e9, 0.25e-6)  # as of CXL2-x16, not being stated
    assert s.sources[0] == "pair: a datasheet"


def test_several_nodes_share_nics_and_the_pool(tmp_path):
    s = from_file(write(tmp_path, NODE), 3)
    assert (s.name, s.devices, s.servers, s.topology) == ("3 x pair", 12, 3, "switch; 3 nodes, switch")
    assert s.node_names[:5] == ("node0/gpu0", "node0/gpu1", "node0/gpu2", "node0/gpu3", "node1/gpu0")
    assert s.device_server.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [s.node_names[h] for h in s.server_host] == ["node0/host0", "node1/host0", "node2/host0"]
    assert s.node_names[s.pool] == "pool"
    edges = named(s)
    assert {pair[1] for pair in edges if pair[0] == "node1/gpu2"} == {
        "node1/switch", "node1/host0", "node1/nic1", "pool"
    }  # fmt: skip
    assert edges["node1/nic1", "network"] == (50e9 * 0.92, 1.3e-6)
    assert edges["network", "node1/nic1"] == (50e9 * 0.92, 0.0)
    assert edges["node1/gpu2", "node1/nic1"][1] == 0.0
    tiers = {(s.node_names[e.source], s.node_names[e.target]): e.tier for e in edges_of(s)}
    assert tiers["node1/gpu2", "node1/nic1"] == tiers["network", "node0/nic0"] == Tier.SCALE_OUT
    assert tiers["node0/gpu0", "node0/switch"] == Tier.SCALE_UP
    between = distances([e for e in edges_of(s) if e.tier != Tier.HOST], s.nodes, 0, lambda e: e.link.latency)
    assert between[4] == 1.3e-6  # one logical hop of the scale-out network
    assert between[1] == 0  # through the NIC it shares: what tiers keep routes from


def test_more_nics_than_devices_are_ganged(tmp_path):
    s = from_file(write(tmp_path, NODE.replace("nics = 2", "nics = 8")), 2)
    edges = named(s)
    assert edges["node1/nic3", "network"] == (2 * 50e9 * 0.92, 1.3e-6)
    assert ("node1/nic4", "network") not in edges


def test_one_nic_for_each_device_by_default(tmp_path):
    s = from_file(write(tmp_path, NODE.replace("nics = 2\n", "")), 2)
    assert sum("nic" in name for name in s.node_names) == 8


def test_scale_out_in_any_topology(tmp_path):
    text = NODE.replace("nics = 2", 'nics = 2\ntopology = "fat-tree"\nshape = "4x2"')
    s = from_file(write(tmp_path, text), 4)
    assert [n for n in s.node_names if n.startswith("network")] == [f"network{i}" for i in range(5)]


def test_a_device_that_does_not_exist_yet_takes_ten_lines(tmp_path):
    text = """
[devices]
count = 16
[devices.model]
name = "Dream-1"
peak_flops = { bf16 = "2 PFLOP/s", fp8 = "4 PFLOP/s" }
memory = "192 GiB"
memory_bandwidth = "8 TB/s"
link_bandwidth = "1 TB/s"
[scale_up]
topology = "torus"
"""
    s = from_file(write(tmp_path, text))
    dream = s.models[0]
    assert dream.peak_flops == {"bfloat16": 2e15, "float8_e4m3fn": 4e15}
    assert (dream.memory_bytes, dream.memory_bandwidth) == (192 * 2**30, 8e12)
    assert dream.priced
    assert set(s.bandwidth) == {250e9}


GRAPH = """
[[device]]
name = "gpu"
count = 2
model = "A100"
server = "left"
[[device]]
name = "old"
model = "V100"
server = "right"
[[switch]]
name = "x"
[[host]]
name = "memory"
server = "left"
cpu = "EPYC-7742"
[[link]]
from = "gpu0"
to = "x"
bandwidth = "20 GB/s"
latency = "2 us"
[[link]]
from = "x"
to = "gpu1"
link = "NVLink3"
[[link]]
from = "old"
to = "x"
bandwidth = "5 GB/s"
both = false
[[link]]
from = "x"
to = "old"
bandwidth = "1 GB/s"
both = false
[[link]]
from = "gpu0"
to = "gpu1"
link = "NVLink3"
links = 4
[[link]]
from = "gpu0"
to = "memory"
link = "PCIe4x16"
"""


def test_a_written_out_graph(tmp_path):
    s = from_file(write(tmp_path, GRAPH))
    assert s.node_names == ("gpu0", "gpu1", "old", "x", "memory")
    assert [m.name for m in s.models] == ["A100-SXM4-80GB", "V100-SXM2-32GB"]
    assert s.device_model.tolist() == [0, 0, 1]
    assert s.device_server.tolist() == [0, 0, 1]
    assert s.server_host.tolist() == [4, -1]
    assert s.server_cpu is not None
    assert (s.server_cpu.name, s.topology) == ("EPYC-7742", "graph")
    edges = named(s)
    assert edges["gpu0", "x"] == edges["x", "gpu0"] == (20e9, 2e-6)  # as written, both ways
    assert edges["gpu1", "x"] == (300e9 * 0.8, 0.7e-6)
    assert edges["x", "gpu1"] == (300e9 * 0.8, 0.0)  # the catalog's latency is that of a whole hop
    assert (edges["old", "x"][0], edges["x", "old"][0]) == (5e9, 1e9)
    assert edges["gpu0", "gpu1"] == edges["gpu1", "gpu0"] == (100e9 * 0.8, 0.7e-6)
    assert {e.tier for e in edges_of(s) if 4 in (e.source, e.target)} == {Tier.HOST}


def test_a_builder_and_links_besides(tmp_path):
    text = NODE + '[[link]]\nfrom = "gpu0"\nto = "gpu1"\nbandwidth = "50 GB/s"\n'
    assert named(from_file(write(tmp_path, text)))["gpu1", "gpu0"] == (50e9, 0.6e-6)  # as of NVLink4


def test_servers_of_a_graph_and_nodes(tmp_path):
    text = GRAPH + '[scale_out]\nbandwidth = "10 GB/s"\nlatency = "3 us"\n'
    s = from_file(write(tmp_path, text), 2)
    assert s.device_server.tolist() == [0, 0, 1, 2, 2, 3]
    assert [s.node_names[h] if h >= 0 else "" for h in s.server_host] == ["node0/memory", "", "node1/memory", ""]


def test_host_on_the_root_of_a_tree(tmp_path):
    text = '[devices]\nmodel = "T4"\ncount = 8\n[scale_up]\ntopology = "tree"\nlink = "PCIe3x16"\n[host]\n'
    s = from_file(write(tmp_path, text))
    edges = named(s)
    assert ("switch0", "host0") in edges
    assert not any("gpu" in a and b == "host0" for a, b in edges)
    to_host = distances(edges_of(s), s.nodes, 0, lambda e: e.link.latency)[s.node_names.index("host0")]
    assert to_host == pytest.approx(2 * 0.8e-6)  # two switches on the way: the leaf's and the root


def test_devices_that_share_a_link_to_the_host(tmp_path):
    text = NODE.replace('link = "PCIe5x16"', 'bandwidth = "20 GB/s"\nlatency = "4 us"\ndevices_per_link = 2')
    edges = named(from_file(write(tmp_path, text)))
    assert edges["gpu2", "pcie1"] == (20e9, 4e-6)
    assert edges["pcie1", "host0"] == (20e9, 0.0)
    assert edges["host0", "pcie1"] == (20e9, 4e-6)
    assert edges["pcie1", "gpu2"] == (20e9, 0.0)
    assert ("gpu2", "host0") not in edges


def test_own_host_link(tmp_path):
    text = '[devices]\nmodel = "H100"\n[host]\n'
    assert named(from_file(write(tmp_path, text)))["gpu0", "host0"][0] == pytest.approx(63.01e9 * 0.85)


def test_a_named_link_with_some_figures_replaced(tmp_path):
    text = NODE.replace('bandwidth = "400 GB/s"', 'link = "NVLink4"').replace('"1 us"', '"3 us"')
    s = from_file(write(tmp_path, text))
    assert named(s)["gpu0", "nvswitch"] == (450e9 * 0.8, 3e-6)
    assert s.overhead.max() == 8e-6  # of PCIe; NVLink's 6 us is there too
    assert 6e-6 in s.overhead.tolist()
    text = NODE.replace('bandwidth = "400 GB/s"', 'link = "NVLink4"\nlinks = 6')
    assert named(from_file(write(tmp_path, text)))["gpu0", "nvswitch"][0] == 150e9 * 0.8
    text = NODE.replace('latency = "1 us"', "").replace('"400 GB/s"', '"370 GB/s"\nlink = "NVLink4"')
    assert named(from_file(write(tmp_path, text)))["gpu0", "nvswitch"] == (370e9, 0.6e-6)


def test_yaml_says_the_same(tmp_path):
    text = """
name: pair
source: a datasheet
devices: {model: H100, count: 4}
scale_up:
  topology: switch
  bandwidth: 400 GB/s
  latency: 1 us
host: {cpu: EPYC-7763, link: PCIe5x16}
scale_out: {link: InfiniBand-NDR, nics: 2}
pool: {bandwidth: 10 GB/s}
"""
    a = from_file(write(tmp_path, text, "machine.yaml"), 2)
    b = from_file(write(tmp_path, NODE), 2)
    assert named(a) == named(b)
    assert (a.name, a.sources) == (b.name, b.sources)


def test_load_takes_names_and_paths(tmp_path, monkeypatch):
    write(tmp_path, NODE)
    monkeypatch.chdir(tmp_path)
    assert load("machine.toml").name == "pair"
    assert load(tmp_path / "machine.toml", 2).name == "2 x pair"
    assert load("DGX_H100", 2).name == "2 x dgx-h100"


def test_the_file_names_the_system_that_has_no_name(tmp_path):
    assert from_file(write(tmp_path, '[devices]\nmodel = "H100"\n', "box.toml")).name == "box"


A = '[[device]]\nname = "a"\nmodel = "H100"\n'
B = '[[device]]\nname = "b"\nmodel = "H100"\n'
AB = A + B + '[[link]]\nfrom = "a"\nto = "b"\n'
FOUR = '[devices]\nmodel = "H100"\ncount = 4\n[scale_up]\ntopology = '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"there is no device: add a \[devices\] table"),
        ("x", "not valid TOML: .*line 1|not valid TOML"),
        ("devices = 3", "devices: must be a table, got 3"),
        ("device = 3", "device: must be a list of tables, got 3"),
        ('[devices]\nmodel = "H100"\nmodel = "A100"', "not valid TOML"),
        ('[devices]\nmodel = "H100"\n' + A, "exclude each other"),
        ('[devices]\nmodel = "H100"\ncuont = 2', "devices: unknown key 'cuont': did you mean 'count'"),
        ('[devices]\nmodel = "H100"\n[sacle_up]\n', "unknown key 'sacle_up': did you mean 'scale_up'"),
        ('[devices]\nmodel = "H1000"', "devices.model: unknown device 'H1000': did you mean H100"),
        ("[devices]\nmodel = 7", "devices.model: must be a text, got 7"),
        ("[devices]\ncount = 7", "devices.model: is missing"),
        ('[devices]\nmodel = "H100"\ncount = 0', "devices.count: must be at least 1, got 0"),
        ('[devices]\nmodel = "H100"\ncount = 2.5', "devices.count: must be a whole number, got 2.5"),
        ('[devices]\nmodel = "H100"\ncount = "2"', "devices.count: must be a whole number, got '2'"),
        ('[devices]\nmodel = "H100"\ncount = true', "devices.count: must be a whole number, got True"),
        ('[devices]\nmodel = "H100"\ncount = 4', r"4 devices need links: add a \[scale_up\]"),
        ('[devices.model]\nmemory = "1GiB"', "devices.model.name: is missing"),
        ('[devices.model]\nname = "x"\nlike = "H1000"', "devices.model: unknown device 'H1000'"),
        ('[devices.model]\nname = "x"\nmemory = "-1GiB"', "devices.model.memory: size '-1GiB' is negative"),
        ('[devices.model]\nname = "x"\nmemory = 0', "devices.model.memory: must be above 0, got 0"),
        ('[devices.model]\nname = "x"\nmemory = []', "devices.model.memory: size must be a text with a unit"),
        ('[devices.model]\nname = "x"\nmemory_bandwidth = "0B/s"', "memory_bandwidth: .* must be above zero"),
        ('[devices.model]\nname = "x"\nclock_hz = nan', "clock_hz: must be a finite number"),
        ('[devices.model]\nname = "x"\npeak_flops = { bf17 = 1 }', "unknown element type 'bf17': known: fp64"),
        ('[devices.model]\nname = "x"\npeak_flops = { bf16 = -1 }', "peak_flops.bf16: .* must be above zero"),
        ('[devices.model]\nname = "x"\nhost_link = "PCI"', "devices.model: unknown link 'PCI'"),
        (FOUR + '"taurus"', "scale_up: unknown topology 'taurus': did you mean torus"),
        (FOUR + '"mesh"\nshape = [3, 2]', "scale_up: topology mesh: shape 3x2 .*nearest shape for 4 is 2x2"),
        (FOUR + '"mesh"\nshape = [2, 0]', "scale_up.shape #2: must be at least 1, got 0"),
        (FOUR + '"mesh"\nshape = "2by2"', "scale_up.shape: shape '2by2' is not"),
        (FOUR + '"ring"\nbandwidth = 0', "scale_up.bandwidth: bandwidth 0 must be above zero"),
        (FOUR + '"ring"\nbandwidth = nan', "scale_up.bandwidth: must be a finite number, got nan"),
        (FOUR + '"ring"\nbandwidth = true', "scale_up.bandwidth: bandwidth True is not a number"),
        (FOUR + '"ring"\nlatency = "-1us"', "scale_up.latency: time '-1us' is negative"),
        (FOUR + '"ring"\nlatency = inf', "scale_up: link NVLink4: latency must be zero or a positive time"),
        (FOUR + '"ring"\nlink = "NVLink9"', "scale_up: unknown link 'NVLink9'"),
        (FOUR + '"ring"\nlinks = 2', "scale_up: links counts physical links"),
        (FOUR.replace("H100", "T4") + '"ring"', "scale_up: no link from one T4 to another"),
        (A + B.replace("H100", "A100") + '[scale_up]\ntopology = "ring"', "devices of different kinds"),
        ('[devices]\nmodel = "H100"\n[host]\ncpu = "8088"', "host: unknown device '8088'"),
        ('[devices]\nmodel = "M1"\n[host]\n', "host: no host link of device M1 is known"),
        ('host = 3\n[devices]\nmodel = "H100"', "host: must be a table, got 3"),
        ('[devices]\nmodel = "H100"\n[pool]\n', "pool: say how fast the link is"),
        (NODE.replace("NDR", "NDRX"), "scale_out: unknown link 'InfiniBand-NDRX': did you mean InfiniBand-NDR"),
        (NODE.replace("nics = 2", 'topology = "taurus"'), "scale_out: unknown topology 'taurus'"),
        (NODE.replace("nics = 2", "nics = 6"), "scale_out: 6 nics cannot be shared out to 4 devices"),
        (FOUR + '"ring"\nbandwidth = 1' + 400 * "0", "scale_up.bandwidth: is too large"),
        (A + A + '[[link]]\nfrom = "a"\nto = "a"\nbandwidth = 1', "two nodes are called 'a'"),
        (A + '[[switch]]\nname = "a"', "two nodes are called 'a'"),
        (A + '[[switch]]\nname = "s"', "switch 's' has no link"),
        (A + '[[switch]]\nname = ""', "switch #1.name: must not be empty"),
        (A + '[[host]]\nname = "h"', "'h' cannot be reached from 'a': add a link"),
        (A + '[[host]]\nname = "h"\nserver = 3', "host #1: unknown server '3'"),
        (A + '[[host]]\nname = "h"\n[[host]]\nname = "g"', "host #2: server 0 has a host already"),
        (AB, "link #1: say how fast the link is"),
        (AB + "bandwidth = 0", "link #1.bandwidth: bandwidth 0 must be above zero"),
        (AB + 'bandwidth = "1GB/s"\nlatency = "x"', "link #1.latency: time 'x' is not a number"),
        (AB + 'bandwidth = "1GB/s"\nboth = 1', "link #1.both: must be true or false, got 1"),
        (AB + 'bandwidth = "1GB/s"\nboth = false', "'b' cannot reach 'a': add a link"),
        (AB + 'link = "NVLink4"', "link #1: say how many NVLink4 links join 'a' and 'b'"),
        (AB.replace('to = "b"', 'to = "c"') + "bandwidth = 1", "link #1: unknown node 'c': .*'to' must name"),
        (AB.replace('to = "b"', 'to = "a"') + "bandwidth = 1", "link #1: joins 'a' with itself"),
        (AB.replace('to = "b"\n', "") + "bandwidth = 1", "link #1.to: is missing"),
        (b"\xff\xfe", "byte 0 is not UTF-8 text"),
    ],
)
def test_what_is_wrong_is_said_with_file_place_and_cure(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as error:
        from_file(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: not valid YAML"),
        ("- 1", "must be a table of keys"),
        ("devices: {model: H100}\ndevices: {model: A100}", "line 2: not valid YAML: key 'devices' is given twice"),
        ("devices: *x", "not valid YAML: found undefined alias"),
        ('a: !!python/object/apply:os.system ["false"]', "line 1: not valid YAML: type .* is not known"),
    ],
)
def test_wrong_yaml(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        from_file(write(tmp_path, text, "machine.yml"))


def test_files_that_are_not_there_or_not_descriptions(tmp_path):
    with pytest.raises(InputError, match=r"nope.toml: no such file"):
        load("nope.toml")
    with pytest.raises(InputError, match=r"ends in \.json, \.toml, \.yaml, \.yml"):
        from_file(write(tmp_path, "", "machine.txt"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        from_file(tmp_path / "folder.toml")
    with pytest.raises(InputError, match="unknown system 'dgx-h1000': did you mean dgx-h100"):
        load("dgx-h1000")


@pytest.mark.parametrize("nodes", [0, -1, 1.5, True, "2", 10**9])
def test_nodes_are_a_sensible_number(nodes):
    with pytest.raises(InputError, match="nodes must be"):
        load("dgx-h100", nodes)


def test_scale_out_is_needed_for_several_nodes(tmp_path):
    text = NODE[: NODE.index("[scale_out]")]
    assert from_file(write(tmp_path, text)).servers == 1
    with pytest.raises(InputError, match=r"several nodes need a \[scale_out\]"):
        from_file(write(tmp_path, text), 2)
    with pytest.raises(InputError, match=r"scale_out: say how fast the link is"):
        from_file(write(tmp_path, text + "[scale_out]\n"), 2)


@pytest.mark.parametrize("key", ["latency", "overhead"])
def test_a_time_in_quotes_names_its_unit(key: str, tmp_path: Path) -> None:
    """5 is more likely to be microseconds than seconds; a number without quotes is seconds, as the page says."""
    file = tmp_path / "box.toml"
    text = '[devices]\nmodel = "H100"\ncount = 4\n[scale_up]\ntopology = "full"\nbandwidth = "1 GB/s"\n'
    file.write_text(f'{text}{key} = "5"\n')
    with pytest.raises(InputError, match=f"scale_up.{key}: time '5' has no unit: use s, ms, us"):
        from_file(file)
    file.write_text(f"{text}{key} = 5\n")
    assert set(getattr(from_file(file), key).tolist()) >= {5.0}
