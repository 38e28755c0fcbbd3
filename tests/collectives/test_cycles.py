"""Rings through devices that are linked directly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.collectives.patterns import holdings
from tests.exploring import examples
from triosim.collectives.cycles import disjoint_rings, square_torus_rings
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


@pytest.mark.parametrize("side", [3, 5, 16])
def test_a_square_torus_of_any_size_has_a_ring_for_each_link(side: int) -> None:
    """Four rings through all, forwards and backwards, use each of the links once; they carry four links."""
    members = side * side
    links = np.zeros((members, members))
    for row in range(side):
        for column in range(side):
            here = row * side + column
            for there in (row * side + (column + 1) % side, (row + 1) % side * side + column):
                links[here, there] = links[there, here] = 7.0
    found, carried = square_torus_rings(links)
    assert carried == 4 * 7.0
    used = [edge for ring in found for edge in zip(ring, (*ring[1:], ring[0]), strict=True)]
    assert all(sorted(ring) == list(range(members)) for ring in found)
    assert len(used) == len(set(used)) == 4 * members
    assert all(links[edge] for edge in used)
    links[0, 1] = links[1, 0] = 0.0
    assert square_torus_rings(links) == ((), 0.0)


def test_256_tpus_gather_over_all_their_links() -> None:
    """Of 16 x 16 v5e each sends over four links of 50 GB/s (Cloud TPU v5e: 1,600 Gb/s a chip)."""
    system = triosim.system(device="TPU-v5e", devices=256, topology="torus", shape=(16, 16))
    group = describe(system, Router(system), np.arange(256))
    assert len(group.rings) == 4
    assert group.intra.bandwidth == pytest.approx(4 * system.bandwidth.max())
