"""The closed forms against the recurrences that they solve."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.engine.alone import Alone
from triosim.engine.graph import Send, Steps
from triosim.engine.stepped import Stepping


def recurrence(rule: Steps, lasts: list[int]) -> tuple[dict[tuple[int, int], int], list[int]]:
    """When each transfer is delivered and each position has finished, step by step."""
    n = rule.members
    entered = [0] * n
    delivered: dict[tuple[int, int], int] = {}
    for step in range(rule.steps):
        through = list(entered)
        for position in range(n):
            peer = rule.peer(position, step)
            if peer >= 0:
                end = delivered[position, step] = entered[position] + lasts[position]
                through[position] = max(through[position], end)
                through[peer] = max(through[peer], end)
        entered = through
    return delivered, entered


@st.composite
def lone(draw: st.DrawFn) -> tuple[Steps, list[int]]:
    n = draw(st.integers(2, 7))
    if draw(st.booleans()):
        rule = Steps(n, draw(st.integers(1, 15)), 1, shift=draw(st.integers(1, n - 1)))
    else:
        active = draw(st.integers(1, 6))
        rule = Steps(n, n - 2 + active, 1, Send.CHAIN, active=active)
    lasts = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    return rule, [ticks if rule.send == Send.SHIFT or p < n - 1 else 0 for p, ticks in enumerate(lasts)]


@settings(deadline=None)
@given(drawn=lone())
def test_finish_is_that_of_the_recurrence(drawn: tuple[Steps, list[int]]) -> None:
    rule, lasts = drawn
    alone = Alone.of(rule, [lasts])
    assert alone is not None
    delivered, entered = recurrence(rule, lasts)
    assert {key: alone.done(*key) for key in delivered} == delivered
    assert alone.finish() == entered


@settings(deadline=None)
@given(drawn=lone(), ticks=st.integers(0, 60))
def test_state_is_what_playing_would_have_reached(drawn: tuple[Steps, list[int]], ticks: int) -> None:
    rule, lasts = drawn
    alone = Alone.of(rule, [lasts])
    assert alone is not None
    state, flying = alone.state(ticks)

    played = Stepping(rule)
    starting, _ = played.begin()
    under_way = [(lasts[p], p, s, 0) for p, s in starting]
    while under_way and min(under_way)[0] <= ticks:
        now, position, step, _ = first = min(under_way)
        under_way.remove(first)
        starting, _ = played.delivered(position, step)
        under_way += [(now + lasts[p], p, s, now) for p, s in starting]

    assert (state.at, state.open, +state.early) == (played.at, played.open, +played.early)
    assert sorted(flying) == sorted(((p, s), since) for _, p, s, since in under_way)


def test_steps_follow_each_other_where_the_peer_changes() -> None:
    rule = Steps(3, 2, 1, shift=1, stride=1)
    alone = Alone.of(rule, [[5, 5, 5], [7, 7, 7]])
    assert alone is not None
    assert alone.finish() == [12, 12, 12]
    assert Alone.of(rule, [[5, 5, 5], [7, 7, 8]]) is None


def test_what_starts_together_has_no_closed_form() -> None:
    assert Alone.of(Steps(3, 2, 1, wait=False), [[1, 1, 1]]) is None
    assert Alone.of(Steps(3, 1, 1, Send.TO_FIRST), [[0, 1, 1]]) is None
    assert Alone.of(Steps(1, 4, 1), [[0]]) is None
