"""Rings through devices that are linked directly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import holdings
from tests.exploring import examples
from triosim.collectives.cycles import disjoint_rings
from triosim.collectives.groups import describe
from triosim.collectives.pattern import rings
from triosim.collectives.scheduling import Collectives
from triosim.hardware.build import load
from triosim.network.routes import Router

DGX1 = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1), (3, 7, 1),
        (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)]  # fmt: skip


def dgx1(members: int) -> np.ndarray:
    links = np.zeros((members, members), np.int64)
    for a, b, count in DGX1:
        if max(a, b) < members:
            links[a, b] = links[b, a] = count
    return links


@pytest.mark.parametrize(("members", "expected"), [(2, 1), (3, 2), (4, 4), (8, 6)])
def test_a_dgx1_has_the_rings_that_nccl_finds(members: int, expected: int) -> None:
    """Measured all-reduce bus bandwidth is 22.6, 45, 85 and 134 GB/s: so many times one link (vTrain's tables)."""
    assert len(disjoint_rings(dgx1(members))) == expected


def test_five_of_a_dgx1_have_none() -> None:
    assert disjoint_rings(dgx1(5)) == ()


@settings(max_examples=examples(50))
@given(st.integers(2, 7).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)))
def test_rings_pass_everyone_and_share_no_link(numbers: list[int]) -> None:
    n = round(len(numbers) ** 0.5)
    links = np.triu(np.array(numbers).reshape(n, n), 1)
    links += links.T
    found = disjoint_rings(links)
    used = np.zeros_like(links)
    for ring in found:
        assert sorted(ring) == list(range(n))
        np.add.at(used, (np.array(ring), np.roll(ring, -1)), 1)
    assert (used <= links).all()
    if found:
        pattern = rings(found, 100, 2 * (n - 1))
        assert holdings(pattern, [{p} for p in range(n)]) == [set(range(n))] * n


def test_a_complete_graph_is_used_but_for_one_link_of_each() -> None:
    full = 1 - np.eye(8, dtype=np.int64)
    assert len(disjoint_rings(full)) == 6


def test_rings_of_a_dgx1_share_its_links() -> None:
    system = load("dgx-1v")
    group = describe(system, Router(system), np.arange(8))
    assert group.intra is not None
    assert len(group.rings) == 6
    assert group.intra.bandwidth == pytest.approx(6 * 21.75e9)
    assert group.intra.name == "NVLink2"
    made = Collectives("ring", "Simple").schedule("all_reduce", group, 48_000)
    assert len(made.pattern) == 48
    assert set(made.pattern.bytes.tolist()) == {1000}
