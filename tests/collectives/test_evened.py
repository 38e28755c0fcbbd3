"""Trees over many servers: the same time alone, the same load on every link."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.collectives.evened import FOLLOWED_SERVERS, _alone, evened
from triosim.collectives.group import Group, LinkClass
from triosim.collectives.scheduling import Collectives

NETWORK = LinkClass(50e9, 5e-6, 0.0, "IB-NDR400", "InfiniBand")


def _scheduled(members: int, size: int):
    group = Group(np.arange(members, dtype=np.int32), None, NETWORK, -1, "Hopper")
    return Collectives("tree").schedule("all_reduce", group, size)


@pytest.mark.parametrize("size", [1 << 12, 1 << 20, 1 << 26])
@pytest.mark.parametrize("members", [9, 16, 100])
def test_it_takes_as_long_and_moves_as_much(members: int, size: int) -> None:
    from unittest.mock import patch

    made = _scheduled(members, size)
    with patch("triosim.collectives.scheduling.FOLLOWED_SERVERS", 10_000):
        followed = _scheduled(members, size)
    assert len(made.pattern) == members
    alone = made.delay_s + _alone(made.pattern, NETWORK)
    assert alone == pytest.approx(followed.delay_s + _alone(followed.pattern, NETWORK), abs=1e-11)
    sent = np.bincount(followed.pattern.source, followed.pattern.bytes * followed.pattern.count)
    assert (made.pattern.bytes * made.pattern.count) == pytest.approx(np.full(members, sent.max()), abs=4)
    # Almost every member sends the same: only the roots and what does not divide differ.
    assert np.median(sent) == pytest.approx(sent.max(), rel=0.3)


def test_few_servers_are_followed_edge_by_edge() -> None:
    assert len(_scheduled(FOLLOWED_SERVERS, 1 << 20).pattern) > FOLLOWED_SERVERS
    pattern, later = evened(_scheduled(FOLLOWED_SERVERS, 1 << 20).pattern, NETWORK)
    assert len(pattern) == FOLLOWED_SERVERS
    assert later >= 0
