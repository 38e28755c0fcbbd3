"""Playing what repeats: pieces of programs, one after another on each of a few workers, that share nothing.

The graph of a job holds every instruction of every micro-batch.  Where nothing contends none of it is needed: a piece
is written once, and a *turn* plays it from the state that the turn before left, in the rules of
:mod:`triosim.engine.graph`.  A row begins when the rows of its piece that it waits for have ended and its stream is
free, and lasts ``ticks``; what is sent arrives when its sending has ended; a row that receives ends when that has come.
Times are whole picoseconds and equal to those of the engine, provided that no transfer shares a link with another at
the same time, which is for the caller to make sure of.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.engine.graph import Stuck

try:
    import triosim.engine._native as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None  # type: ignore[assignment]

Int64 = NDArray[np.int64]
NOT_SENT = -1


class Does(IntEnum):
    """What a row does with messages."""

    NOTHING = 0
    SENDS = 1
    RECEIVES = 2


class Shown(IntEnum):
    """What a row counts as when its time is added up; -1 as nothing."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    HOST = 3


@dataclass(frozen=True)
class Piece:
    """Rows that are played together, ``n`` of them.

    Attributes:
        kind: :class:`Does` codes, int8.
        stream: in-order stream of the worker, or -1 for none, int8.
        shown: :class:`Shown` codes or -1, int8.
        ticks: how long each row takes, int64.
        gap: ticks at its end in which it does nothing any more, int64.
        before: rows of the piece that must have ended first, all of them earlier, int32.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int8]
    shown: NDArray[np.int8]
    ticks: Int64
    gap: Int64
    before: Ragged

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Cast:
    """A piece with its correspondents.

    Attributes:
        piece: row in the list of pieces.
        ports: for each of its rows that sends or receives, in order, the message of turn 0.
    """

    piece: int
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    """How things are when all turns have been played.

    Attributes:
        free: when each stream of each worker is free, shape ``(workers, streams)``.
        sent, arrived: of each message, -1 for those that were not sent.
        spans: for each worker and :class:`Shown` code starts and ends, ascending, what touches taken together.
    """

    free: Int64
    sent: Int64
    arrived: Int64
    spans: list[list[tuple[Int64, Int64]]]


@dataclass(frozen=True)
class Turns:
    """What each worker plays, in order.

    Attributes:
        pieces: distinct pieces.
        casts: pieces with correspondents.
        cast, number: for each worker the rows of ``casts`` that it plays, and what is added to their ports, int32.
        longer: ticks that the sending of each message takes more than its piece says, int64.
        streams: of each worker.
    """

    pieces: Sequence[Piece]
    casts: Sequence[Cast]
    cast: Sequence[NDArray[np.int32]]
    number: Sequence[NDArray[np.int32]]
    longer: Int64
    streams: int


def play(turns: Turns, native: bool | None = None) -> Ended:
    """Play all turns from tick 0.

    Args:
        turns: what is played.
        native: whether in C++; None where that is there.

    Raises:
        Stuck: turns wait for each other in a circle.
    """
    if native is None:
        native = _native is not None
    return _played_natively(turns) if native else _Player(turns).play()


def steady(piece: Piece, streams: int, native: bool | None = None, times: int = 2) -> tuple[Int64, Int64]:
    """When the rows of a piece begin and end that follows another like it, neither receiving anything.

    Args:
        piece: the rows.
        streams: of the worker.
        native: whether in C++; None where that is there.
        times: how often it is played; 1 for one that follows nothing, which is always played in Python.
    """
    if native is None:
        native = _native is not None
    if native and times == 2:
        return _native.steady(_columns_of([piece]), streams)
    rows = list(zip(piece.stream.tolist(), piece.ticks.tolist(), piece.before.lists(), strict=True))
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


def _columns_of(pieces: Sequence[Piece]) -> tuple[NDArray[Any], ...]:
    """Pieces one after another, as the native player reads them."""
    before = Ragged.stacked([Ragged.empty(0, np.int32), *(piece.before for piece in pieces)])

    def column(name: str, dtype: Any) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(getattr(piece, name) for piece in pieces)]).astype(dtype)

    return (
        _ends(map(len, pieces)), column("kind", np.int8), column("stream", np.int8), column("shown", np.int8),
        column("ticks", np.int64), column("gap", np.int64), before.offsets, before.values.astype(np.int32),
    )  # fmt: skip


def _played_natively(turns: Turns) -> Ended:
    none = np.zeros(0, np.int64)
    free, sent, arrived, counts, start, end, ended = _native.turns(
        _columns_of(turns.pieces),
        (
            _ends(map(len, turns.cast)), _joined(turns.cast), _joined(turns.number),
            np.array([cast.piece for cast in turns.casts], np.int32), _ends(len(cast.ports) for cast in turns.casts),
            np.concatenate([none, *(np.array(cast.ports, np.int64) for cast in turns.casts)]),
            turns.longer,
        ),
        turns.streams, len(turns.longer),
    )  # fmt: skip
    if not ended:
        raise _stuck()
    bounds = _ends(counts.tolist())
    cut = [(start[a:b], end[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    spans = [cut[i : i + len(Shown)] for i in range(0, len(cut), len(Shown))]
    return Ended(free.reshape(len(turns.cast), turns.streams), sent, arrived, spans)


def _ends(lengths: Any) -> Int64:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _joined(columns: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *columns]).astype(np.int32)


def _stuck() -> Stuck:
    return Stuck("turns wait for each other in a circle")


class _Player:
    """The same in Python, for machines without a compiler and as what the other is tested against."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.rows = [
            list(
                zip(
                    piece.kind.tolist(), piece.stream.tolist(), piece.shown.tolist(), piece.ticks.tolist(),
                    piece.gap.tolist(), piece.before.lists(), strict=True,
                )
            )
            for piece in turns.pieces
        ]  # fmt: skip
        self.receives = [[kind == Does.RECEIVES for kind, *_ in rows if kind] for rows in self.rows]
        workers = len(turns.cast)
        self.free = [[0] * turns.streams for _ in range(workers)]
        self.longer = turns.longer.tolist()
        self.sent, self.arrived = [NOT_SENT] * len(self.longer), [NOT_SENT] * len(self.longer)
        self.spans: list[list[list[list[int]]]] = [[[] for _ in Shown] for _ in range(workers)]

    def play(self) -> Ended:
        """Worker after worker as far as it can go, until all are done."""
        plays = [
            list(zip(cast.tolist(), number.tolist(), strict=True))
            for cast, number in zip(self.turns.cast, self.turns.number, strict=True)
        ]
        at = [0] * len(plays)
        moved = True
        while moved:
            moved = False
            for worker, own in enumerate(plays):
                while at[worker] < len(own) and self._possible(*own[at[worker]]):
                    self._turn(worker, *own[at[worker]])
                    at[worker] += 1
                    moved = True
        if any(number < len(own) for number, own in zip(at, plays, strict=True)):
            raise _stuck()
        spans = [[_columns(spans) for spans in of] for of in self.spans]
        return Ended(
            np.array(self.free, np.int64).reshape(len(plays), self.turns.streams), np.array(self.sent, np.int64),
            np.array(self.arrived, np.int64), spans,
        )  # fmt: skip

    def _possible(self, cast: int, number: int) -> bool:
        """Whether all that a turn receives has been sent."""
        of = self.turns.casts[cast]
        receives = self.receives[of.piece]
        return all(
            self.arrived[port + number] != NOT_SENT for port, receive in zip(of.ports, receives, strict=True) if receive
        )

    def _turn(self, worker: int, cast: int, number: int) -> None:
        of, free, spans = self.turns.casts[cast], self.free[worker], self.spans[worker]
        ports = iter(of.ports)
        finish: list[int] = []
        for kind, stream, shown, ticks, gap, before in self.rows[of.piece]:
            ready = max((finish[row] for row in before), default=0)
            if stream >= 0:
                ready = max(ready, free[stream])
            done = ready + ticks
            if kind == Does.RECEIVES:
                done = ready = max(ready, self.arrived[next(ports) + number])
            elif kind == Does.SENDS:
                message = next(ports) + number
                done += self.longer[message]
                self.sent[message], self.arrived[message] = ready, done
            if shown >= 0 and done - gap > ready:
                last = spans[shown][-1] if spans[shown] else None
                if last is not None and ready <= last[1]:
                    last[1] = max(last[1], done - gap)
                else:
                    spans[shown].append([ready, done - gap])
            if stream >= 0:
                free[stream] = done
            finish.append(done)


def _columns(spans: list[list[int]]) -> tuple[Int64, Int64]:
    table = np.array(spans, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
