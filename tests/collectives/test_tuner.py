"""NCCL's choice of protocol, against the jumps that measurements show."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.collectives import tuner
from triosim.collectives.group import Group, LinkClass

MIB = 2**20
NVLINK3 = LinkClass(240e9, 0.7e-6, name="NVLink3", family="NVLink")
NVLINK4 = LinkClass(360e9, 0.6e-6, name="NVLink4", family="NVLink")
NVLINK5 = LinkClass(720e9, 0.6e-6, name="NVLink5", family="NVLink")
NDR = LinkClass(46e9, 1.3e-6, name="InfiniBand-NDR", family="InfiniBand")


def server(members: int, link: LinkClass, architecture: str, switch: int = -1) -> Group:
    return Group(np.zeros(members, np.int32), link, architecture=architecture, switch=switch)


def first_with_simple(kind: str, group: Group) -> int:
    sizes = [2**k for k in range(10, 30)]
    return next(s for s in sizes if tuner.choices(kind, group, s)[0].protocol == "Simple")


@pytest.mark.parametrize(
    ("kind", "members", "link", "architecture", "mib"),
    [
        ("all_reduce", 2, NVLINK3, "Ampere GA100", 1),  # measured: 19.4 us at 512 KiB, 40.8 us at 1 MiB
        ("all_gather", 2, NVLINK3, "Ampere GA100", 2),  # 19.9 us, 38.1 us
        ("all_gather", 4, NVLINK3, "Ampere GA100", 2),  # 22.5 us, 52.9 us
        ("all_reduce", 2, NVLINK4, "Hopper GH100", 2),  # 14.6 us, 27.6 us
        ("all_gather", 4, NVLINK4, "Hopper GH100", 4),  # 19.1 us, 36.9 us
        ("all_reduce", 2, NVLINK5, "Blackwell GB100", 4),  # 18.9 us, 37.2 us
        ("all_reduce", 4, NVLINK5, "Blackwell GB100", 8),  # 35.8 us, 84.9 us
        ("all_gather", 4, NVLINK5, "Blackwell GB100", 8),  # 25.3 us, 51.2 us
    ],
)
def test_simple_begins_where_measured_times_jump(
    kind: str, members: int, link: LinkClass, architecture: str, mib: int
) -> None:
    assert first_with_simple(kind, server(members, link, architecture)) == mib * MIB


@pytest.mark.parametrize(("link", "architecture", "least"), [(NVLINK4, "Hopper", 5), (NVLINK5, "Blackwell", 6)])
def test_large_all_reduces_go_to_the_switch_from_five_or_six_members(
    link: LinkClass, architecture: str, least: int
) -> None:
    for members in range(2, 9):
        best = tuner.choices("all_reduce", server(members, link, architecture, switch=8), 1024 * MIB)[0]
        assert (best.algorithm == "nvls") == (members >= least)
    without = tuner.choices("all_reduce", server(8, link, architecture), 1024 * MIB)[0]
    assert without.algorithm == "ring"


def test_many_servers_take_trees_for_small_messages_and_rings_for_large() -> None:
    group = Group(np.repeat(np.arange(32, dtype=np.int32), 8), NVLINK4, NDR, architecture="Hopper")
    assert tuner.choices("all_reduce", group, 64 * 1024)[0].algorithm == "tree"
    assert tuner.choices("all_reduce", group, 8 * 1024 * MIB)[0].algorithm == "ring"


@pytest.mark.parametrize(
    ("servers", "protocol", "microseconds"),
    [
        (32, "LL", 6.8 + 2 * 7 * 0.6 + 2 * 5 * 5.0),  # base, up and down 7 hops in a server, and 5 levels of servers
        (32, "LL128", 14.0 + 2 * 7 * 1.25 + 2 * 5 * 8.5),
        (32, "Simple", 8.4 + 2 * 7 * 4.0 + 2 * 5 * 14.0),
        (2, "LL", 6.8 + 2 * 7 * 0.6 + 2 * 1 * 5.0),
        (12, "LL", 6.8 + 2 * 7 * 0.6 + 2 * 3 * 5.0),  # whole levels are counted
        (1, "LL", 6.8 + 2 * 7 * 0.6),
    ],
)
def test_the_latency_of_a_tree_over_servers(servers: int, protocol: str, microseconds: float) -> None:
    """As NCCL computes it (``tuning.cc``: base latency, NVLink within and network between servers)."""
    group = Group(np.repeat(np.arange(servers, dtype=np.int32), 8), NVLINK4, NDR if servers > 1 else None,
                  architecture="Hopper")  # fmt: skip
    found = {(c.algorithm, c.protocol): c.seconds for c in tuner.choices("all_reduce", group, 1, every=True)}
    assert found["tree", protocol] == pytest.approx(microseconds * 1e-6, rel=1e-4)


def test_the_first_choice_is_the_least_and_ll_is_for_small_messages() -> None:
    for size in (1, 64, 4096, MIB, 1024 * MIB):
        found = tuner.choices("all_reduce", server(8, NVLINK4, "Hopper", switch=8), size)
        assert [c.seconds for c in found] == sorted(c.seconds for c in found)
        assert all(np.isfinite(c.seconds) and c.seconds > 0 for c in found)
    assert tuner.choices("all_gather", server(8, NVLINK4, "Hopper"), 1024)[0].protocol == "LL"


def test_ll128_needs_nvlink() -> None:
    pcie = LinkClass(25e9, 1e-6, name="PCIe4x16", family="PCIe")
    assert all(c.protocol != "LL128" for c in tuner.choices("all_reduce", server(4, pcie, "Ada"), MIB))
