"""The catalog: every row loads, names resolve, figures are those of the sources."""

from __future__ import annotations

import csv
import math

import pytest

from tests.data import shared
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator


@pytest.mark.parametrize("name", catalog.accelerators())
def test_every_accelerator_loads_with_its_source(name: str):
    device = catalog.accelerator(name)
    assert device.name == name
    assert device.source
    assert device.confidence in ("high", "medium", "low")
    assert set(device.peak_flops) <= set(DTYPES)
    assert device.memory_bytes
    optional = (device.memory_bandwidth, device.clock_hz, device.compute_units, device.cache_bytes)
    for number in (*device.peak_flops.values(), device.tdp_w, device.link_bandwidth, *optional):
        assert number is None or (number > 0 and math.isfinite(number))
    if device.link:
        facts = catalog.device_link(device)
        assert facts is not None
        assert facts.bandwidth == device.link_bandwidth
    if device.host_link:
        assert catalog.link(device.host_link).bandwidth > 0


@pytest.mark.parametrize("name", catalog.links())
def test_every_link_loads_with_its_source(name: str):
    facts = catalog.link_facts(name)
    assert facts.source
    assert facts.confidence in ("high", "medium", "low")
    assert 0 < facts.efficiency <= 1
    link = catalog.link(name)
    assert link.bandwidth == facts.bandwidth * facts.efficiency
    assert (link.latency, link.overhead, link.name, link.source) == (facts.latency, facts.overhead, name, facts.source)


def test_rows_are_carried_whole():
    """Every row of the collected facts is in the catalog with the same figures."""
    with open(shared("hardware", "accelerators.csv"), newline="") as lines:
        for row in csv.DictReader(lines):
            device = catalog.accelerator(row["name"])
            assert (device.source, device.confidence) == (row["source"], row["confidence"])
            assert device.memory_bandwidth == (float(row["mem_bw_gbs"] + "e9") if row["mem_bw_gbs"] else None)
            for dtype, column in (("bfloat16", "bf16_tflops"), ("float32", "fp32_tflops"), ("tfloat32", "tf32_tflops")):
                expected = float(row[column] + "e12") if row[column] else None
                assert device.peak_flops.get(dtype) == expected
            assert row["notes"] in device.notes
    with open(shared("hardware", "interconnects.csv"), newline="") as lines:
        for row in csv.DictReader(lines):
            facts = catalog.link_facts(row["name"])
            assert (facts.source, facts.confidence, facts.notes) == (row["source"], row["confidence"], row["notes"])
            assert facts.bandwidth == float(row["gbs_per_dir_per_device"] + "e9")
            assert facts.efficiency == float(row["eff_large_msg"])


def test_h100_by_hand():
    h100 = catalog.accelerator("H100-SXM5-80GB")
    assert h100.peak("bfloat16") == 989.4e12
    assert h100.peak("tfloat32") == 494.7e12
    assert h100.peak("float32") == 66.9e12
    assert h100.peak("float64") == 66.9e12  # matrix units, not 33.5 of the vector units
    assert h100.memory_bytes == 84929347584  # what PyTorch sees of 80 GiB
    assert h100.memory_bandwidth == 3352e9
    assert (h100.compute_units, h100.clock_hz, h100.cache_bytes) == (132, 1.98e9, 50 * 2**20)
    nvlink = catalog.link("NVLink4")
    assert nvlink.bandwidth == 450e9 * 0.8
    assert (nvlink.latency, nvlink.overhead) == (0.6e-6, 6e-6)
    assert catalog.link_facts("nvlink4").bandwidth == 450e9


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "H100-SXM5-80GB"),
        ("h100-sxm5-80gb", "H100-SXM5-80GB"),
        ("a100", "A100-SXM4-80GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("V100", "V100-SXM2-32GB"),
        ("H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("GB200", "GB200-NVL72-186GB"),
        ("MI300X", "MI300X"),
        ("tpu_v5p", "TPU-v5p"),
        ("rtx 4090", "RTX-4090"),
        ("rtx4090", "RTX-4090"),
        ("GTX", "GTX-1080Ti"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    ],
)
def test_names_people_type(typed: str, name: str):
    assert catalog.accelerator(typed).name == name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA GB200", "GB200-NVL72-186GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-PG509-200", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla T4", "T4"),
        ("Tesla K80", "K80-GPU"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X/MI250", "MI250X-GCD"),
        ("TPU v4", "TPU-v4"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon-8480+"),
        ("AMD EPYC 7763 64-Core Processor", "EPYC-7763"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("GRID A100X-40C", None),
        ("NVIDIA H100", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_names_profilers_print(printed: str, name: str | None):
    assert catalog.identify(printed) == name


def test_every_alias_is_free_of_doubt():
    for name in catalog.accelerators():
        for alias in catalog.aliases(name):
            assert catalog.accelerator(alias).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("H1000", r"unknown device 'H1000': did you mean H100"),
        ("", "unknown device ''"),
        ("TPU", "device 'TPU' could be TPU-v1, TPU-v2, .*: say which"),
    ],
)
def test_unknown_devices(name: str, message: str):
    with pytest.raises(InputError, match=message):
        catalog.accelerator(name)


def test_unknown_link_and_system():
    with pytest.raises(InputError, match=r"unknown link 'NVLink44': did you mean NVLink4.*or give a bandwidth"):
        catalog.link("NVLink44")
    with pytest.raises(InputError, match="unknown system 'dgx-h1000': did you mean dgx-h100"):
        catalog.system_file("dgx-h1000")


def test_a_device_may_have_fewer_links_than_its_kind():
    a800 = catalog.device_link(catalog.accelerator("A800"))
    assert a800 is not None
    assert (a800.bandwidth, a800.links) == (200e9, 8)
    a40 = catalog.device_link(catalog.accelerator("A40"))
    assert a40 is not None
    assert (a40.bandwidth, a40.links, a40.devices) == (56.25e9, None, 2)
    assert catalog.device_link(catalog.accelerator("T4")) is None
    assert catalog.device_link(Accelerator("mine", link="NVLink4")) == catalog.link_facts("NVLink4")


def test_links_are_divided_among_neighbours():
    facts = catalog.device_link(catalog.accelerator("H100"))
    assert facts is not None
    assert facts.shared_among(1).bandwidth == 450e9 * 0.8
    assert facts.shared_among(2).bandwidth == 9 * 25e9 * 0.8
    assert facts.shared_among(7).bandwidth == 2 * 25e9 * 0.8  # 18 links: two to each, four to spare
    assert facts.shared_among(100).bandwidth == pytest.approx(4.5e9 * 0.8)
    assert facts.link(3).bandwidth == 75e9 * 0.8
    with pytest.raises(InputError, match="one physical link of NeuronLink-v4"):
        catalog.link_facts("NeuronLink-v4").link(2)


def test_systems_for_listing():
    rows = catalog.system_rows()
    assert [row["name"] for row in rows] == catalog.systems()
    dgx = catalog.system_row("DGX-1V")
    assert (dgx["devices"], dgx["model"], dgx["topology"]) == (8, "V100-SXM2-32GB", "graph")
    assert dgx["description"]["scale_out"]["nics"] == 4
    for row in rows:
        assert catalog.accelerator(row["model"])


def test_rows_for_listing_are_plain():
    assert [catalog.accelerator_row(name)["name"] for name in catalog.accelerators()] == catalog.accelerators()
    h100 = catalog.accelerator_row("H100")
    assert h100["aliases"][0] == "H100"
    assert h100["datasheet_memory_bytes"] == 80 * 2**30
    assert h100["source"] == "NVIDIA H100 whitepaper/datasheet"
