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


def test_the_first_choice_is_the_least_and_ll_is_for_small_messages() -> None:
    for size in (1, 64, 4096, MIB, 1024 * MIB):
        found = tuner.choices("all_reduce", server(8, NVLINK4, "Hopper", switch=8), size)
        assert [c.seconds for c in found] == sorted(c.seconds for c in found)
        assert all(np.isfinite(c.seconds) and c.seconds > 0 for c in found)
    assert tuner.choices("all_gather", server(8, NVLINK4, "Hopper"), 1024)[0].protocol == "LL"


def test_ll128_needs_nvlink() -> None:
    pcie = LinkClass(25e9, 1e-6, name="PCIe4x16", family="PCIe")
    assert all(c.protocol != "LL128" for c in tuner.choices("all_reduce", server(4, pcie, "Ada"), MIB))
