"""Hop's communication graphs, what is refused, and what workers decide on."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.core.errors import InputError
from triosim.schedule.hop import NEVER, DroppedUpdate, Hop, HopTimes, SkippedIterations, decide, gaps, graph

PAIR = ((1,), (0,))


def test_the_graphs_of_the_paper() -> None:
    assert graph("ring", 4) == ((1, 3), (0, 2), (1, 3), (0, 2))
    assert graph("ring-based", 8)[0] == (1, 4, 7)
    assert graph("ring-based", 8)[5] == (1, 4, 6)
    assert graph("double-ring", 8)[0] == (1, 2, 3, 4)  # a ring-based graph of four joins all of them
    assert graph("double-ring", 12)[1] == (0, 2, 4, 7)
    assert graph("ring", 2) == PAIR


@pytest.mark.parametrize(("name", "workers"), [("ring", 7), ("ring-based", 10), ("double-ring", 16)])
def test_graphs_are_mutual_and_of_one_degree(name: str, workers: int) -> None:
    near = graph(name, workers)
    assert all(a in near[b] for a, of_a in enumerate(near) for b in of_a)
    assert len({len(of_a) for of_a in near}) == 1


@pytest.mark.parametrize(
    ("name", "workers", "why"),
    [("star", 8, "unknown"), ("ring-based", 7, "even"), ("double-ring", 6, "multiple of 4"), ("ring", 1, "at least 2")],
)
def test_graphs_that_cannot_be(name: str, workers: int, why: str) -> None:
    with pytest.raises(InputError, match=why):
        graph(name, workers)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"backup": -1}, "backup must be at least 0"),
        ({"backup": 1}, "leave nothing to wait for"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"behind": 1}, "behind must be at least 2"),
        ({"order": "both"}, "serial or parallel"),
        ({"skip": 2, "staleness": 1}, "give tokens"),
        ({"skip": 2, "tokens": 3}, "backup worker or a staleness"),
        ({"neighbours": ((1,), ())}, "worker 1 sends to"),
        ({"neighbours": ((0,), (0,))}, "worker 0 sends to"),
        ({"neighbours": ((1,), (2,))}, "worker 1 sends to"),
    ],
)
def test_what_cannot_work_is_refused(given: dict, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Hop(**{"neighbours": PAIR, "iterations": 3, **given})


def _course(entered: list[list[int]], turn: list[list[int]]) -> HopTimes:
    ticks = np.array(entered, np.int64)
    return HopTimes(ticks, ticks[:, 1:] - 1, ticks[:, 1:] != NEVER, np.array(turn, np.int64))


def test_an_update_that_comes_too_late_is_dropped() -> None:
    hop = Hop(graph("ring", 3), 3, backup=1)
    # Worker 0 takes ten times as long as the others; edge 0 is from it to worker 1, edge 1 to worker 2.
    course = _course([[0, 100, 200, 300], [0, 10, 20, 30], [0, 10, 20, 30]], [[5, 20, 25]] + [[1, 2, 3]] * 5)
    assert decide(hop, course) == {}
    late = _course([[0, 100, 200, 300], [0, 10, 20, 30], [0, 10, 20, 30]], [[11, 20, 31]] + [[1, 2, 3]] * 5)
    assert decide(hop, late) == {DroppedUpdate(0, 0): 11, DroppedUpdate(0, 2): 31}


def test_what_happens_at_the_same_tick_is_not_seen_yet() -> None:
    hop = Hop(graph("ring", 3), 3, backup=1)
    course = _course([[0, 100, 200, 300], [0, 10, 20, 30], [0, 10, 20, 30]], [[10, 20, 30]] + [[1, 2, 3]] * 5)
    assert decide(hop, course) == {}


def test_a_stale_update_is_still_of_use_within_the_bound() -> None:
    hop = Hop(graph("ring", 3), 3, staleness=1)
    course = _course([[0, 100, 200, 300], [0, 10, 20, 30], [0, 10, 20, 30]], [[11, 31, 32]] + [[1, 2, 3]] * 5)
    assert decide(hop, course) == {DroppedUpdate(0, 1): 31}


def test_a_worker_jumps_to_where_the_slowest_of_its_out_neighbours_is() -> None:
    entered = [[0, 100, 200, 300, 400, 500], [0, 10, 20, 30, 110, 500], [0, 10, 20, 300, 400, 500]]
    hop = Hop(graph("ring", 3), 5, backup=1, tokens=4, skip=3)
    course = _course(entered, [[NEVER] * 5] * 6)
    # At tick 99 worker 0 ends iteration 0 and sees the others in iterations 3 and 2.
    assert decide(hop, course)[SkippedIterations(0, 0, 2)] == 99
    assert SkippedIterations(0, 0, 2) not in decide(
        Hop(graph("ring", 3), 5, backup=1, tokens=4, skip=3, behind=3), course
    )


def test_a_jump_is_not_longer_than_allowed() -> None:
    entered = [[0, 100, 200, 300, 400, 500]] + [[0, 10, 20, 30, 40, 50]] * 2
    hop = Hop(graph("ring", 3), 5, backup=1, tokens=5, skip=2)
    made = decide(hop, _course(entered, [[NEVER] * 5] * 6))
    assert made[SkippedIterations(0, 0, 3)] == 99
    far = decide(Hop(graph("ring", 3), 5, backup=1, tokens=5, skip=9), _course(entered, [[NEVER] * 5] * 6))
    assert far[SkippedIterations(0, 0, 5)] == 99


def test_nobody_decides_anything_where_all_wait_for_all() -> None:
    entered = [[0, 100, 200, 300], [0, 10, 20, 30], [0, 10, 20, 30]]
    assert decide(Hop(graph("ring", 3), 3), _course(entered, [[500, 500, 500]] * 6)) == {}


def test_the_gap_is_the_largest_lead_and_counts_one_tick_as_one() -> None:
    hop = Hop(PAIR, 3)
    course = _course([[0, 10, 20, 30], [0, 20, 25, 40]], [[NEVER] * 3] * 2)
    assert gaps(hop, course).tolist() == [[0, 1], [0, 0]]
