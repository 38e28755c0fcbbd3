"""Collectives whose parts differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import PLAIN, holdings, run, server
from triosim.collectives import uneven
from triosim.collectives.scheduling import Collectives
from triosim.errors import InputError

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


@settings(deadline=None, max_examples=40)
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


@settings(deadline=None, max_examples=40)
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
