"""Turns whose transfers meet: pieces of programs on a few workers, with what they share as rates instead of flows.

Like :mod:`triosim.engine.turns`, but for what contends.  A *piece* is a few rows: work, moves (collectives that a
worker takes part in), sends and receives.  Each stream of a worker is in order; a row begins when its stream is free
and the rows that it waits for have ended, work besides not before its turn is released.

* Work does not end before its host has issued it, ``held`` ticks after its turn is released at the earliest; moves and
  sends do not begin before that.
* Work takes ``stretch`` times as long while a move of its worker is under way, or what it sends to itself.
* Moves and sends belong to a *class* that uses parts of *resources*; where those under way use more than all of one,
  all go equally fast until a resource is full; those on it stay as fast as they are, and the others share what is left,
  as max-min sharing has it.  So two that each fill a link get half of it.
* At first a transfer may only wait and use nothing: the latency of a collective or a send.
* What has parts that use different resources is several classes *beside* each other: all begin at once and last equally
  long alone, and it has arrived when the last of them has.

Times are whole ticks: what meets nothing takes exactly as long as it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

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
Int32 = NDArray[np.int32]


SLOWEST = 1e-6
"""Rate of transfers where rounding leaves nothing for them."""


class Row(IntEnum):
    """Kinds of rows."""

    WORK = 0
    MOVE = 1
    SENDS = 2
    RECEIVES = 3


@dataclass(frozen=True)
class MeetingPiece:
    """Rows that are played together, ``n`` of them.

    Attributes:
        kind: :class:`Row` codes, int8.
        stream: in-order stream of the worker, 0 for work; -1 for what receives, int8.
        ticks: how long each row takes alone, int64.
        stretch: how many times longer work takes beside a move, at least 1, float64.
        label: under which the ticks of a row are added up, -1 for none, int32.
        before: rows of the piece that must have ended first, all of them earlier, int32.
        held: ticks after the release of the turn before which work does not end, and moves and sends do not begin (0:
            they wait for nothing of the kind), int64.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int8]
    ticks: Int64
    stretch: NDArray[np.float64]
    label: Int32
    before: Ragged
    held: Int64

    def __len__(self) -> int:
        return len(self.kind)


class MeetingPort(NamedTuple):
    """Where a row that sends or receives leads: message of number 0, class of the transfer, worker at the other end."""

    message: int
    way: int
    to: int


@dataclass(frozen=True)
class PortedPiece:
    """A piece with a port for each of its rows that sends or receives, in order.

    Attributes:
        piece: row in the list of pieces.
        ports: of its rows.
    """

    piece: int
    ports: tuple[MeetingPort, ...]


@dataclass(frozen=True)
class Ways:
    """What classes of transfers use.

    Attributes:
        uses: for each class resources and the part of each that it fills alone.
        own: class of the moves of each worker.
        resources: how many there are.
        beside: for a class those that go beside it, if any do.
    """

    uses: Sequence[Sequence[tuple[int, float]]]
    own: Sequence[int]
    resources: int
    beside: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class MeetingTurns:
    """What each worker plays, in order.

    Attributes:
        pieces, casts: distinct pieces, and those with their ports.
        cast, number, release: for each worker the rows of ``casts`` that it plays, what is added to their messages, and
            the tick before which their work does not begin.
        ways: what classes of transfers use.
        host: for each worker the tick until which it counts as busy with something else when it is idle.
        streams, messages, labels: how many there are.
        lag: of each label the ticks from the begin of a move or a message in which it uses nothing; 0 if left out.
    """

    pieces: Sequence[MeetingPiece]
    casts: Sequence[PortedPiece]
    cast: Sequence[Int32]
    number: Sequence[Int32]
    release: Sequence[Int64]
    ways: Ways
    host: Int64
    streams: int
    messages: int
    labels: int
    lag: Sequence[int] = ()

    def lag_of(self, label: int) -> int:
        """See ``lag``; label -1 has none."""
        return self.lag[label] if 0 <= label < len(self.lag) else 0


