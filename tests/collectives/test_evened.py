"""Trees over several servers: played as rings of the same load, in as long as the trees themselves take."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives.patterns import NVLINK4, run, servers
from triosim.collectives import pricing
from triosim.collectives.algorithm import CollectiveSchedule
from triosim.collectives.algorithms.tree import Tree
from triosim.collectives.group import Group, LinkClass
from triosim.collectives.scheduling import Collectives, ScheduledCollective

NETWORK = LinkClass(50e9, 5e-6, 0.0, "IB-NDR400", "InfiniBand", 50e9)


def edge_by_edge(group: Group, size: int, protocol: str) -> ScheduledCollective:
    every = patch.object(Tree, "busiest", Tree.schedule)
    with every, patch.object(pricing, "spread", lambda links, made, delay, group: (made, delay)):
        return Collectives("tree", protocol).schedule("all_reduce", group, size)


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
@pytest.mark.parametrize("size", [1 << 12, 1 << 20, 1 << 26])
@pytest.mark.parametrize(("count", "width"), [(2, 1), (4, 1), (9, 1), (16, 1), (3, 2), (2, 8), (8, 8)])
@pytest.mark.parametrize("bandwidth", [1.25e9, 50e9])
def test_it_takes_as_long_as_the_trees_and_moves_as_much(
    count: int, width: int, size: int, protocol: str, bandwidth: float
) -> None:
    network = LinkClass(bandwidth, 5e-6, 0.0, "IB-NDR400", "InfiniBand", bandwidth)
    group = servers(count, width, NVLINK4, network)
    if group.members == 2 and size > 1 << 20:
        return  # the two trees of two members are one link both ways
    made, followed = Collectives("tree", protocol).schedule("all_reduce", group, size), None
    followed = edge_by_edge(group, size, protocol)
    seconds, expected = (max(run(one, group).finish) / 1e12 for one in (made, followed))
    assert 0.88 * expected <= seconds <= 1.12 * expected
    assert len(made.pattern) <= 2 * group.members
    sent = np.bincount(followed.pattern.source, followed.pattern.bytes * followed.pattern.count)
    own = np.bincount(made.pattern.source, made.pattern.bytes * made.pattern.count)
    assert own.min() >= sent.max()
    assert own.min() == own.max()


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40).filter(lambda s: len(set(s)) > 1), st.integers(1, 1 << 30))
def test_the_busiest_members_price_all_edges(place: list[int], size: int) -> None:
    group = Group(np.sort(np.array(place, np.int32)), NVLINK4, NETWORK)
    links = pricing.GroupLinks.of(group)
    assert links is not None
    for protocol in ("LL", "LL128", "Simple"):
        both = []
        for made in (Tree().busiest, Tree().schedule):
            sent = made("all_reduce", group.members, size, 0, group)
            pattern, delay = pricing.in_steps(links, sent, "all_reduce", "tree", group, size, protocol)
            both.append(pricing.spread(links, CollectiveSchedule(pattern, sent.order), delay, group))
        (few, after), (all_, late) = both
        assert after == late
        assert np.array_equal(few.pattern.bytes, all_.pattern.bytes)


def test_every_member_does_the_same_so_that_one_can_be_played_for_all() -> None:
    made = Collectives("tree").schedule("all_reduce", servers(16, 1, NVLINK4, NETWORK), 1 << 20)
    assert len(made.pattern) == 16
    assert len(np.unique(made.pattern.bytes)) == 1


def test_it_is_the_time_by_which_it_is_chosen() -> None:
    unknown = LinkClass(20e9, 2e-6)
    for size in (1 << 14, 1 << 20, 1 << 24):
        group = servers(32, 2, NVLINK4, unknown)
        made = Collectives("tree").schedule("all_reduce", group, size)
        links = pricing.GroupLinks.of(group)
        assert links is not None
        assert max(run(made, group).finish) / 1e12 == pytest.approx(Collectives._lasts(links, made, group), rel=1e-6)
