"""Algorithms that need to know where members sit, or go in steps of their own: switch, hierarchy, halving, rails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import holdings, run, server, servers
from tests.exploring import examples
from triosim.collectives.algorithm import ALGORITHMS, CollectiveSchedule, part
from triosim.collectives.group import Group, blocks_of
from triosim.collectives.rails import rail_rings
from triosim.collectives.scheduling import Collectives
from triosim.core.errors import InputError

RINGS = ["all_reduce", "all_gather", "reduce_scatter"]
KINDS = st.sampled_from(RINGS)


def make(algorithm: str, kind: str, group: Group, size: int) -> CollectiveSchedule:
    return ALGORITHMS.get(algorithm)().schedule(kind, group.members, size, 0, group)


def sent_by(made: CollectiveSchedule) -> np.ndarray:
    pattern = made.pattern
    return np.bincount(pattern.source, pattern.bytes * pattern.count, minlength=pattern.places).astype(int)


@settings(max_examples=examples(40))
@given(KINDS, st.integers(2, 5), st.integers(2, 4), st.integers(1, 2**20))
def test_rings_on_rails_bring_everything_everywhere(kind: str, count: int, width: int, size: int) -> None:
    made = make("ring", kind, servers(count, width), size)
    n = count * width
    assert holdings(made.pattern, [{p} for p in range(n)]) == [set(range(n))] * n
    steps = (2 if kind == "all_reduce" else 1) * (n - 1)
    assert set(made.pattern.count.tolist()) == {steps}
    least = steps * part(size, n)
    assert (sent_by(made) >= least).all()
    assert (sent_by(made) <= least + steps * width).all()


def test_rails_by_hand() -> None:
    pattern = rail_rings(np.arange(4).reshape(2, 2), 10, 3)
    ends = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
    assert ends == [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (1, 3), (2, 0), (3, 1)]
    assert pattern.bytes.tolist() == [5] * 8
    assert pattern.needs.lists() == [[1, 6], [0, 7], [3, 4], [2, 5], [1], [0], [3], [2]]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_rails_are_kept_but_for_one_crossing_of_an_odd_number_of_servers(count: int) -> None:
    pattern = rail_rings(np.arange(count * 8).reshape(count, 8), 800, 1)
    across = pattern.source // 8 != pattern.target // 8
    assert sorted(pattern.source[across].tolist()) == sorted(pattern.target[across].tolist()) == list(range(count * 8))
    moved = pattern.source[across] % 8 != pattern.target[across] % 8
    assert moved.sum() == (8 if count % 2 else 0)


@settings(max_examples=examples(40))
@given(KINDS, st.integers(1, 5), st.integers(1, 4), st.integers(1, 2**20))
def test_a_hierarchy_brings_everything_everywhere(kind: str, count: int, width: int, size: int) -> None:
    group = servers(count, width)
    made = make("hierarchical", kind, group, size)
    n = group.members
    assert holdings(made.pattern, [{p} for p in range(n)]) == [set(range(n))] * n
    crossing = made.pattern.source // width != made.pattern.target // width
    between = (made.pattern.bytes * made.pattern.count)[crossing].sum()
    rounds = 2 if kind == "all_reduce" else 1
    least = rounds * (count - 1) * size
    assert least <= between <= least + rounds * (count - 1) * n * 2


def test_a_hierarchy_needs_servers_alike() -> None:
    uneven = Group(np.array([0, 0, 1], np.int32), server(2).intra, servers(2, 1).inter)
    with pytest.raises(InputError, match="as many members in every server, got 1 and 2"):
        make("hierarchical", "all_reduce", uneven, 100)


@settings(max_examples=examples(60))
@given(st.integers(1, 20), st.integers(1, 2**20))
def test_halving_and_doubling_bring_everything_everywhere(members: int, size: int) -> None:
    group = server(members)
    made = make("halving-doubling", "all_reduce", group, size)
    assert holdings(made.pattern, [{p} for p in range(members)]) == [set(range(members))] * members
    power = 1 << (members.bit_length() - 1)
    if power == members > 1:
        assert made.pattern.source.size == 2 * members * (power.bit_length() - 1)
        bytes_each = 2 * sum(part(size, 2**k) for k in range(1, power.bit_length()))
        assert set(sent_by(made).tolist()) == {bytes_each}


def test_halving_and_doubling_by_hand() -> None:
    pattern, _ = make("halving-doubling", "reduce_scatter", server(4), 100)
    ends = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
    assert ends == [(0, 2), (1, 3), (2, 0), (3, 1), (0, 1), (1, 0), (2, 3), (3, 2)]
    assert pattern.bytes.tolist() == [50] * 4 + [25] * 4
    with pytest.raises(InputError, match=r"does all_gather for 2, 4, 8, \.\.\. members, not for 6"):
        make("halving-doubling", "all_gather", server(6), 100)


@given(st.integers(2, 12), st.integers(1, 2**24))
def test_the_switch_gets_and_sends_the_buffer_and_a_part(members: int, size: int) -> None:
    made = make("nvls", "all_reduce", server(members, switch=42), size)
    assert holdings(made.pattern, [*({p} for p in range(members)), set()])[:members] == [set(range(members))] * members
    wire = size + part(size, members)
    sent = sent_by(made)
    assert (sent[:members] >= wire).all()
    assert (sent[:members] < wire + 16).all()
    assert sent[members] == sent[:members].sum()
    scheduled = Collectives("nvls").schedule("all_reduce", server(members, switch=42), size)
    assert scheduled.nodes == (42,)
    assert run(scheduled, server(members, switch=42)).finish.max() > 0


def test_members_are_ordered_by_server() -> None:
    group = Group(np.array([5, 2, 5, 2, 7], np.int32))
    assert [b.tolist() for b in blocks_of(group, 5)] == [[0, 2], [1, 3], [4]]
    _, order = make("ring", "all_reduce", group, 100)
    assert order == (0, 2, 1, 3, 4)
    assert [b.tolist() for b in blocks_of(None, 3)] == [[0, 1, 2]]
