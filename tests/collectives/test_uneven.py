"""Collectives whose parts differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import PLAIN, holdings, run, server
from tests.exploring import examples
from triosim.collectives import uneven
from triosim.collectives.pattern import exchange
from triosim.collectives.scheduling import Collectives
from triosim.core.errors import InputError
from triosim.engine.graph import Pattern

PARTS = st.lists(st.integers(0, 10**6), min_size=2, max_size=7)
RINGS = ["all_gather", "reduce_scatter"]


@settings(deadline=None)
@given(st.sampled_from(RINGS), PARTS)
def test_parts_of_any_size_get_everywhere(kind: str, parts: list[int]) -> None:
    pattern, _ = uneven.schedule(kind, parts)
    n = len(parts)
    assert holdings(pattern, [{p} for p in range(n)]) == [set(range(n))] * n
    assert pattern.bytes.sum() == (n - 1) * sum(parts)
    for member in range(n):  # who gathers gets all parts but its own; who reduces sends all but its own
        end = pattern.target if kind == "all_gather" else pattern.source
        assert sorted(pattern.bytes[end == member].tolist()) == sorted(np.delete(parts, member).tolist())


@settings(max_examples=examples(40))
@given(st.sampled_from(RINGS), st.integers(2, 7), st.integers(0, 10**6))
def test_even_parts_take_what_the_even_collective_takes(kind: str, members: int, each: int) -> None:
    for link in (PLAIN, server(2).intra):
        assert link is not None
        group = server(members, link)
        chosen = Collectives("ring", "Simple")
        even = chosen.schedule(kind, group, each * members)
        odd = chosen.schedule_uneven(kind, group, [each] * members)
        assert max(run(even, group).finish) == max(run(odd, group).finish)


def test_a_large_part_holds_up_every_step() -> None:
    group = server(4, PLAIN)
    made = Collectives().schedule_uneven("all_gather", group, [0, 10**6, 0, 0])
    assert max(run(made, group).finish) == 3 * (10**7 + 10**6)  # 1 MB at 100 GB/s, 1 us, three times


@settings(max_examples=examples(40))
@given(st.integers(2, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 10**6), min_size=n, max_size=n),
                                                    min_size=n, max_size=n)))  # fmt: skip
def test_all_to_all_sends_each_what_is_its(sizes: list[list[int]]) -> None:
    table = np.array(sizes)
    pattern, _ = uneven.schedule("all_to_all", sizes)
    sent = np.zeros_like(table)
    sent[pattern.source, pattern.target] = pattern.bytes
    np.fill_diagonal(table, 0)
    assert (sent == table).all()
    group = server(len(sizes), PLAIN)
    played = run(Collectives().schedule_uneven("all_to_all", group, sizes), group)
    busiest = max(table.sum(axis=0).max(), table.sum(axis=1).max())
    assert played.finish.max() >= busiest * 10


def one_after_the_other(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """When each transfer starts and ends if one takes a tick for each byte, whatever else is under way."""
    starts, ends = np.zeros(len(pattern), np.int64), np.zeros(len(pattern), np.int64)
    distance = (pattern.target - pattern.source) % pattern.members
    needs = pattern.needs.lists()
    for edge in np.argsort(distance).tolist():
        starts[edge] = max((ends[other] for other in needs[edge]), default=0)
        ends[edge] = starts[edge] + pattern.bytes[edge]
    return starts, ends


def most_at_a_time(starts: np.ndarray, ends: np.ndarray, group: np.ndarray) -> int:
    """Of the transfers of one group, the most that are under way at one instant."""
    return max(
        int(((starts <= start) & (ends > start) & (group == one)).sum())
        for start, one in zip(starts.tolist(), group.tolist(), strict=True)
    )


@settings(max_examples=examples(40))
@given(st.integers(2, 7), st.integers(1, 7), st.integers(0, 2**31), st.sampled_from([0.0, 0.4]))
def test_nobody_sends_to_or_gets_from_more_peers_at_a_time_than_asked(
    members: int, peers: int, seed: int, empty: float
) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random((members, members)) < empty, 0, rng.integers(1, 10**6, (members, members)))
    at_once = uneven.schedule("all_to_all", sizes).pattern
    pattern = uneven.schedule("all_to_all", sizes, peers).pattern
    for name in ("source", "target", "bytes"):
        assert getattr(pattern, name).tolist() == getattr(at_once, name).tolist()
    if not len(pattern):
        return
    starts, ends = one_after_the_other(pattern)
    for end in (pattern.source, pattern.target):
        assert most_at_a_time(starts, ends, end) <= peers
    if peers >= members - 1:
        assert not len(pattern.needs.values)


@settings(max_examples=examples(40))
@given(st.integers(2, 7), st.integers(1, 7), st.integers(0, 10**6))
def test_even_parts_wait_for_the_same_as_those_of_the_even_collective(members: int, peers: int, size: int) -> None:
    odd = uneven.schedule("all_to_all", np.full((members, members), size + 1), peers).pattern
    even = exchange(members, size + 1, peers)

    def waits(pattern: Pattern) -> dict[tuple[int, int], set[tuple[int, int]]]:
        ends = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
        return {edge: {ends[other] for other in row} for edge, row in zip(ends, pattern.needs.lists(), strict=True)}

    assert waits(odd) == waits(even)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("all_reduce", [1, 2], "all_reduce has no uneven parts: use all_gather"),
        ("all_gather", [[1, 2], [3, 4]], r"sizes must be one for each member, got shape \(2, 2\)"),
        ("all_to_all", [1, 2], "sizes must be members x members"),
        ("all_gather", [1, -2], "a part has -2 bytes: the least is 0"),
        ("all_gather", [1, 2, 3], "3 sizes for 2 members"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kind: str, sizes: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Collectives().schedule_uneven(kind, server(2), sizes)


def test_peers_at_a_time_bound_even_and_uneven_exchanges() -> None:
    group = server(6, PLAIN)
    sizes = np.full((6, 6), 10**6)
    few, all_at_once = Collectives("direct", peers=2), Collectives("direct")
    for made in (few.schedule("all_to_all", group, 6 * 10**6), few.schedule_uneven("all_to_all", group, sizes)):
        assert len(made.pattern.needs.values) == 2 * 6 * 3  # of five transfers of each member the first two are free
    for made in (
        all_at_once.schedule("all_to_all", group, 6 * 10**6), all_at_once.schedule_uneven("all_to_all", group, sizes)
    ):  # fmt: skip
        assert not len(made.pattern.needs.values)


def test_less_than_one_peer_at_a_time_is_refused() -> None:
    with pytest.raises(InputError, match="all_to_all with 0 peers at a time: the least is 1"):
        Collectives(peers=0)
    with pytest.raises(InputError, match="all_to_all with -1 peers at a time: the least is 1"):
        uneven.schedule("all_to_all", [[1]], peers=-1)
