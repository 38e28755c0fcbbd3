"""The ready systems: each loads, says where it is from, and is the machine that it is said to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import triosim
from tests.command import run
from tests.hardware.graphs import distances, edges_of
from triosim.hardware import catalog
from triosim.hardware.build import flat, ready
from triosim.hardware.describe import LinkDescription, describe
from triosim.hardware.description import read_system, read_table
from triosim.hardware.system import Tier


@pytest.mark.parametrize("name", catalog.systems())
def test_every_ready_system(name: str):
    table = read_table(catalog.system_file(name))
    assert table["about"]
    assert table["source"]
    assert table["confidence"] in ("high", "medium", "low")
    for part in ("devices", "scale_up", "host", "scale_out"):
        assert part not in table or table[part]["source"], f"[{part}] has no source"
    s = ready(name)  # which checks that all devices reach each other
    assert s.name == name
    assert s.sources
    assert all(model.name in catalog.accelerators() for model in s.models)
    if read_system(catalog.system_file(name)).scale_out:
        assert ready(name, 2).devices == 2 * s.devices


def test_dgx_h100():
    s = ready("dgx-h100", 2)
    assert (s.devices, s.servers) == (16, 2)
    assert s.models == (catalog.accelerator("H100"),)
    assert s.server_cpu == catalog.accelerator("Xeon-8480+")
    kinds = Counter(zip(s.edge_name, s.edge_tier.tolist(), s.bandwidth.tolist(), strict=True))
    assert kinds["NVLink4", Tier.SCALE_UP, 450e9 * 0.8] == 32
    assert kinds["InfiniBand-NDR", Tier.SCALE_OUT, 50e9 * 0.92] == 32


def test_dgx_1v_has_six_links_on_each_gpu_and_two_hops_at_most():
    s = ready("dgx-1v")
    rows = [e for e in edges_of(s) if e.tier == Tier.SCALE_UP]
    for gpu in range(8):
        assert sum(e.link.bandwidth for e in rows if e.source == gpu) == pytest.approx(6 * 25e9 * 0.87)
        far = distances(rows, s.nodes, gpu, lambda e: 1)[:8]
        assert Counter(far) == {0: 1, 1: 4, 2: 3}


def test_mi300x_has_one_link_for_each_pair():
    s = ready("mi300x-8")
    rows = [e for e in edges_of(s) if e.tier == Tier.SCALE_UP]
    assert len(rows) == 56
    assert {e.link.bandwidth for e in rows} == {64e9 * 0.68}


@pytest.mark.parametrize(("name", "links"), [("hgx-a100-4", 4), ("hgx-h100-4", 6), ("hgx-h200-4", 6)])
def test_four_gpu_boards_share_links_among_three_neighbours(name: str, links: int):
    rows = [e for e in edges_of(ready(name)) if e.tier == Tier.SCALE_UP]
    assert len(rows) == 12
    assert {e.link.bandwidth for e in rows} == {links * 25e9 * 0.8}


def test_tpu_links_are_those_of_the_datasheet():
    for name, each, degree in (("tpu-v4-4x4x4", 50e9, 6), ("tpu-v5e-256", 50e9, 4), ("tpu-v5p-4x4x4", 100e9, 6)):
        s = ready(name)
        rows = [e for e in edges_of(s) if e.tier == Tier.SCALE_UP]
        assert {e.link.bandwidth for e in rows} == {each * 0.9}
        assert set(Counter(e.source for e in rows).values()) == {degree}


def test_cut_down_exports_have_fewer_links():
    assert ready("hgx-h800").bandwidth.max() == pytest.approx(200e9 * 0.8)


def test_pcie_servers_have_the_host_at_the_roots_of_both_sockets():
    s = ready("pcie-a100-8")
    host = int(s.server_host[0])
    assert [e.source for e in edges_of(s) if e.target == host] == [8, 9]


def test_a_large_cluster_is_quick_to_count():
    s = ready("dgx-h100", 64)
    assert (s.devices, s.servers, len(s.edge_name)) == (512, 64, 64 * (16 + 16 + 2 + 16 + 16))


def test_description_is_plain():
    s = ready("dgx-a100", 2)
    plain = describe(s)
    assert (plain.name, plain.devices, plain.servers) == ("2 x dgx-a100", 16, 2)
    assert plain.accelerators[0].name == "A100-SXM4-80GB"
    assert plain.accelerators[0].count == 16
    assert plain.host_memory is True
    assert plain.host_cpu == "EPYC-7742"
    nvlink = next(row for row in plain.links if row.name == "NVLink3")
    assert nvlink == LinkDescription("NVLink3", "scale_up", 32, 300e9 * 0.8, 0.7e-6, 6e-6)


def test_description_of_what_never_limits():
    plain = describe(flat(devices=2, link="inf"))
    assert plain.links[0].bandwidth_bytes_per_s is None
    assert plain.accelerators[0].memory_bytes is None
    assert describe(flat()).links == ()


def test_links_are_counted_one_by_one_where_figures_were_changed() -> None:
    s = ready("dgx-h100", 2)
    bandwidth = s.bandwidth.copy()
    bandwidth[:3] /= 2
    before, after = describe(s).links, describe(replace(s, bandwidth=bandwidth)).links
    assert sum(row.directions for row in after) == sum(row.directions for row in before) == len(s.bandwidth)
    slow = [row for row in after if row.bandwidth_bytes_per_s == bandwidth[0]]
    assert [row.directions for row in slow] == [3]
    assert describe(replace(s, edge_name=tuple(s.edge_name))).links == before


OWN = """name = "own"
nodes = 4
[devices]
model = "A100"
count = 8
[scale_up]
topology = "switch"
bandwidth = "300 GB/s"
[scale_out]
bandwidth = "400 Gb/s"
nics = 4
"""


def test_a_file_is_shown_with_its_servers_and_what_joins_them(tmp_path):
    """Links without a name as those with one."""
    (tmp_path / "own.toml").write_text(OWN)
    shown = " ".join(run("systems", tmp_path / "own.toml").stdout.split())
    assert "devices 8 in each server" in shown
    assert "servers 4, 4 NICs each, joined by topology switch" in shown
    assert "- servers 50 GB/s" in shown
    (tmp_path / "own.toml").write_text(OWN.replace("nodes = 4", "").replace("nics = 4", ""))
    shown = " ".join(run("systems", tmp_path / "own.toml").stdout.split())
    assert "servers as many as --nodes says, 8 NICs each, joined by topology switch" in shown
    (tmp_path / "own.toml").write_text(OWN[: OWN.index("[scale_out]")].replace("nodes = 4", ""))
    shown = " ".join(run("systems", tmp_path / "own.toml").stdout.split())
    assert "in each server" not in shown
    assert "NIC" not in shown


def test_slices_of_tpus_are_joined_by_the_nics_of_their_hosts() -> None:
    """Eight chips have two NICs of 100 Gb/s; gradients of two slices cross them once, both ways."""
    slices = triosim.system("tpu-v5e-256", 2)
    assert slices.devices == 512
    trace = triosim.model("llama-3.2-1b", sequence_length=128, configuration={"num_hidden_layers": 2})
    plan = triosim.Plan(zero=3, parallelism=("hsdp",), parallelism_options={"dp_replicate": 2})
    result = triosim.simulate(trace, slices, plan, triosim.Fidelity(host="none"))
    crossing = [row for row in result.collectives if row.axis == "dp_replicate"]
    gradients = sum(256 * row.bytes * row.count for row in crossing)
    assert {row.kind for row in crossing} == {"all_reduce"}
    assert gradients == pytest.approx(2 * int(trace.values.elements()[trace.weights()].sum()), rel=0.01)
    fastest = gradients / (64 * 12.5e9)
    assert fastest < sum(row.seconds for row in crossing) < 4 * fastest
