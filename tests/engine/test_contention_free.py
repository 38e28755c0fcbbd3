"""Turns without a graph end when the engine ends them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.columns import Ragged
from triosim.engine import contention_free
from triosim.engine.contention_free import ContentionFreeSchedule, MessageOp, PortedFragment, TimedFragment
from triosim.engine.graph import EngineNetwork, Graph, Stuck, Task
from triosim.engine.play import play

STREAMS = 3
PYTHON_AND_NATIVE = [False, True]


def needs_compiler(native: bool) -> None:
    if native and contention_free._native is None:
        pytest.skip("there is no native engine")


def fragment(rows: list[tuple[int, int, int, int, int, list[int]]]) -> TimedFragment:
    """Rows of (kind, stream, shown, ticks, gap, before)."""
    *columns, before = zip(*rows, strict=True)
    kind, stream, shown = (np.array(column, np.int8) for column in columns[:3])
    ticks, gap = (np.array(column, np.int64) for column in columns[3:])
    return TimedFragment(kind, stream, shown, ticks, gap, Ragged.of(before, np.int32))


@st.composite
def jobs(draw: st.DrawFn) -> ContentionFreeSchedule:
    """A few workers in a row: each turn sends to the same turn of the next worker."""
    workers, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    fragments, ported, cast, number = [], [], [], []
    for worker in range(workers):
        rows = []
        for row in range(draw(st.integers(1, 6))):
            before = draw(st.lists(st.integers(0, row - 1), max_size=2, unique=True)) if row else []
            rows.append((0, draw(st.integers(-1, 2)), draw(st.integers(-1, 3)), draw(st.integers(0, 9)), 0, before))
        ports = []
        if worker:
            rows.insert(0, (int(MessageOp.RECEIVE), -1, -1, 0, 0, []))
            rows = [rows[0], *((*row[:5], [b + 1 for b in row[5]] or [0]) for row in rows[1:])]
            ports.append((worker - 1) * count)
        if worker < workers - 1:
            rows.append((int(MessageOp.SEND), 2, 2, draw(st.integers(0, 9)), 0, [len(rows) - 1]))
            ports.append(worker * count)
        fragments.append(fragment(rows))
        ported.append(PortedFragment(worker, tuple(ports)))
        cast.append(np.full(count, worker, np.int32))
        number.append(np.arange(count, dtype=np.int32))
    extra_ticks = np.array(
        draw(st.lists(st.integers(0, 5), min_size=workers * count, max_size=workers * count)), np.int64
    )
    return ContentionFreeSchedule(fragments, ported, cast, number, extra_ticks, STREAMS)


def as_graph(job: ContentionFreeSchedule) -> tuple[Graph, list[tuple[int, int]]]:
    """The same turns as tasks, and (worker, stream) of each."""
    kind, stream, amount, before, where = [], [], [], [], []
    sender: dict[int, int] = {}
    for worker, (ported, numbers) in enumerate(zip(job.order, job.offset, strict=True)):
        for cast, number in zip(ported.tolist(), numbers.tolist(), strict=True):
            own, ports = job.fragments[job.ported[cast].fragment], iter(job.ported[cast].ports)
            first = len(kind)
            for row in range(len(own)):
                needs = [first + b for b in own.before[row].tolist()]
                ticks, does = int(own.ticks[row]), int(own.kind[row])
                if does:
                    message = next(ports) + number
                    if does == MessageOp.SEND:
                        sender[message], ticks = len(kind), ticks + int(job.extra_ticks[message])
                    else:
                        needs.append(sender[message])
                kind.append(Task.JOIN if does == MessageOp.RECEIVE else Task.COMPUTE)
                lane = int(own.stream[row])
                stream.append(lane + worker * STREAMS if lane >= 0 else -1)
                where.append((worker, lane))
                amount.append(0 if does == MessageOp.RECEIVE else ticks)
                before.append(needs)
    n = len(kind)
    graph = Graph(
        np.array(kind, np.int8), np.array(stream, np.int32), np.array(amount, np.int64), np.full(n, -1, np.int32),
        np.zeros(n, np.int32), Ragged.of(before, np.int32), len(job.order) * STREAMS,
    )  # fmt: skip
    return graph, where


@pytest.mark.parametrize("native", PYTHON_AND_NATIVE)
@given(job=jobs())
def test_turns_are_what_the_engine_plays(native: bool, job: ContentionFreeSchedule) -> None:
    needs_compiler(native)
    found = contention_free.contention_free_run(job, native)
    graph, where = as_graph(job)
    wires = EngineNetwork(np.zeros(0, np.int64), Ragged.empty(0, np.int32), np.zeros(0, np.int64))
    finish = play(graph, wires).finish
    free = np.zeros((len(job.order), STREAMS), np.int64)
    for (worker, lane), end in zip(where, finish.tolist(), strict=True):
        if lane >= 0:
            free[worker, lane] = max(free[worker, lane], end)
    assert found.free.tolist() == free.tolist()


@given(job=jobs())
def test_with_and_without_a_compiler_it_is_the_same(job: ContentionFreeSchedule) -> None:
    needs_compiler(True)
    a, b = contention_free.contention_free_run(job, True), contention_free.contention_free_run(job, False)
    assert a.sent.tolist() == b.sent.tolist()
    assert a.arrived.tolist() == b.arrived.tolist()
    for own, other in zip(a.spans, b.spans, strict=True):
        for (start, end), (start2, end2) in zip(own, other, strict=True):
            assert start.tolist() == start2.tolist()
            assert end.tolist() == end2.tolist()
    for one in job.fragments:
        if not one.kind.any():
            for x, y in zip(
                contention_free.steady_state(one, STREAMS, True),
                contention_free.steady_state(one, STREAMS, False),
                strict=True,
            ):
                assert x.tolist() == y.tolist()


@pytest.mark.parametrize("native", PYTHON_AND_NATIVE)
def test_turns_that_wait_for_each_other_are_refused(native: bool) -> None:
    needs_compiler(native)
    waits = fragment([(MessageOp.RECEIVE, -1, -1, 0, 0, []), (MessageOp.SEND, 0, -1, 1, 0, [0])])
    one = [np.zeros(1, np.int32)] * 2
    job = ContentionFreeSchedule(
        [waits],
        [PortedFragment(0, (0, 1)), PortedFragment(0, (1, 0))],
        [one[0], one[0] + 1],
        one,
        np.zeros(2, np.int64),
        1,
    )
    with pytest.raises(Stuck, match="circle"):
        contention_free.contention_free_run(job, native)


@pytest.mark.parametrize("wrong", ["message", "before", "stream"])
def test_columns_that_point_nowhere_are_refused(wrong: str) -> None:
    needs_compiler(True)
    row = (MessageOp.SEND, 5 if wrong == "stream" else 0, -1, 1, 0, [0] if wrong == "before" else [])
    ports = (7,) if wrong == "message" else (0,)
    one = [np.zeros(1, np.int32)]
    with pytest.raises(ValueError):
        contention_free.contention_free_run(
            ContentionFreeSchedule([fragment([row])], [PortedFragment(0, ports)], one, one, np.zeros(1, np.int64), 1),
            True,
        )
