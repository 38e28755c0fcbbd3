"""Simulation with contention: what transfers and compute take, and that both simulators agree."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.columns import Ragged
from triosim.engine import contended, operator_chain
from triosim.engine.contended import (
    ContendedFragment,
    ContendedRun,
    ContendedSchedule,
    RoutedFragment,
    RoutedPort,
    RowKind,
    TransferClasses,
    contended_run,
)
from triosim.engine.graph import Stuck
from triosim.engine.operator_chain import run_operator_chain

native = pytest.mark.skipif(contended._native is None, reason="there was no compiler")
Rows = list[tuple[RowKind, int, int, float, int, list[int]]]


def fragment(
    rows: Rows, host_delay: list[int] | None = None, gap: list[int] | None = None, exposed: list[int] | None = None,
    waiting_exposed: float = 0.0,
) -> ContendedFragment:  # fmt: skip
    kind, stream, ticks, slowdown, label, before = zip(*rows, strict=True)
    delays, gaps, moves = (np.array(column or len(rows) * [0], np.int64) for column in (host_delay, gap, exposed))
    return ContendedFragment(
        np.array(kind, np.int8), np.array(stream, np.int8), np.array(ticks, np.int64), np.array(slowdown, np.float64),
        np.ones(len(rows)), np.array(label, np.int32), Ragged.of([list(b) for b in before], np.int32), delays,
        gaps, moves, waiting_exposed,
    )  # fmt: skip


def schedule(
    rows: list[Rows],
    ports: list[tuple[RoutedPort, ...]],
    order: list[list[int]],
    transfer_classes: TransferClasses,
    messages: int = 8,
) -> ContendedSchedule:
    ported = [RoutedFragment(number, own) for number, own in enumerate(ports)]
    return ContendedSchedule(
        [fragment(one) for one in rows], ported, Ragged.of(order, np.int32),
        Ragged.of([[0] * len(own) for own in order], np.int32), Ragged.of([[0] * len(own) for own in order]),
        transfer_classes,
        np.zeros(len(order), np.int64), 3, messages, 4,
    )  # fmt: skip


def both(what: ContendedSchedule) -> ContendedRun:
    """What both players say."""
    found = contended_run(what, native=False)
    if contended._native is not None:
        other = contended_run(what, native=True)
        for name in ("end", "work", "communication", "hosted", "label_ticks"):
            assert np.array_equal(getattr(found, name), getattr(other, name)), name
    return found


def test_what_meets_nothing_takes_what_it_says() -> None:
    rows: Rows = [
        (RowKind.COMPUTE, 0, 100, 2.0, 0, []),
        (RowKind.COLLECTIVE, 1, 40, 1.0, 1, [0]),
        (RowKind.COMPUTE, 0, 7, 1.0, 0, [1]),
    ]
    met = both(schedule([rows], [()], [[0]], TransferClasses([[]], [0], 0)))
    assert (met.end, met.work.tolist(), met.communication.tolist()) == (147, [107], [40])
    assert met.label_ticks.tolist() == [[107, 40, 0, 0]]


def test_work_is_stretched_beside_a_move() -> None:
    rows: Rows = [(RowKind.COLLECTIVE, 1, 60, 1.0, -1, []), (RowKind.COMPUTE, 0, 100, 1.5, -1, [])]
    assert both(schedule([rows], [()], [[0]], TransferClasses([[]], [0], 0))).end == 60 + 100 - 40


def test_work_does_not_end_before_its_host_is_so_far() -> None:
    rows: Rows = [
        (RowKind.COMPUTE, 0, 100, 1.0, 0, []),
        (RowKind.COLLECTIVE, 1, 5, 1.0, 1, [0]),
        (RowKind.COMPUTE, 0, 10, 1.0, -1, []),
    ]
    what = schedule([rows], [()], [[0, 0]], TransferClasses([[]], [0], 0))
    host_delay = replace(
        what, fragments=[fragment(rows, [130, 0, 0])], release=Ragged.of([[20, 30]]), host=np.array([1000], np.int64)
    )  # fmt: skip
    met = both(host_delay)
    assert (met.end, met.work.tolist()) == (20 + 130 + 10 + 100 + 10, [220])
    assert (met.communication.tolist(), met.hosted.tolist()) == ([0], [50])  # moves are beside other work


def test_what_is_not_computed_within_compute_counts_as_what_it_is() -> None:
    """Of 100 ticks 30 are gaps, half of them while the host is busy, and in 20 something moves; so does it in half of
    the 60 in which it then waits for its host.  Beside a collective gaps count as talking."""
    rows: Rows = [(RowKind.COMPUTE, 0, 100, 1.0, 0, []), (RowKind.COMPUTE, 0, 10, 1.0, -1, [])]
    what = schedule([rows], [()], [[0]], TransferClasses([[]], [0], 0))
    one = fragment(rows, [160, 0], [30, 0], [20, 0], 0.5)
    met = both(replace(what, fragments=[one], host=np.array([50], np.int64)))
    assert (met.end, met.work.tolist()) == (170, [50 + 10])
    assert (met.communication.tolist(), met.hosted.tolist()) == ([20 + 30], [15])
    beside: Rows = [(RowKind.COLLECTIVE, 1, 60, 1.0, -1, []), (RowKind.COMPUTE, 0, 100, 1.5, -1, [])]
    met = both(replace(what, fragments=[fragment(beside, None, [0, 30], [0, 20])], host=np.array([500], np.int64)))
    assert (met.end, met.work.tolist()) == (60 + 100 - 40, [60])
    assert (met.communication.tolist(), met.hosted.tolist()) == ([24 + 18], [18])


def test_two_that_fill_a_link_get_half_of_it_each() -> None:
    sends: Rows = [(RowKind.SEND, 2, 100, 1.0, 0, [])]
    later: Rows = [(RowKind.COMPUTE, 0, 50, 1.0, -1, []), (RowKind.SEND, 2, 100, 1.0, 0, [0])]
    comes = (RowKind.RECEIVE, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes, (RowKind.COMPUTE, 0, 1, 1.0, -1, [0, 1])]
    ports = [(RoutedPort(0, 0, 2),), (RoutedPort(1, 0, 2),), (RoutedPort(0, 0, 0), RoutedPort(1, 0, 1))]
    met = both(schedule([sends, later, takes], ports, [[0], [1], [2]], TransferClasses([[(0, 1.0)], []], [1, 1, 1], 1)))
    assert met.label_ticks[:, 0].tolist() == [150, 150, 0]  # 50 alone, 100 for the other 50, and the other way round
    assert (met.end, met.communication.tolist()) == (201, [150, 150, 200])


def test_what_others_leave_of_a_link_is_taken() -> None:
    """Three on one link get a third each; one of them is on another as well, where the fourth gets two thirds."""
    sends: Rows = [(RowKind.SEND, 2, 90, 1.0, 0, [])]
    comes = (RowKind.RECEIVE, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes, comes, comes]
    transfer_classes = TransferClasses([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], []], [3] * 5, 2)
    of = [0, 0, 1, 2]
    ports = [
        *((RoutedPort(n, way, 4),) for n, way in enumerate(of)),
        tuple(RoutedPort(n, of[n], n) for n in range(4)),
    ]
    met = both(schedule([*[sends] * 4, takes], ports, [[0], [1], [2], [3], [4]], transfer_classes))
    assert met.label_ticks[:, 0].tolist() == [270, 270, 270, 135, 0]


def test_latency_is_not_shared() -> None:
    """Of two that begin at once one waits for 40 ticks first: the other is alone for so long."""
    sends: Rows = [(RowKind.SEND, 2, 100, 1.0, 0, [])]
    slow: Rows = [(RowKind.SEND, 2, 100, 1.0, 1, [])]
    comes = (RowKind.RECEIVE, -1, 0, 1.0, -1, list[int]())
    takes: Rows = [comes, comes]
    ports = [(RoutedPort(0, 0, 2),), (RoutedPort(1, 0, 2),), (RoutedPort(0, 0, 0), RoutedPort(1, 0, 1))]
    what = schedule([sends, slow, takes], ports, [[0], [1], [2]], TransferClasses([[(0, 1.0)], []], [1, 1, 1], 1))
    met = both(replace(what, lag=[0, 40, 0, 0]))
    assert met.label_ticks[:2, :2].tolist() == [[160, 0], [0, 160]]


def test_a_message_has_arrived_when_all_its_parts_have() -> None:
    """Half of a message meets a move on its first link, the other half nothing."""
    moves: Rows = [(RowKind.COLLECTIVE, 1, 50, 1.0, 1, [])]
    sends: Rows = [(RowKind.SEND, 2, 100, 1.0, 0, [])]
    takes: Rows = [(RowKind.RECEIVE, -1, 0, 1.0, -1, []), (RowKind.COMPUTE, 0, 1, 1.0, -1, [0])]
    transfer_classes = TransferClasses([[(0, 1.0)], [(1, 1.0)], [(0, 1.0)], []], [2, 3, 3], 2, {0: (1,)})
    ports: list[tuple[RoutedPort, ...]] = [(), (RoutedPort(0, 0, 2),), (RoutedPort(0, 0, 1),)]
    met = both(schedule([moves, sends, takes], ports, [[0], [1], [2]], transfer_classes))
    assert met.label_ticks[:, :2].tolist() == [[0, 100], [150, 0], [0, 0]]
    assert met.end == 151


def test_a_circle_is_told() -> None:
    waits: Rows = [(RowKind.RECEIVE, -1, 0, 1.0, -1, []), (RowKind.COMPUTE, 0, 1, 1.0, -1, [0])]
    what = schedule([waits], [(RoutedPort(0, 0, 0),)], [[0]], TransferClasses([[]], [0], 0))
    for way in (False, True) if contended._native is not None else (False,):
        with pytest.raises(Stuck):
            contended_run(what, native=way)


def _divided(draw: st.DrawFn, one: ContendedFragment) -> ContendedFragment:
    """Some of the ticks of compute are neither used nor moved in, or only moved in."""
    ticks = np.where(one.kind == RowKind.COMPUTE, one.ticks, 0)
    parts = st.lists(st.integers(0, 6), min_size=len(one), max_size=len(one))
    gap, exposed = (ticks * np.array(draw(parts)) // 12 for _ in range(2))
    beside = st.lists(st.sampled_from([1.0, 1.0, 1.5, 1.9]), min_size=len(one), max_size=len(one))
    return replace(
        one, gap=gap, exposed=exposed, waiting_exposed=draw(st.sampled_from([0.0, 0.3, 1.0])),
        collective_slowdown=np.where(one.kind == RowKind.COMPUTE, np.array(draw(beside)), 1.0),
    )  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> ContendedSchedule:
    """Stages of a chain that work, move and send on."""
    stages, turns_of = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ticks, slowdown = st.integers(0, 50), st.sampled_from([1.0, 1.25, 2.0])
    rows: list[Rows] = []
    ports: list[tuple[RoutedPort, ...]] = []
    for stage in range(stages):
        one: Rows = []
        own: list[RoutedPort] = []
        if stage:
            one.append((RowKind.RECEIVE, -1, 0, 1.0, -1, []))
            own.append(RoutedPort(100 * (stage - 1), stage - 1, stage - 1))
        one.append((RowKind.COMPUTE, 0, draw(ticks), draw(slowdown), 0, list(range(len(one)))))
        for _ in range(draw(st.integers(0, 4))):  # that nothing waits for but for what is drawn here
            one.append((RowKind.COMPUTE, 0, draw(ticks), draw(slowdown), -1, []))
        works = st.integers(1 if stage else 0, len(one) - 1)
        one.append((RowKind.COLLECTIVE, 1, draw(ticks), 1.0, 1, [draw(works)] if draw(st.booleans()) else []))
        one.append((RowKind.COMPUTE, 0, draw(ticks), draw(slowdown), 2, [len(one) - 1] if draw(st.booleans()) else []))
        if stage < stages - 1:
            one.append((RowKind.SEND, 2, draw(ticks), 1.0, 3, [len(one) - 1]))
            own.append(RoutedPort(100 * stage, stage, stage + 1))
        rows.append(one)
        ports.append(tuple(own))
    part = st.sampled_from([0.3, 0.6, 1.0])
    uses = [[(draw(st.integers(0, 1)), draw(part))] if draw(st.booleans()) else [] for _ in range(stages + 1)]
    made = schedule(
        rows, ports, [[stage] * turns_of for stage in range(stages)], TransferClasses(uses, [stages] * stages, 2), 400
    )
    beside = {way: (stages + 1,) for way in range(stages) if draw(st.booleans())}
    transfer_classes = TransferClasses([*uses, [(draw(st.integers(0, 1)), 0.7)]], [stages] * stages, 2, beside)
    number = Ragged.of([range(turns_of)] * stages, np.int32)
    release = Ragged.of(
        [list(accumulate(draw(st.lists(ticks, min_size=turns_of, max_size=turns_of)))) for _ in range(stages)]
    )
    host = np.array([draw(st.integers(0, 200)) for _ in range(stages)], np.int64)
    host_delay = [[draw(st.sampled_from([0, 0, 5, 80])) for _ in one] for one in rows]
    fragments = [_divided(draw, fragment(one, own)) for one, own in zip(rows, host_delay, strict=True)]
    lag = [draw(st.sampled_from([0, 0, 7, 60])) for _ in range(4)]
    return ContendedSchedule(
        fragments, made.ported, made.order, number, release, transfer_classes, host, 3, 400, 4, lag
    )


@native
@given(jobs())
def test_both_players_agree(what: ContendedSchedule) -> None:
    met = both(what)
    assert (met.work + met.communication + met.hosted <= met.end).all()


@native
@pytest.mark.parametrize("begins", range(0, 301, 10))
def test_where_work_is_comes_to_light_when_something_begins_beside_it(begins: int) -> None:
    """Rows of work that nothing waits for are played as one in C++: what a collective that begins and ends anywhere in
    them does to each is the same as when they are played one by one."""
    works: Rows = [(RowKind.COMPUTE, 0, 20 + 10 * n, 1.0 + 0.5 * (n % 3), -1, []) for n in range(8)]
    beside: Rows = [(RowKind.COLLECTIVE, 1, 45, 1.0, 0, [])]
    rows: Rows = [*works, *beside, *works, (RowKind.COLLECTIVE, 1, 30, 1.0, 1, [12])]
    what = schedule([rows], [()], [[0, 0]], TransferClasses([[(0, 0.6)], []], [0], 1))
    gap, exposed = ([3 * (n % 2) if row[0] == RowKind.COMPUTE else 0 for n, row in enumerate(rows)] for _ in range(2))
    delay = [begins if row[0] == RowKind.COLLECTIVE else 0 for row in rows]
    one = fragment(rows, delay, gap, exposed)
    met = both(replace(what, fragments=[one], host=np.array([begins], np.int64)))
    alone = sum(row[2] for row in works)
    assert 4 * alone <= met.end < 8 * alone
    assert met.work.sum() + met.communication.sum() + met.hosted.sum() <= met.end


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
    under_way = np.array([data.draw(st.sampled_from([-1, -1, 9, 70])) for _ in range(calls)], np.int64)
    found = run_operator_chain(step, rows, called, under_way, hosted)
    saved, operator_chain._native = operator_chain._native, None
    try:
        other = run_operator_chain(step, rows, called, under_way, hosted)
    finally:
        operator_chain._native = saved
    for a, b in zip(found, other, strict=True):
        assert np.array_equal(a, b)
    assert all(a <= b for a, b in pairwise(found[0].tolist()))


def pipeline(seed: int, stages: int, micro_batches: int, shares: bool) -> ContendedSchedule:
    """Forwards and backwards in turn on each stage that send to both sides, and a collective beside every backward."""
    draw = np.random.default_rng(seed)
    comes = (RowKind.RECEIVE, -1, 0, 1.0, -1, list[int]())
    rows: list[Rows] = []
    ports: list[tuple[RoutedPort, ...]] = []
    order: list[list[int]] = []
    number: list[list[int]] = []
    for stage in range(stages):
        took = draw.integers(50, 120, 4).tolist()
        first, last = stage == 0, stage == stages - 1
        forward: Rows = [] if first else [comes]
        forward.append((RowKind.COMPUTE, 0, took[0], 1.5, -1, [] if first else [0]))
        forward += [(RowKind.COMPUTE, 0, took[0] // (3 + n), 1.0 + 0.4 * n, -1, []) for n in range(3)]
        if not last:
            forward.append((RowKind.SEND, 2, took[1], 1.0, 1, [len(forward) - 1]))
        backward: Rows = [] if last else [comes]
        backward.append((RowKind.COMPUTE, 0, took[2], 1.2, -1, [] if last else [0]))
        backward += [(RowKind.COMPUTE, 0, took[2] // (2 + n), 1.6 - 0.3 * n, -1, []) for n in range(3)]
        backward.append((RowKind.COLLECTIVE, 1, took[3], 1.0, 2, [len(backward) - 1]))
        if not first:
            backward.append((RowKind.SEND, 2, took[1], 1.0, 3, [0 if last else 1]))
        rows += [forward, backward]
        sends, back = (2 * stage) * micro_batches, (2 * stage - 1) * micro_batches
        before, after = RoutedPort(2 * (stage - 1) * micro_batches, 0, stage - 1), RoutedPort(sends, 0, stage + 1)
        ahead = RoutedPort((2 * stage + 1) * micro_batches, 0, stage + 1)
        ports.append((*(() if first else (before,)), *(() if last else (after,))))
        ports.append((*(() if last else (ahead,)), *(() if first else (RoutedPort(back, 0, stage - 1),))))
        warm = min(stages - stage, micro_batches)
        steps = [(0, k) for k in range(warm)]
        for k in range(micro_batches):
            steps.append((1, k))
            if k + warm < micro_batches:
                steps.append((0, k + warm))
        order.append([2 * stage + what for what, _ in steps])
        number.append([k for _, k in steps])
    classes = TransferClasses([[(0, 0.7)], []], [0 if shares else 1] * stages, 1)
    plain = schedule(rows, ports, order, classes, 2 * stages * micro_batches)
    return replace(plain, offset=Ragged.of(number, np.int32))


@native
def test_turns_that_repeat_are_left_out_exactly() -> None:
    left_out = []
    for seed in range(8):
        for shares in (False, True):
            what = pipeline(seed, 2 + seed % 3, 100, shares)
            both(what)
            left_out.append(contended_run(what, native=True).left_out)
    assert sum(count > 0 for count in left_out) >= 8  # some take longer until they repeat


@native
def test_turns_are_not_left_out_while_their_host_is_late() -> None:
    plain = pipeline(1, 3, 60, shares=False)
    late = replace(plain, release=Ragged.of([[400 * n for n in range(len(own))] for own in plain.order]))
    both(late)
    assert contended_run(late, native=True).left_out == 0
    busy = replace(plain, host=np.array([3000, 4000, 9000], np.int64))
    both(busy)
    assert contended_run(busy, native=True).left_out > 0
