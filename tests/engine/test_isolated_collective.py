"""Collectives that share no link against the recurrence that they solve."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.graphs import any_edges, edges, from_random
from triosim.collectives.pattern import chain, exchange, from_first, ring, rounds, to_first
from triosim.engine.graph import ALL, Pattern
from triosim.engine.isolated_collective import (
    ClosedFormCollective,
    EventDrivenCollective,
    IsolatedCollective,
    isolated_collective,
)
from triosim.engine.pattern_state import PatternEdges, PatternState


def recurrence(pattern: Pattern, lasts: list[int]) -> list[list[int]]:
    """When each transfer of each edge is delivered, worked out backwards from each."""
    known: dict[tuple[int, int], int] = {}
    needs, lags = pattern.needs.lists(), iter(pattern.lag.tolist())
    with_lag = [[(other, next(lags)) for other in row] for row in needs]

    def delivered(edge: int, k: int) -> int:
        if k < 0:
            return 0
        if (edge, k) not in known:
            waits = [delivered(edge, k - 1)]
            for other, lag in with_lag[edge]:
                end = int(pattern.count[other]) - 1
                waits.append(delivered(other, end if lag == ALL else min(k - lag, end)))
            known[edge, k] = max(waits) + lasts[edge]
        return known[edge, k]

    return [[delivered(edge, k) for k in range(int(count))] for edge, count in enumerate(pattern.count)]


def finished(pattern: Pattern, delivered: list[list[int]]) -> list[int]:
    ends = [0] * pattern.members
    for edge, ticks in enumerate(delivered):
        for position in (pattern.source[edge], pattern.target[edge]):
            ends[position] = max(ends[position], ticks[-1])
    return ends


@st.composite
def in_step(draw: st.DrawFn) -> Pattern:
    """Edges that need any others with lag 1, as the folded members of rings do."""
    n = draw(st.integers(1, 4))
    needs = draw(st.lists(st.lists(st.integers(0, n - 1), max_size=3, unique=True), min_size=n, max_size=n))
    count = draw(st.integers(1, 30))
    return edges(1, [(0, 0)] * n, 1, count, [[(other, 1) for other in row] for row in needs])


@st.composite
def lone(draw: st.DrawFn) -> tuple[Pattern, list[int]]:
    n = draw(st.integers(2, 7))
    pattern = draw(
        st.one_of(
            st.builds(ring, st.just(n), st.just(1), st.integers(1, 15)),
            st.builds(chain, st.just(n), st.just(1), st.integers(1, 6)),
            st.just(rounds(n, 1)),
            in_step(),
            from_random(any_edges, n, n),
        )
    )
    return pattern, draw(st.lists(st.integers(0, 9), min_size=len(pattern), max_size=len(pattern)))


def both(pattern: Pattern, lasts: list[int]) -> list[IsolatedCollective]:
    """The way that is chosen, and the one that is always right."""
    chosen = isolated_collective(PatternEdges.of(pattern), lasts)
    assert chosen is not None
    return [chosen, EventDrivenCollective(PatternEdges.of(pattern), lasts)]


@settings(deadline=None)
@given(drawn=lone())
def test_ends_are_those_of_the_recurrence(drawn: tuple[Pattern, list[int]]) -> None:
    for found in both(*drawn):
        assert found.ends() == finished(drawn[0], recurrence(*drawn))


@settings(deadline=None)
@given(drawn=lone(), ticks=st.integers(0, 60))
def test_state_is_what_playing_would_have_reached(drawn: tuple[Pattern, list[int]], ticks: int) -> None:
    pattern, lasts = drawn
    delivered = recurrence(pattern, lasts)
    for found in both(pattern, lasts):
        state, flying = found.state(ticks)
        done = [sum(tick <= ticks for tick in edge) for edge in delivered]
        assert state.delivered == done
        started = {e: d[k] - lasts[e] for e, (d, k) in enumerate(zip(delivered, done, strict=True)) if k < len(d)}
        assert dict(flying) == {e: start for e, start in started.items() if start <= ticks}
        rebuilt = PatternState(PatternEdges.of(pattern), done)
        waiting = [e for e, d in enumerate(delivered) if done[e] < len(d)]
        assert [state.missing[e] for e in waiting] == [rebuilt.missing[e] for e in waiting]
        assert state.open == rebuilt.open
        assert sorted(state.flying()) == sorted(e for e, _ in flying)


@pytest.mark.parametrize(
    ("pattern", "closed"),
    [
        (ring(4, 1, 6), True),
        (chain(4, 1, 3), True),
        (to_first(4, 1), True),
        (from_first(4, 1), True),
        (exchange(3, 1), True),
        (edges(3, [(0, 1), (1, 2), (1, 0)], 1, 3, [[], [(0, 0)], [(0, 0)]]), True),  # a tree
        (edges(1, [(0, 0)], 1, 5, [[(0, 1)]]), True),  # a ring folded into one
        (edges(1, [(0, 0), (0, 0)], 1, 4, [[(0, 1), (1, 1)], [(0, 1)]]), True),  # one folded to its links of two kinds
        (edges(1, [(0, 0), (0, 0)], 1, 3, [[(0, 1), (1, 1)], [(0, 1)]]), False),  # so few that they are played
        (edges(3, [(0, 1), (1, 2)], 1, [3, 2], [[], [(0, 0)]]), False),
        (edges(3, [(0, 1), (1, 2)], 1, 3, [[], [(0, ALL)]]), False),
        (rounds(3, 1), False),
    ],
)
def test_rings_and_pipelines_have_a_closed_form(pattern: Pattern, closed: bool) -> None:
    assert isinstance(
        isolated_collective(PatternEdges.of(pattern), [3] * len(pattern)),
        ClosedFormCollective if closed else EventDrivenCollective,
    )


def test_what_waits_in_a_circle_never_ends() -> None:
    assert isolated_collective(PatternEdges.of(edges(2, [(0, 1), (1, 0)], 1, 2, [[(1, 0)], [(0, 0)]])), [1, 1]) is None
    assert (
        isolated_collective(PatternEdges.of(edges(2, [(0, 1), (1, 0)], 1, 2, [[(1, 1)], [(0, ALL)]])), [1, 1]) is None
    )
