"""Groups of the catalog's systems and of a user's own."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.collectives.group import Group
from triosim.collectives.groups import describe
from triosim.collectives.scheduling import Collectives
from triosim.hardware.build import flat, load
from triosim.hardware.system import System
from triosim.network.routes import Router


def group(system: System, devices: list[int]) -> Group:
    return describe(system, Router(system), np.array(devices))


def test_members_of_a_dgx_share_a_switch() -> None:
    system = load("hgx-h100", 2)
    found = group(system, list(range(8)))
    assert found.intra is not None
    assert (found.intra.name, found.intra.family) == ("NVLink4", "NVLink")
    assert found.intra.bandwidth == pytest.approx(360e9)
    assert found.intra.latency == pytest.approx(0.6e-6)
    assert found.inter is None
    assert found.architecture.startswith("Hopper")
    assert found.switch >= system.devices
    sources = system.edge_source[system.edge_target == found.switch]
    assert set(range(8)) <= set(sources.tolist())


def test_members_of_several_servers_share_the_ways_out() -> None:
    system = load("hgx-h100", 4)
    found = group(system, list(range(32)))
    assert found.servers == 4
    assert found.switch == -1
    assert found.intra is not None
    assert found.inter is not None
    assert found.inter.name == "InfiniBand-NDR"
    assert found.inter.bandwidth == pytest.approx(46e9)
    one_each = group(system, [0, 8, 16, 24])
    assert one_each.intra is None
    assert one_each.inter is not None
    assert one_each.inter.bandwidth == pytest.approx(46e9)


def test_links_between_which_pcie_is_narrow_are_shared() -> None:
    system = load("pcie-l40s-8")
    half, whole = group(system, [0, 1, 2, 3]), group(system, list(range(8)))
    assert half.intra is not None
    assert whole.intra is not None
    assert half.intra.family == "PCIe"
    assert whole.intra.bandwidth < half.intra.bandwidth, "the link between the sockets is narrower"
    assert whole.intra.latency > half.intra.latency


def test_a_users_own_link_has_no_name_and_is_ideal() -> None:
    system = flat("H100", 4, "switch", "100GB/s", "1us")
    found = group(system, [0, 1, 2, 3])
    assert found.intra is not None
    assert (found.intra.name, found.intra.bandwidth, found.intra.latency) == ("", 1e11, 1e-6)
    made = Collectives().schedule("all_reduce", found, 4000)
    assert (made.algorithm, made.protocol, made.delay_s, made.pattern.bytes.tolist()) == ("ring", "", 0.0, [1000] * 4)


def test_other_topologies_have_no_switch_in_the_middle() -> None:
    for topology in ("ring", "full", "mesh"):
        assert group(flat("H100", 4, topology, "100GB/s"), [0, 1, 2, 3]).switch == -1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("topology", ["switch", "full", "ring"])
def test_links_that_never_limit_are_described_too(topology: str) -> None:
    found = group(flat("H100", 4, topology, float("inf")), [0, 1, 2, 3])
    assert found.intra is not None
    assert np.isinf(found.intra.bandwidth)
    assert found.rings == ()
    made = Collectives().schedule("all_reduce", found, 4000)
    assert (made.algorithm, made.protocol) == ("ring", "")
