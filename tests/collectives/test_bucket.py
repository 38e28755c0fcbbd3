"""The bucket algorithm on a torus: all links of a member at once, a hop for each member on the way."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from triosim import Plan
from triosim.collectives.groups import describe
from triosim.collectives.scheduling import Collectives
from triosim.core.errors import InputError
from triosim.hardware.system import System
from triosim.network.routes import Router
from triosim.network.torus_box import box_of

SIZE = 64 * 2**20
BANDWIDTH, LATENCY = 90e9, 1e-6  # of a link of TPU v5p, one way, as the catalog has it


def pod(*shape: int) -> System:
    return triosim.system(device="TPU-v5p", devices=int(np.prod(shape)), topology="torus", shape=shape)


def seconds(system: System, kind: str, devices: list[int]) -> float:
    """Of a collective that nothing disturbs: rings of which all edges are alike."""
    group = describe(system, Router(system), np.array(devices))
    made = Collectives().schedule(kind, group, SIZE)
    assert made.algorithm == "bucket"
    routes = Router(system).routes(np.array(devices)[made.pattern.source], np.array(devices)[made.pattern.target])
    load = np.bincount(routes.values, np.repeat(made.pattern.bytes * made.pattern.count, routes.lengths()))
    hops = (made.pattern.count * routes.lengths()).max()
    return made.delay_s + float(load.max()) / BANDWIDTH + hops * LATENCY


@pytest.mark.parametrize(
    ("shape", "links", "hops"),
    [((4, 4, 4), 6, 6), ((8, 8, 8), 6, 12), ((16, 16, 24), 6, 28), ((2, 2, 2), 3, 3), ((4, 2, 2), 4, 4), ((8,), 2, 4)],
)
def test_a_whole_torus_gathers_over_every_link(shape: tuple[int, ...], links: int, hops: int) -> None:
    """Of a side of two there is one link; of a longer one a member has two."""
    system = pod(*shape)
    overhead = float(system.overhead.max())
    expected = SIZE * (1 - 1 / system.devices) / (links * BANDWIDTH) + hops * LATENCY + overhead
    found = seconds(system, "all_gather", list(range(system.devices)))
    assert found == pytest.approx(expected, rel=2e-3)
    assert seconds(system, "reduce_scatter", list(range(system.devices))) == found
    reduced = seconds(system, "all_reduce", list(range(system.devices)))
    assert reduced - overhead == pytest.approx(2 * (found - overhead), rel=2e-3)


def test_the_ends_of_an_open_side_have_one_link() -> None:
    system = pod(8, 8, 8)
    line = seconds(system, "all_gather", [0, 1, 2, 3])
    cube = seconds(system, "all_gather", [0, 1, 8, 9, 64, 65, 72, 73])
    overhead = float(system.overhead.max())
    assert line == pytest.approx(SIZE * 3 / 4 / BANDWIDTH + 3 * LATENCY + overhead, rel=0.01)
    assert cube == pytest.approx(SIZE * 7 / 8 / (3 * BANDWIDTH) + 3 * LATENCY + overhead, rel=0.01)


def test_groups_that_lie_between_each_other_share_their_links() -> None:
    """Replicas of 2 x 2 x 2 in 8 x 8 x 8: what they exchange goes over two links from one to the next, which two groups
    share, so that a side gives each as much as one link."""
    system = pod(8, 8, 8)
    places = np.arange(512).reshape(8, 8, 8)[::2, ::2, ::2].reshape(-1)
    box = box_of(places, (8, 8, 8))
    assert box is not None
    assert box.links == 3
    assert [side.farthest for side in box.sides] == [4, 4, 4]
    alone = seconds(system, "all_gather", places.tolist())
    expected = SIZE * 63 / 64 / (6 * BANDWIDTH) + 12 * LATENCY + float(system.overhead.max())
    assert alone == pytest.approx(expected, rel=2e-3)


def test_members_that_form_no_box_go_round_in_a_ring() -> None:
    system = pod(4, 4, 4)
    group = describe(system, Router(system), np.array([0, 1, 4]))
    assert group.box is None
    assert Collectives().schedule("all_reduce", group, SIZE).algorithm == "ring"
    with pytest.raises(InputError, match="'bucket' needs 3 members that form a box of a torus: use auto or ring"):
        Collectives("bucket").schedule("all_reduce", group, SIZE)


def test_links_described_by_one_figure_stay_rings() -> None:
    system = triosim.system(devices=16, topology="torus", shape=(4, 4), link="10GB/s")
    group = describe(system, Router(system), np.arange(16))
    assert Collectives(ideal=system.ideal).schedule("all_reduce", group, SIZE).algorithm == "ring"


def test_a_larger_torus_does_not_gather_slower_by_its_devices() -> None:
    """ZeRO-3 of Llama-3-8B over 64, 128 and 512 chips: the same bytes by the same links, and a few hops more.  (By one
    ring through all it was 17 times as long as the bytes of six links.)"""
    workload = triosim.model("llama-3-8b", sequence_length=2048)

    def gathers(*shape: int) -> float:
        result = triosim.simulate(workload, pod(*shape), Plan(zero=3, recompute="full"))
        return sum(row.seconds for row in result.collectives if row.kind == "all_gather")

    small, large = gathers(4, 4, 4), gathers(8, 8, 8)
    assert small < large < 1.05 * small
