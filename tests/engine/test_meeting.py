"""Turns that meet: what transfers and work take, and that both players agree."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.columns import Ragged
from triosim.engine import meeting
from triosim.engine.graph import Stuck
from triosim.engine.meeting import MeetingPiece, MeetingPort, MeetingTurns, Met, PortedPiece, Row, Ways, chained, play

native = pytest.mark.skipif(meeting._native is None, reason="there was no compiler")
Rows = list[tuple[Row, int, int, float, int, list[int]]]


def piece(rows: Rows, held: list[int] | None = None) -> MeetingPiece:
    kind, stream, ticks, stretch, label, before = zip(*rows, strict=True)
    return MeetingPiece(
        np.array(kind, np.int8), np.array(stream, np.int8), np.array(ticks, np.int64), np.array(stretch, np.float64),
        np.array(label, np.int32), Ragged.of([list(b) for b in before], np.int32),
        np.array(held or len(rows) * [0], np.int64),
    )  # fmt: skip


def turns(
    rows: list[Rows], ports: list[tuple[MeetingPort, ...]], order: list[list[int]], ways: Ways, messages: int = 8
) -> MeetingTurns:
    casts = [PortedPiece(number, own) for number, own in enumerate(ports)]
    return MeetingTurns(
        [piece(one) for one in rows], casts, [np.array(own, np.int32) for own in order],
        [np.zeros(len(own), np.int32) for own in order], [np.zeros(len(own), np.int64) for own in order], ways,
        np.zeros(len(order), np.int64), 3, messages, 4,
    )  # fmt: skip


def both(what: MeetingTurns) -> Met:
    """What both players say."""
    found = play(what, native=False)
    if meeting._native is not None:
        other = play(what, native=True)
        for name in ("end", "work", "talk", "hosted", "spent"):
            assert np.array_equal(getattr(found, name), getattr(other, name)), name
    return found


def test_what_meets_nothing_takes_what_it_says() -> None:
    rows: Rows = [(Row.WORK, 0, 100, 2.0, 0, []), (Row.MOVE, 1, 40, 1.0, 1, [0]), (Row.WORK, 0, 7, 1.0, 0, [1])]
    met = both(turns([rows], [()], [[0]], Ways([[]], [0], 0)))
    assert (met.end, met.work.tolist(), met.talk.tolist()) == (147, [107], [40])
    assert met.spent.tolist() == [[107, 40, 0, 0]]


def test_work_is_stretched_beside_a_move() -> None:
    rows: Rows = [(Row.MOVE, 1, 60, 1.0, -1, []), (Row.WORK, 0, 100, 1.5, -1, [])]
    assert both(turns([rows], [()], [[0]], Ways([[]], [0], 0))).end == 60 + 100 - 40


def test_work_does_not_end_before_its_host_is_so_far() -> None:
    rows: Rows = [(Row.WORK, 0, 100, 1.0, 0, []), (Row.MOVE, 1, 5, 1.0, 1, [0]), (Row.WORK, 0, 10, 1.0, -1, [])]
    what = turns([rows], [()], [[0, 0]], Ways([[]], [0], 0))
    held = replace(
        what, pieces=[piece(rows, [130, 0, 0])], release=[np.array([20, 30])], host=np.array([1000], np.int64)
    )  # fmt: skip
    met = both(held)
    assert (met.end, met.work.tolist()) == (20 + 130 + 10 + 100 + 10, [220])
    assert (met.talk.tolist(), met.hosted.tolist()) == ([0], [50])  # moves are beside other work


def test_two_that_fill_a_link_get_half_of_it_each() -> None:
    sends: Rows = [(Row.SENDS, 2, 100, 1.0, 0, [])]
    later: Rows = [(Row.WORK, 0, 50, 1.0, -1, []), (Row.SENDS, 2, 100, 1.0, 0, [0])]
    comes = (Row.RECEIVES, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes, (Row.WORK, 0, 1, 1.0, -1, [0, 1])]
    ports = [(MeetingPort(0, 0, 2),), (MeetingPort(1, 0, 2),), (MeetingPort(0, 0, 0), MeetingPort(1, 0, 1))]
    met = both(turns([sends, later, takes], ports, [[0], [1], [2]], Ways([[(0, 1.0)], []], [1, 1, 1], 1)))
    assert met.spent[:, 0].tolist() == [150, 150, 0]  # 50 alone, 100 for the other 50, and the other way round
    assert (met.end, met.talk.tolist()) == (201, [150, 150, 200])


def test_what_others_leave_of_a_link_is_taken() -> None:
    """Three on one link get a third each; one of them is on another as well, where the fourth gets two thirds."""
    sends: Rows = [(Row.SENDS, 2, 90, 1.0, 0, [])]
    comes = (Row.RECEIVES, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes, comes, comes]
    ways = Ways([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], []], [3] * 5, 2)
    of = [0, 0, 1, 2]
    ports = [
        *((MeetingPort(n, way, 4),) for n, way in enumerate(of)),
        tuple(MeetingPort(n, of[n], n) for n in range(4)),
    ]
    met = both(turns([*[sends] * 4, takes], ports, [[0], [1], [2], [3], [4]], ways))
    assert met.spent[:, 0].tolist() == [270, 270, 270, 135, 0]


def test_latency_is_not_shared() -> None:
    """Of two that begin at once one waits for 40 ticks first: the other is alone for so long."""
    sends: Rows = [(Row.SENDS, 2, 100, 1.0, 0, [])]
    slow: Rows = [(Row.SENDS, 2, 100, 1.0, 1, [])]
    comes = (Row.RECEIVES, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes]
    ports = [(MeetingPort(0, 0, 2),), (MeetingPort(1, 0, 2),), (MeetingPort(0, 0, 0), MeetingPort(1, 0, 1))]
    what = turns([sends, slow, takes], ports, [[0], [1], [2]], Ways([[(0, 1.0)], []], [1, 1, 1], 1))
    met = both(replace(what, lag=[0, 40, 0, 0]))
    assert met.spent[:2, :2].tolist() == [[160, 0], [0, 160]]


def test_a_message_has_arrived_when_all_its_parts_have() -> None:
    """Half of a message meets a move on its first link, the other half nothing."""
    moves: Rows = [(Row.MOVE, 1, 50, 1.0, 1, [])]
    sends: Rows = [(Row.SENDS, 2, 100, 1.0, 0, [])]
    takes: Rows = [(Row.RECEIVES, -1, 0, 1.0, -1, []), (Row.WORK, 0, 1, 1.0, -1, [0])]
    ways = Ways([[(0, 1.0)], [(1, 1.0)], [(0, 1.0)], []], [2, 3, 3], 2, {0: (1,)})
    ports: list[tuple[MeetingPort, ...]] = [(), (MeetingPort(0, 0, 2),), (MeetingPort(0, 0, 1),)]
    met = both(turns([moves, sends, takes], ports, [[0], [1], [2]], ways))
    assert met.spent[:, :2].tolist() == [[0, 100], [150, 0], [0, 0]]
    assert met.end == 151


def test_a_circle_is_told() -> None:
    waits: Rows = [(Row.RECEIVES, -1, 0, 1.0, -1, []), (Row.WORK, 0, 1, 1.0, -1, [0])]
    what = turns([waits], [(MeetingPort(0, 0, 0),)], [[0]], Ways([[]], [0], 0))
    for way in (False, True) if meeting._native is not None else (False,):
        with pytest.raises(Stuck):
            play(what, native=way)


@st.composite
def jobs(draw: st.DrawFn) -> MeetingTurns:
    """Stages of a chain that work, move and send on."""
    stages, turns_of = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ticks, stretch = st.integers(0, 50), st.sampled_from([1.0, 1.25, 2.0])
    rows: list[Rows] = []
    ports: list[tuple[MeetingPort, ...]] = []
    for stage in range(stages):
        one: Rows = []
        own: list[MeetingPort] = []
        if stage:
            one.append((Row.RECEIVES, -1, 0, 1.0, -1, []))
            own.append(MeetingPort(100 * (stage - 1), stage - 1, stage - 1))
        one.append((Row.WORK, 0, draw(ticks), draw(stretch), 0, list(range(len(one)))))
        one.append((Row.MOVE, 1, draw(ticks), 1.0, 1, [len(one) - 1] if draw(st.booleans()) else []))
        one.append((Row.WORK, 0, draw(ticks), draw(stretch), 2, [len(one) - 1] if draw(st.booleans()) else []))
        if stage < stages - 1:
            one.append((Row.SENDS, 2, draw(ticks), 1.0, 3, [len(one) - 1]))
            own.append(MeetingPort(100 * stage, stage, stage + 1))
        rows.append(one)
        ports.append(tuple(own))
    part = st.sampled_from([0.3, 0.6, 1.0])
    uses = [[(draw(st.integers(0, 1)), draw(part))] if draw(st.booleans()) else [] for _ in range(stages + 1)]
    made = turns(rows, ports, [[stage] * turns_of for stage in range(stages)], Ways(uses, [stages] * stages, 2), 400)
    beside = {way: (stages + 1,) for way in range(stages) if draw(st.booleans())}
    ways = Ways([*uses, [(draw(st.integers(0, 1)), 0.7)]], [stages] * stages, 2, beside)
    number = [np.arange(turns_of, dtype=np.int32)] * stages
    release = [np.cumsum(draw(st.lists(ticks, min_size=turns_of, max_size=turns_of))) for _ in range(stages)]
    host = np.array([draw(st.integers(0, 200)) for _ in range(stages)], np.int64)
    held = [[draw(st.sampled_from([0, 0, 5, 80])) for _ in one] for one in rows]
    pieces = [piece(one, own) for one, own in zip(rows, held, strict=True)]
    lag = [draw(st.sampled_from([0, 0, 7, 60])) for _ in range(4)]
    return MeetingTurns(pieces, made.casts, made.cast, number, release, ways, host, 3, 400, 4, lag)


@native
@given(jobs())
def test_both_players_agree(what: MeetingTurns) -> None:
    met = both(what)
    assert (met.work + met.talk + met.hosted <= met.end).all()


@native
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.data())
def test_chains_are_the_same_without_a_compiler(ticks: list[int], data: st.DataObject) -> None:
    count = len(ticks)
    calls = data.draw(st.integers(0, 5))
    places = [data.draw(st.integers(0, count - 1)) for _ in range(calls)]
    lists = [
        [c for c in range(calls) if places[c] == row and c % 2 == early] for early in (0, 1) for row in range(count)
    ]
    needs = [[c for c in range(calls) if places[c] < row and data.draw(st.booleans())] for row in range(count)]
    tables = [Ragged.of(own, np.int32) for own in (lists[:count], lists[count:], needs)]
    step = (
        np.array(ticks, np.int64), np.array([1] * count, np.int64),
        np.array([data.draw(st.integers(0, 40)) for _ in ticks], np.int64),
        np.array([data.draw(st.booleans()) for _ in range(count)], np.int8),
        *(column for table in tables for column in (table.offsets, table.values)),
        np.array([data.draw(st.integers(0, 40)) for _ in range(calls)], np.int64), 3, 1.25,
    )  # fmt: skip
    rows, called = np.arange(count, dtype=np.int32), np.array([data.draw(st.booleans()) for _ in range(calls)], np.int8)
    hosted = data.draw(st.booleans())
    found = chained(step, rows, called, hosted)
    saved, meeting._native = meeting._native, None
    try:
        other = chained(step, rows, called, hosted)
    finally:
        meeting._native = saved
    for a, b in zip(found, other, strict=True):
        assert np.array_equal(a, b)
    assert all(a <= b for a, b in pairwise(found[0].tolist()))