@dataclass(frozen=True)
class Met:
    """How it went, ticks.

    Attributes:
        end: when the last row ended.
        work: of each worker, with work under way.
        talk: with moves, sends or receives under way, but no work.
        hosted: with neither, while busy with something else.
        spent: from begin to end of the rows of each label, shape ``(workers, labels)``.
    """

    end: int
    work: Int64
    talk: Int64
    hosted: Int64
    spent: Int64


def play(turns: MeetingTurns, native: bool | None = None) -> Met:
    """Play all turns from tick 0.

    Args:
        turns: what is played.
        native: whether in C++; None where that is there.

    Raises:
        Stuck: turns wait for each other in a circle.
    """
    if native is None:
        native = _native is not None
    return _played_natively(turns) if native else _MeetingPlayer(turns).play()


def chained(
    step: tuple[Any, ...], rows: Int32, called: NDArray[np.int8], hosted: bool = False
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Operators one after another on one stream, with collectives on another that slow down what is beside them.

    Args:
        step: of each operator ticks, ticks of the gap after it, ticks for which the host issues it, and whether it is
            skipped; lists (ends and values) of the collectives that are called after it, before it, and that it needs;
            ticks of each collective; ticks for which the host issues one; how many times longer an operator takes
            beside one.
        rows: operators, in order.
        called: which collectives are called.
        hosted: whether nothing begins before its host has issued it, in order from tick 0.

    Returns:
        when each of ``rows`` begins, is done and has been issued; when each collective begins and ends, -1 for one that
        is not called.
    """
    if _native is not None:
        found: tuple[Int64, Int64, Int64, Int64, Int64] = _native.chained(step, rows, called, hosted)[:5]
        return found
    ticks, gaps, issue, skips, *lists, calls, call_issue, slowdown = step
    after, early, needs = (
        [values[a:b].tolist() for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        for ends, values in zip(lists[::2], lists[1::2], strict=True)
    )
    begin, done, issued = (np.zeros(len(rows), np.int64) for _ in range(3))
    call_begin, call_end = np.full(len(calls), -1, np.int64), np.full(len(calls), -1, np.int64)
    host = free = talks = talked = 0  # a collective is under way from ``talks`` to ``talked``

    def call(number: int) -> None:
        nonlocal host, talks, talked
        if called[number]:
            host += call_issue if hosted else 0
            at = max(free, talked, host)
            talks = at if at > talked else talks
            talked = at + int(calls[number])
            call_begin[number], call_end[number] = at, talked

    for place, row in enumerate(rows.tolist()):
        for number in early[row]:
            call(number)
        ready = max([free, *(int(call_end[number]) for number in needs[row])])
        if skips[row]:
            free = ready
            begin[place] = done[place] = free
        else:
            host += int(issue[row]) if hosted else 0
            ready = max(ready, host)
            length, start = int(ticks[row]), max(talks, ready)
            if slowdown > 1 and talked > start and ready + length > start:
                rest, beside = float(length - (start - ready)), (talked - start) / slowdown
                stretched = round(rest * slowdown) if rest <= beside else talked - start + round(rest - beside)
                length = start - ready + stretched
            begin[place], done[place] = ready, ready + length
            free = ready + length + int(gaps[row])
        issued[place] = host
        for number in after[row]:
            call(number)
    return begin, done, issued, call_begin, call_end


def _played_natively(turns: MeetingTurns) -> Met:
    def ends(lengths: Any) -> Int64:
        return np.cumsum([0, *lengths], dtype=np.int64)

    def joined(columns: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *columns]).astype(dtype)

    pieces, casts, ways = turns.pieces, turns.casts, turns.ways
    before = Ragged.stacked([Ragged.empty(0, np.int32), *(piece.before for piece in pieces)])
    ports = [port for cast in casts for port in cast.ports]
    uses = [use for own in ways.uses for use in own]
    beside = [ways.beside.get(way, ()) for way in range(len(ways.uses))]
    lag = np.array([turns.lag_of(label) for label in range(turns.labels)], np.int64)
    end, work, talk, hosted, spent, ended = _native.meeting(
        (
            ends(map(len, pieces)), joined([p.kind for p in pieces], np.int8),
            joined([p.stream for p in pieces], np.int8), joined([p.ticks for p in pieces], np.int64),
            joined([p.stretch for p in pieces], np.float64), joined([p.label for p in pieces], np.int32),
            before.offsets, before.values.astype(np.int32), joined([p.held for p in pieces], np.int64),
        ),
        (
            ends(map(len, turns.cast)), joined(turns.cast, np.int32), joined(turns.number, np.int32),
            joined(turns.release, np.int64), np.array([c.piece for c in casts], np.int32),
            ends(len(c.ports) for c in casts), np.array([p.message for p in ports], np.int64),
            np.array([p.way for p in ports], np.int32), np.array([p.to for p in ports], np.int32),
            lag,
        ),
        (
            ends(map(len, ways.uses)), np.array([r for r, _ in uses], np.int32),
            np.array([u for _, u in uses], np.float64), np.array(ways.own, np.int32),
            ends(map(len, beside)), np.array([way for own in beside for way in own], np.int32),
            ways.resources,
            turns.host.astype(np.int64),
        ),
        turns.streams, turns.messages, turns.labels,
    )  # fmt: skip
    if not ended:
        raise Stuck(_STUCK)
    return Met(end, work, talk, hosted, spent.reshape(len(turns.cast), turns.labels))


_STUCK = "turns wait for each other in a circle"


class _Worker:
    """What a worker is doing.

    Attributes:
        row, turn, begun: of its work, None without any.
        held: row that is done but for its host, None without any.
        left, rate, last: ticks of it that are left alone, how fast they go, and since when.
        moves, talks: moves under way, and transfers of all kinds.
    """

    def __init__(self, streams: int) -> None:
        self.row: int | None = None
        self.held: int | None = None
        self.turn = self.begun = self.last = self.seen = self.version = self.moves = self.talks = 0
        self.left, self.rate = 0.0, 1.0
        self.woken = [-1] * streams


@dataclass
class _MeetingTransfer:
    """A move or a message under way, or a part of it; times as of :class:`_Worker`.

    Attributes:
        parts: those under way of what it is a part of, itself one of them.
    """

    worker: int
    to: int
    turn: int
    row: int
    way: int
    message: int | None
    begun: int
    last: int
    left: float
    parts: set[int]
    rate: float = 0.0
    version: int = 0


class _MeetingPlayer:
    """The same in Python, for machines without a compiler and as what the other is tested against."""

    def __init__(self, turns: MeetingTurns) -> None:
        self.turns = turns
        count = len(turns.cast)
        self.workers = [_Worker(turns.streams) for _ in range(count)]
        self.queue: list[list[list[tuple[int, int]]]] = []  # of each worker and stream: turns and rows, in order
        for cast in turns.cast:
            own: list[list[tuple[int, int]]] = [[] for _ in range(turns.streams)]
            for turn, number in enumerate(cast.tolist()):
                streams = turns.pieces[turns.casts[number].piece].stream.tolist()
                for row, stream in enumerate(streams):
                    if stream >= 0:
                        own[stream].append((turn, row))
            self.queue.append(own)
        self.at = [[0] * turns.streams for _ in range(count)]
        self.busy = [[False] * turns.streams for _ in range(count)]
        self.done: set[tuple[int, int, int]] = set()
        self.arrived: set[int] = set()
        self.load = [dict[int, float]() for _ in range(turns.ways.resources)]
        self.events: list[tuple[int, int, int, int]] = []
        self.transfers: dict[int, _MeetingTransfer] = {}
        self.now = self.made = 0
        self.work, self.talk, self.hosted = ([0] * count for _ in range(3))
        self.spent = [[0] * turns.labels for _ in range(count)]

    def play(self) -> Met:
        """From event to event."""
        for worker in range(len(self.workers)):
            self._begin(worker)
        while self.events:
            now, what, which, version = heappop(self.events)
            if what == 0 and which in self.transfers and self.transfers[which].version == version:
                self.now = now
                self._delivered(which)
            elif what in (1, 3) and self.workers[which].version == version:
                self.now = now
                self._worked(which)
            elif what == 2:
                self.now = now
                self._begin(which)
            elif what == 4:
                self.now = now
                self._enter(which)
        for worker, own in enumerate(self.queue):
            self._account(worker)
            if any(at < len(rows) for at, rows in zip(self.at[worker], own, strict=True)):
                raise Stuck(_STUCK)
        work, talk, hosted = (np.array(column, np.int64) for column in (self.work, self.talk, self.hosted))
        spent = np.array(self.spent, np.int64).reshape(len(self.workers), self.turns.labels)
        return Met(self.now, work, talk, hosted, spent)

    def _cast(self, worker: int, turn: int) -> PortedPiece:
        return self.turns.casts[int(self.turns.cast[worker][turn])]

    def _port(self, worker: int, turn: int, row: int) -> tuple[MeetingPort, int]:
        """The port of a row, and its message."""
        of = self._cast(worker, turn)
        port = of.ports[int(np.count_nonzero(self.turns.pieces[of.piece].kind[:row] >= Row.SENDS))]
        return port, port.message + int(self.turns.number[worker][turn])

    def _ready(self, worker: int, turn: int, row: int) -> bool:
        piece = self.turns.pieces[self._cast(worker, turn).piece]
        return all(
            self._port(worker, turn, other)[1] in self.arrived
            if piece.kind[other] == Row.RECEIVES
            else (worker, turn, other) in self.done
            for other in piece.before[row].tolist()
        )

    def _begin(self, worker: int) -> None:
        """Begin all that can begin on a worker."""
        me, again = self.workers[worker], True
        while again:
            again = False
            for stream, rows in enumerate(self.queue[worker]):
                at = self.at[worker][stream]
                if self.busy[worker][stream] or at == len(rows) or not self._ready(worker, *rows[at]):
                    continue
                turn, row = rows[at]
                piece = self.turns.pieces[self._cast(worker, turn).piece]
                works = piece.kind[row] == Row.WORK
                held = 0 if works else int(piece.held[row])
                issued = int(self.turns.release[worker][turn]) + held
                if (works or held) and issued > self.now:
                    if me.woken[stream] < issued:
                        me.woken[stream] = issued
                        heappush(self.events, (issued, 2, worker, 0))
                    continue
                self.busy[worker][stream] = again = True
                self.at[worker][stream] += 1
                self._start(worker, turn, row)

    def _start(self, worker: int, turn: int, row: int) -> None:
        me, piece = self.workers[worker], self.turns.pieces[self._cast(worker, turn).piece]
        ticks = float(piece.ticks[row])
        if piece.kind[row] == Row.WORK:
            self._account(worker)
            me.row, me.turn, me.begun, me.last, me.left = row, turn, self.now, self.now, ticks
            me.rate = 1 / float(piece.stretch[row]) if me.moves else 1.0
            self._expect(worker)
            return
        way, to, message = self.turns.ways.own[worker], worker, None
        if piece.kind[row] == Row.SENDS:
            port, message = self._port(worker, turn, row)
            way, to = port.way, port.to
        if to == worker:
            self._moving(worker, 1)
        for end in {worker, to}:
            self._talking(end, 1)
        parts: set[int] = set()
        for part in (way, *self.turns.ways.beside.get(way, ())):
            which, self.made = self.made, self.made + 1
            parts.add(which)
            self.transfers[which] = _MeetingTransfer(
                worker, to, turn, row, part, message, self.now, self.now, ticks, parts
            )
            lag = min(self.turns.lag_of(int(piece.label[row])), int(piece.ticks[row]))
            if lag > 0 and self.turns.ways.uses[part]:
                heappush(self.events, (self.now + lag, 4, which, 0))
            else:
                self._enter(which)

    def _enter(self, which: int) -> None:
        """A transfer uses its resources from now on."""
        transfer = self.transfers[which]
        transfer.left -= self.now - transfer.begun
        transfer.last = self.now
        for resource, part in self.turns.ways.uses[transfer.way]:
            self.load[resource][which] = part
        if self.turns.ways.uses[transfer.way]:
            self._share(transfer.way)
        else:
            self._rated(which, 1.0)

    def _share(self, way: int) -> None:
        """Rates of all that use what a class uses, and of what shares something with them."""
        uses = self.turns.ways.uses
        touched: dict[int, None] = {}
        full: dict[int, None] = {}
        known: set[int] = set()

        def found(resource: int, other: bool) -> None:
            if resource in known:
                return
            known.add(resource)
            if sum(self.load[resource].values()) > 1:
                full[resource] = None
            elif other:
                return
            touched.update(dict.fromkeys(self.load[resource]))

        for resource, _ in uses[way]:
            found(resource, False)
        at = 0
        while at < len(touched):
            for resource, _ in uses[self.transfers[list(touched)[at]].way]:
                if sum(self.load[resource].values()) > 1:
                    found(resource, True)
            at += 1
        rates: dict[int, float] = {}
        while True:
            least, which = 1.0, -1
            for resource in full:
                room, wanted = 1.0, 0.0
                for one, part in self.load[resource].items():
                    if one in rates:
                        room -= part * rates[one]
                    else:
                        wanted += part
                if wanted > 0 and room / wanted < least:
                    least, which = room / wanted, resource
            if which < 0:
                break
            for one in self.load[which]:
                rates.setdefault(one, max(least, SLOWEST))
        for one in touched:
            self._rated(one, rates.get(one, 1.0))

    def _rated(self, which: int, rate: float) -> None:
        transfer = self.transfers[which]
        if rate != transfer.rate:
            transfer.left -= (self.now - transfer.last) * transfer.rate
            transfer.last, transfer.rate = self.now, rate
            transfer.version += 1
            heappush(self.events, (self.now + _ticks(transfer.left, rate), 0, which, transfer.version))

    def _talking(self, worker: int, change: int) -> None:
        self._account(worker)
        self.workers[worker].talks += change

    def _moving(self, worker: int, change: int) -> None:
        me = self.workers[worker]
        before, me.moves = me.moves > 0, me.moves + change
        if before == (me.moves > 0) or me.row is None:
            return
        me.left -= (self.now - me.last) * me.rate
        me.last = self.now
        stretch = float(self.turns.pieces[self._cast(worker, me.turn).piece].stretch[me.row])
        me.rate = 1 / stretch if me.moves else 1.0
        self._expect(worker)

    def _expect(self, worker: int) -> None:
        me = self.workers[worker]
        me.version += 1
        heappush(self.events, (self.now + _ticks(me.left, me.rate), 1, worker, me.version))

    def _worked(self, worker: int) -> None:
        self._account(worker)
        me = self.workers[worker]
        row = me.held if me.row is None else me.row
        assert row is not None
        me.row = me.held = None
        held = int(self.turns.pieces[self._cast(worker, me.turn).piece].held[row])
        until = int(self.turns.release[worker][me.turn]) + held
        if until > self.now:  # its host is not that far
            me.held = row
            me.version += 1
            heappush(self.events, (until, 3, worker, me.version))
            return
        self._finished(worker, me.turn, row, me.begun)
        self._begin(worker)

    def _delivered(self, which: int) -> None:
        transfer = self.transfers.pop(which)
        for resource, _ in self.turns.ways.uses[transfer.way]:
            del self.load[resource][which]
        self._share(transfer.way)
        transfer.parts.remove(which)
        if transfer.parts:  # others beside it are under way
            return
        ends = dict.fromkeys([transfer.worker, transfer.to])
        for end in ends:
            self._talking(end, -1)
        if transfer.to == transfer.worker:
            self._moving(transfer.worker, -1)
        if transfer.message is not None:
            self.arrived.add(transfer.message)
        self._finished(transfer.worker, transfer.turn, transfer.row, transfer.begun)
        for end in ends:
            self._begin(end)

    def _finished(self, worker: int, turn: int, row: int, begun: int) -> None:
        piece = self.turns.pieces[self._cast(worker, turn).piece]
        self.busy[worker][int(piece.stream[row])] = False
        self.done.add((worker, turn, row))
        if piece.label[row] >= 0:
            self.spent[worker][int(piece.label[row])] += self.now - begun

    def _account(self, worker: int) -> None:
        """Add up the time in which a worker did the same."""
        me = self.workers[worker]
        span = self.now - me.seen
        if me.row is not None:
            self.work[worker] += span
        elif me.talks:
            self.talk[worker] += span
        else:
            self.hosted[worker] += min(max(int(self.turns.host[worker]) - me.seen, 0), span)
        me.seen = self.now


def _ticks(left: float, rate: float) -> int:
    """Whole ticks until so much is done."""
    return 0 if left <= 0 else math.ceil(left / rate - 1e-6)
