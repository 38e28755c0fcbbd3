"""Simulation without contention: fragments of programs that a few workers run again and again.

The graph of a job holds every instruction of every micro-batch.  Where nothing contends none of it is needed.  A
fragment is written once; each *action* of a worker runs it from the state that the action before left, by the rules of
:mod:`triosim.engine.graph`.  A row begins when the rows of its fragment that it waits for have ended and its stream is
free, and lasts ``ticks``.  A message arrives when its send has ended; a receive ends when its message has arrived.
Times are whole picoseconds, equal to those of the engine.  The caller makes sure that no two transfers share a link at
the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.engine.column_types import joined, row_ends
from triosim.engine.graph import CIRCLE, Stuck

try:
    import triosim.engine._native as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None  # type: ignore[assignment]

Int64 = NDArray[np.int64]
NOT_SENT = -1


class MessageOp(IntEnum):
    """What a row does with messages."""

    NONE = 0
    SEND = 1
    RECEIVE = 2


class TimeCategory(IntEnum):
    """What a row counts as when its time is added up; -1 as nothing."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    HOST = 3


@dataclass(frozen=True)
class TimedFragment:
    """Rows that are run together, ``n`` of them.

    Attributes:
        kind: :class:`MessageOp` codes, int8.
        stream: in-order stream of the worker, or -1 for none, int8.
        category: :class:`TimeCategory` codes or -1, int8.
        ticks: how long each row takes, int64.
        gap: ticks at its end in which it does nothing any more, int64.
        before: rows of the fragment that must have ended first, all of them earlier, int32.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int8]
    category: NDArray[np.int8]
    ticks: Int64
    gap: Int64
    before: Ragged

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class PortedFragment:
    """A fragment and its messages.

    Attributes:
        fragment: row in the list of fragments.
        ports: for each of its rows that sends or receives, in order, the message of action 0.
    """

    fragment: int
    ports: tuple[int, ...]


@dataclass(frozen=True)
class ContentionFreeRun:
    """The state when all actions have run.

    Attributes:
        free: when each stream of each worker is free, shape ``(workers, streams)``.
        sent, arrived: of each message, -1 for those that were not sent.
        spans: for each worker and :class:`TimeCategory` code starts and ends, ascending, adjacent ones merged.
    """

    free: Int64
    sent: Int64
    arrived: Int64
    spans: list[list[tuple[Int64, Int64]]]


@dataclass(frozen=True)
class ContentionFreeSchedule:
    """The actions of each worker, in order.

    Attributes:
        fragments: distinct fragments.
        ported: fragments with their messages.
        order, offset: for each worker the rows of ``ported`` that it runs, and what is added to their ports, int32.
        extra_ticks: ticks that the send of each message takes longer than its fragment says, int64.
        streams: of each worker.
    """

    fragments: Sequence[TimedFragment]
    ported: Sequence[PortedFragment]
    order: Sequence[NDArray[np.int32]]
    offset: Sequence[NDArray[np.int32]]
    extra_ticks: Int64
    streams: int


def contention_free_run(schedule: ContentionFreeSchedule, native: bool | None = None) -> ContentionFreeRun:
    """Run all actions from tick 0.

    Args:
        schedule: what is run.
        native: whether in C++; None where that is there.

    Raises:
        Stuck: actions wait for each other in a circle.
    """
    if native is None:
        native = _native is not None
    return _run_natively(schedule) if native else _ContentionFreeSimulator(schedule).run()


def steady_state(
    fragment: TimedFragment, streams: int, native: bool | None = None, times: int = 2
) -> tuple[Int64, Int64]:
    """When the rows of a fragment begin and end that follows another run of it, neither receiving anything.

    Args:
        fragment: the rows.
        streams: of the worker.
        native: whether in C++; None where that is there.
        times: how often it is run; 1 for one that follows nothing, which always runs in Python.
    """
    if native is None:
        native = _native is not None
    if native and times == 2:
        return _native.steady(_columns_of([fragment]), streams)
    rows = list(zip(fragment.stream.tolist(), fragment.ticks.tolist(), fragment.before.lists(), strict=True))
    free = [0] * streams
    for _ in range(times):
        start, finish = list[int](), list[int]()
        for stream, ticks, before in rows:
            ready = max((finish[row] for row in before), default=0)
            if stream >= 0:
                ready = max(ready, free[stream])
                free[stream] = ready + ticks
            start.append(ready)
            finish.append(ready + ticks)
    return np.array(start, np.int64), np.array(finish, np.int64)


def _columns_of(fragments: Sequence[TimedFragment]) -> tuple[NDArray[Any], ...]:
    """Fragments one after another, as the native simulator reads them."""
    before = Ragged.stacked([Ragged.empty(0, np.int32), *(fragment.before for fragment in fragments)])

    def column(name: str, dtype: Any) -> NDArray[Any]:
        return joined([getattr(fragment, name) for fragment in fragments], dtype)

    return (
        row_ends(map(len, fragments)), column("kind", np.int8), column("stream", np.int8), column("category", np.int8),
        column("ticks", np.int64), column("gap", np.int64), before.offsets, before.values.astype(np.int32),
    )  # fmt: skip


def _run_natively(schedule: ContentionFreeSchedule) -> ContentionFreeRun:
    free, sent, arrived, counts, start, end, ended = _native.turns(
        _columns_of(schedule.fragments),
        (
            row_ends(map(len, schedule.order)), joined(schedule.order, np.int32), joined(schedule.offset, np.int32),
            np.array([own.fragment for own in schedule.ported], np.int32),
            row_ends(len(own.ports) for own in schedule.ported),
            joined([np.array(own.ports, np.int64) for own in schedule.ported], np.int64),
            schedule.extra_ticks,
        ),
        schedule.streams, len(schedule.extra_ticks),
    )  # fmt: skip
    if not ended:
        raise Stuck(CIRCLE)
    bounds = row_ends(counts.tolist())
    cut = [(start[a:b], end[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    spans = [cut[i : i + len(TimeCategory)] for i in range(0, len(cut), len(TimeCategory))]
    return ContentionFreeRun(free.reshape(len(schedule.order), schedule.streams), sent, arrived, spans)


class _ContentionFreeSimulator:
    """The same in Python, for machines without a compiler and as what the other is tested against."""

    def __init__(self, schedule: ContentionFreeSchedule) -> None:
        self.schedule = schedule
        self.rows = [
            list(
                zip(
                    fragment.kind.tolist(), fragment.stream.tolist(), fragment.category.tolist(),
                    fragment.ticks.tolist(),
                    fragment.gap.tolist(), fragment.before.lists(), strict=True,
                )
            )
            for fragment in schedule.fragments
        ]  # fmt: skip
        self.receives = [[kind == MessageOp.RECEIVE for kind, *_ in rows if kind] for rows in self.rows]
        workers = len(schedule.order)
        self.free = [[0] * schedule.streams for _ in range(workers)]
        self.extra_ticks = schedule.extra_ticks.tolist()
        self.sent, self.arrived = [NOT_SENT] * len(self.extra_ticks), [NOT_SENT] * len(self.extra_ticks)
        self.spans: list[list[list[list[int]]]] = [[[] for _ in TimeCategory] for _ in range(workers)]

    def run(self) -> ContentionFreeRun:
        """Worker after worker as far as it can go, until all are done."""
        plays = [
            list(zip(order.tolist(), number.tolist(), strict=True))
            for order, number in zip(self.schedule.order, self.schedule.offset, strict=True)
        ]
        at = [0] * len(plays)
        moved = True
        while moved:
            moved = False
            for worker, own in enumerate(plays):
                while at[worker] < len(own) and self._possible(*own[at[worker]]):
                    self._run_action(worker, *own[at[worker]])
                    at[worker] += 1
                    moved = True
        if any(number < len(own) for number, own in zip(at, plays, strict=True)):
            raise Stuck(CIRCLE)
        spans = [[_columns(spans) for spans in of] for of in self.spans]
        return ContentionFreeRun(
            np.array(self.free, np.int64).reshape(len(plays), self.schedule.streams), np.array(self.sent, np.int64),
            np.array(self.arrived, np.int64), spans,
        )  # fmt: skip

    def _possible(self, order: int, number: int) -> bool:
        """Whether all that an action receives has been sent."""
        of = self.schedule.ported[order]
        receives = self.receives[of.fragment]
        return all(
            self.arrived[port + number] != NOT_SENT for port, receive in zip(of.ports, receives, strict=True) if receive
        )

    def _run_action(self, worker: int, order: int, number: int) -> None:
        of, free, spans = self.schedule.ported[order], self.free[worker], self.spans[worker]
        ports = iter(of.ports)
        finish: list[int] = []
        for kind, stream, category, ticks, gap, before in self.rows[of.fragment]:
            ready = max((finish[row] for row in before), default=0)
            if stream >= 0:
                ready = max(ready, free[stream])
            done = ready + ticks
            if kind == MessageOp.RECEIVE:
                done = ready = max(ready, self.arrived[next(ports) + number])
            elif kind == MessageOp.SEND:
                message = next(ports) + number
                done += self.extra_ticks[message]
                self.sent[message], self.arrived[message] = ready, done
            if category >= 0 and done - gap > ready:
                last = spans[category][-1] if spans[category] else None
                if last is not None and ready <= last[1]:
                    last[1] = max(last[1], done - gap)
                else:
                    spans[category].append([ready, done - gap])
            if stream >= 0:
                free[stream] = done
            finish.append(done)


def _columns(spans: list[list[int]]) -> tuple[Int64, Int64]:
    table = np.array(spans, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
