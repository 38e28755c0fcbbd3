"""Simulation with contention: fragments of programs on a few workers, whose transfers share resources by rates.

Like :mod:`triosim.engine.contention_free`, but for transfers that contend.  A *fragment* is a few rows: compute,
collectives that a worker takes part in, sends and receives.  Each stream of a worker is in order; a row begins when its
stream is free and the rows that it waits for have ended.  Compute does not begin before its action is released.

* Compute does not end before its host has issued it, at the earliest ``host_delay`` ticks after its action is released;
  collectives and sends do not begin before that.
* A row of compute stands for many kernels: in some of its ticks collectives within it are under way and nothing is
  computed, in others nothing at all is done.  Those are told apart from what is computed as it goes on.
* Compute takes ``slowdown`` times as long while a collective of its worker is under way, or a send to itself.
* Where collectives within compute move bytes, and share links with the other collectives of the worker, those take
  ``collective_slowdown`` times as long beside it, and it ``slowdown`` times while those move bytes.
* Collectives and sends belong to a *transfer class* that uses parts of *resources*.  Where those under way use more
  than all of one, max-min sharing sets their rates: all go equally fast until a resource is full; those on it stay as
  fast as they are, and the others share what is left.  So two that each fill a link get half of it.
* At first a transfer may only wait and use nothing: the latency of a collective or a send.
* A transfer whose parts use different resources has several *concurrent* classes: all begin at once and last equally
  long alone, and it has arrived when the last of them has.

Times are whole ticks: a transfer that contends with nothing takes exactly as long as it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

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
Int32 = NDArray[np.int32]


SLOWEST = 1e-6
"""Rate of transfers where rounding leaves nothing for them."""


class RowKind(IntEnum):
    """Kinds of rows."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECEIVE = 3


@dataclass(frozen=True)
class ContendedFragment:
    """Rows that are run together, ``n`` of them.

    Attributes:
        kind: :class:`RowKind` codes, int8.
        stream: in-order stream of the worker, 0 for compute; -1 for receives, int8.
        ticks: how long each row takes alone, int64.
        slowdown: how many times longer compute takes beside a collective, at least 1, float64.
        collective_slowdown: how many times longer collectives take beside compute that moves something itself, 1 for
            one that does not, float64.
        label: under which the ticks of a row are added up, -1 for none, int32.
        before: rows of the fragment that must have ended first, all of them earlier, int32.
        host_delay: ticks after the release of the action before which compute does not end, and collectives and sends
            do not begin; 0 where they do not wait for the host, int64.
        gap, exposed: of the ticks of compute those in which nothing is done, and those in which collectives within it
            are under way and nothing is computed, int64.
        waiting_exposed: part of the time in which compute waits for its host in which the latter are.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int8]
    ticks: Int64
    slowdown: NDArray[np.float64]
    collective_slowdown: NDArray[np.float64]
    label: Int32
    before: Ragged
    host_delay: Int64
    gap: Int64
    exposed: Int64
    waiting_exposed: float = 0.0

    def __len__(self) -> int:
        return len(self.kind)


class RoutedPort(NamedTuple):
    """Message of a row that sends or receives (at offset 0), its transfer class, and the worker at the other end."""

    message: int
    transfer_class: int
    peer: int


@dataclass(frozen=True)
class RoutedFragment:
    """A fragment with a port for each of its rows that sends or receives, in order.

    Attributes:
        fragment: row in the list of fragments.
        ports: of its rows.
    """

    fragment: int
    ports: tuple[RoutedPort, ...]


@dataclass(frozen=True)
class TransferClasses:
    """Classes of transfers and the resources that each uses.

    Attributes:
        uses: for each class its resources and the part of each that it fills alone.
        collective_class: class of the collectives of each worker.
        resources: how many there are.
        concurrent: for a class those that run at the same time as parts of one transfer, if any do.
    """

    uses: Sequence[Sequence[tuple[int, float]]]
    collective_class: Sequence[int]
    resources: int
    concurrent: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ContendedSchedule:
    """The actions of each worker, in order.

    Attributes:
        fragments, ported: distinct fragments, and those with their ports.
        order, offset, release: a row for each worker: the rows of ``ported`` that it runs, what is added to their
            messages (both int32), and the tick before which their compute does not begin (int64).
        transfer_classes: resources that each class of transfers uses.
        host: for each worker the tick until which it counts as busy with something else when it is idle.
        streams, messages, labels: how many there are.
        lag: of each label the ticks from the begin of a collective or a message in which it uses nothing; 0 if left
            out.
    """

    fragments: Sequence[ContendedFragment]
    ported: Sequence[RoutedFragment]
    order: Ragged
    offset: Ragged
    release: Ragged
    transfer_classes: TransferClasses
    host: Int64
    streams: int
    messages: int
    labels: int
    lag: Sequence[int] = ()

    def lag_of(self, label: int) -> int:
        """See ``lag``; label -1 has none."""
        return self.lag[label] if 0 <= label < len(self.lag) else 0


@dataclass(frozen=True)
class ContendedRun:
    """Times of a run, in ticks.

    Attributes:
        end: when the last row ended.
        work: of each worker, in which it computes.
        communication: with collectives, sends or receives under way, those within compute too, but nothing computed.
        hosted: with neither, while busy with something else.
        label_ticks: from begin to end of the rows of each label, shape ``(workers, labels)``.
        left_out: actions that were not run one by one, as they repeat others exactly; only C++ leaves out any.
    """

    end: int
    work: Int64
    communication: Int64
    hosted: Int64
    label_ticks: Int64
    left_out: int = 0


def contended_run(schedule: ContendedSchedule, native: bool | None = None) -> ContendedRun:
    """Run all actions from tick 0.

    Args:
        schedule: what is run.
        native: whether in C++; None where that is there.

    Raises:
        Stuck: actions wait for each other in a circle.
    """
    if native is None:
        native = _native is not None
    return _run_natively(schedule) if native else _ContendedSimulator(schedule).run()


def _run_natively(schedule: ContendedSchedule) -> ContendedRun:
    fragments, ported, transfer_classes = schedule.fragments, schedule.ported, schedule.transfer_classes
    before = Ragged.stacked([Ragged.empty(0, np.int32), *(fragment.before for fragment in fragments)])
    ports = [port for own in ported for port in own.ports]
    uses = [use for own in transfer_classes.uses for use in own]
    concurrent = [
        transfer_classes.concurrent.get(transfer_class, ()) for transfer_class in range(len(transfer_classes.uses))
    ]
    lag = np.array([schedule.lag_of(label) for label in range(schedule.labels)], np.int64)
    end, work, communication, hosted, label_ticks, ended, left_out = _native.meeting(
        (
            row_ends(map(len, fragments)), joined([p.kind for p in fragments], np.int8),
            joined([p.stream for p in fragments], np.int8), joined([p.ticks for p in fragments], np.int64),
            joined([p.slowdown for p in fragments], np.float64), joined([p.label for p in fragments], np.int32),
            before.offsets, before.values.astype(np.int32), joined([p.host_delay for p in fragments], np.int64),
            joined([p.collective_slowdown for p in fragments], np.float64),
            joined([p.gap for p in fragments], np.int64), joined([p.exposed for p in fragments], np.int64),
            np.array([p.waiting_exposed for p in fragments], np.float64),
        ),
        (
            schedule.order.offsets, schedule.order.values, schedule.offset.values, schedule.release.values,
            np.array([c.fragment for c in ported], np.int32),
            row_ends(len(c.ports) for c in ported), np.array([p.message for p in ports], np.int64),
            np.array([p.transfer_class for p in ports], np.int32), np.array([p.peer for p in ports], np.int32),
            lag,
        ),
        (
            row_ends(map(len, transfer_classes.uses)), np.array([r for r, _ in uses], np.int32),
            np.array([u for _, u in uses], np.float64), np.array(transfer_classes.collective_class, np.int32),
            row_ends(map(len, concurrent)), np.array([other for own in concurrent for other in own], np.int32),
            transfer_classes.resources,
            schedule.host.astype(np.int64),
        ),
        schedule.streams, schedule.messages, schedule.labels,
    )  # fmt: skip
    if not ended:
        raise Stuck(CIRCLE)
    label_ticks = label_ticks.reshape(len(schedule.order), schedule.labels)
    return ContendedRun(end, work, communication, hosted, label_ticks, left_out)


class _WorkerState:
    """State of a worker.

    Attributes:
        row, action, begun: of its compute, None without any.
        waiting_row: row that is done but for its host, None without any.
        left, rate, last: ticks of it that are left alone, how fast they go, and since when; ``last`` also when its wait
            for the host began.
        exposed, gap: its ticks without compute that have been added up.
        beside: how many times longer collectives take beside it, 1 without any.
        moves, uses, talks: collectives under way, those of them that use links by now, and transfers of all kinds.
    """

    def __init__(self, streams: int) -> None:
        self.row: int | None = None
        self.waiting_row: int | None = None
        self.action = self.begun = self.last = self.seen = self.version = self.moves = self.talks = 0
        self.uses = 0
        self.exposed = self.gap = 0
        self.left, self.rate = 0.0, 1.0
        self.beside = 1.0
        self.woken = [-1] * streams


@dataclass
class _ActiveTransfer:
    """A collective or a message under way, or a part of it; times as of :class:`_WorkerState`.

    Attributes:
        parts: those under way of what it is a part of, itself one of them.
        share: how fast it goes but for compute beside it.
    """

    worker: int
    peer: int
    action: int
    row: int
    transfer_class: int
    message: int | None
    begun: int
    last: int
    left: float
    parts: set[int]
    rate: float = 0.0
    version: int = 0
    share: float = 0.0


class _ContendedSimulator:
    """The same in Python, for machines without a compiler and as what the other is tested against."""

    def __init__(self, schedule: ContendedSchedule) -> None:
        self.schedule = schedule
        count = len(schedule.order)
        self.workers = [_WorkerState(schedule.streams) for _ in range(count)]
        self.queue: list[list[list[tuple[int, int]]]] = []  # of each worker and stream: actions and rows, in order
        for order in schedule.order:
            own: list[list[tuple[int, int]]] = [[] for _ in range(schedule.streams)]
            for action, number in enumerate(order.tolist()):
                streams = schedule.fragments[schedule.ported[number].fragment].stream.tolist()
                for row, stream in enumerate(streams):
                    if stream >= 0:
                        own[stream].append((action, row))
            self.queue.append(own)
        self.at = [[0] * schedule.streams for _ in range(count)]
        self.busy = [[False] * schedule.streams for _ in range(count)]
        self.done: set[tuple[int, int, int]] = set()
        self.arrived: set[int] = set()
        self.load = [dict[int, float]() for _ in range(schedule.transfer_classes.resources)]
        self.events: list[tuple[int, int, int, int]] = []
        self.transfers: dict[int, _ActiveTransfer] = {}
        self.now = self.made = 0
        self.work, self.communication, self.hosted = ([0] * count for _ in range(3))
        self.label_ticks = [[0] * schedule.labels for _ in range(count)]

    def run(self) -> ContendedRun:
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
                raise Stuck(CIRCLE)
        work, communication, hosted = (
            np.array(column, np.int64) for column in (self.work, self.communication, self.hosted)
        )
        label_ticks = np.array(self.label_ticks, np.int64).reshape(len(self.workers), self.schedule.labels)
        return ContendedRun(self.now, work, communication, hosted, label_ticks)

    def _ported(self, worker: int, action: int) -> RoutedFragment:
        return self.schedule.ported[int(self.schedule.order[worker][action])]

    def _port(self, worker: int, action: int, row: int) -> tuple[RoutedPort, int]:
        """The port of a row, and its message."""
        of = self._ported(worker, action)
        port = of.ports[int(np.count_nonzero(self.schedule.fragments[of.fragment].kind[:row] >= RowKind.SEND))]
        return port, port.message + int(self.schedule.offset[worker][action])

    def _ready(self, worker: int, action: int, row: int) -> bool:
        fragment = self.schedule.fragments[self._ported(worker, action).fragment]
        return all(
            self._port(worker, action, other)[1] in self.arrived
            if fragment.kind[other] == RowKind.RECEIVE
            else (worker, action, other) in self.done
            for other in fragment.before[row].tolist()
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
                action, row = rows[at]
                fragment = self.schedule.fragments[self._ported(worker, action).fragment]
                works = fragment.kind[row] == RowKind.COMPUTE
                host_delay = 0 if works else int(fragment.host_delay[row])
                issued = int(self.schedule.release[worker][action]) + host_delay
                if (works or host_delay) and issued > self.now:
                    if me.woken[stream] < issued:
                        me.woken[stream] = issued
                        heappush(self.events, (issued, 2, worker, 0))
                    continue
                self.busy[worker][stream] = again = True
                self.at[worker][stream] += 1
                self._start(worker, action, row)
        self._beside(worker)

    def _beside(self, worker: int) -> None:
        """Let collectives go as fast as what the worker computes leaves them."""
        me, beside = self.workers[worker], 1.0
        if me.row is not None:
            fragment = self.schedule.fragments[self._ported(worker, me.action).fragment]
            beside = float(fragment.collective_slowdown[me.row])
        if beside == me.beside:
            return
        me.beside = beside
        for which, transfer in self.transfers.items():
            if transfer.worker == worker and transfer.share and self._collective(transfer):
                self._rated(which, transfer.share)

    def _collective(self, transfer: _ActiveTransfer) -> bool:
        fragment = self.schedule.fragments[self._ported(transfer.worker, transfer.action).fragment]
        return bool(fragment.kind[transfer.row] == RowKind.COLLECTIVE)

    def _start(self, worker: int, action: int, row: int) -> None:
        me, fragment = self.workers[worker], self.schedule.fragments[self._ported(worker, action).fragment]
        ticks = float(fragment.ticks[row])
        if fragment.kind[row] == RowKind.COMPUTE:
            self._account(worker)
            me.row, me.action, me.begun, me.last, me.left = row, action, self.now, self.now, ticks
            me.exposed = me.gap = 0
            me.rate = self._pace(worker)
            self._expect(worker)
            return
        transfer_class, peer, message = self.schedule.transfer_classes.collective_class[worker], worker, None
        if fragment.kind[row] == RowKind.SEND:
            port, message = self._port(worker, action, row)
            transfer_class, peer = port.transfer_class, port.peer
        if peer == worker:
            self._moving(worker, 1)
        for end in {worker, peer}:
            self._talking(end, 1)
        parts: set[int] = set()
        for part in (transfer_class, *self.schedule.transfer_classes.concurrent.get(transfer_class, ())):
            which, self.made = self.made, self.made + 1
            parts.add(which)
            self.transfers[which] = _ActiveTransfer(
                worker, peer, action, row, part, message, self.now, self.now, ticks, parts
            )
            lag = min(self.schedule.lag_of(int(fragment.label[row])), int(fragment.ticks[row]))
            shares = self.schedule.transfer_classes.uses[part] or fragment.kind[row] == RowKind.COLLECTIVE
            if lag > 0 and shares:
                heappush(self.events, (self.now + lag, 4, which, 0))
            else:
                self._enter(which)

    def _enter(self, which: int) -> None:
        """A transfer uses its resources from now on."""
        transfer = self.transfers[which]
        transfer.left -= self.now - transfer.begun
        transfer.last = self.now
        if self._collective(transfer):
            self.workers[transfer.worker].uses += 1
            self._paced(transfer.worker)
        for resource, part in self.schedule.transfer_classes.uses[transfer.transfer_class]:
            self.load[resource][which] = part
        if self.schedule.transfer_classes.uses[transfer.transfer_class]:
            self._share(transfer.transfer_class)
        else:
            self._rated(which, 1.0)

    def _share(self, transfer_class: int) -> None:
        """Rates of all that use what a class uses, and of what shares something with them."""
        uses = self.schedule.transfer_classes.uses
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

        for resource, _ in uses[transfer_class]:
            found(resource, False)
        at = 0
        while at < len(touched):
            for resource, _ in uses[self.transfers[list(touched)[at]].transfer_class]:
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

    def _rated(self, which: int, share: float) -> None:
        transfer = self.transfers[which]
        transfer.share = share
        rate = share / self.workers[transfer.worker].beside if self._collective(transfer) else share
        if rate != transfer.rate:
            transfer.left -= (self.now - transfer.last) * transfer.rate
            transfer.last, transfer.rate = self.now, rate
            transfer.version += 1
            heappush(self.events, (self.now + _ticks(transfer.left, rate), 0, which, transfer.version))

    def _talking(self, worker: int, change: int) -> None:
        self._account(worker)
        self.workers[worker].talks += change

    def _moving(self, worker: int, change: int) -> None:
        self.workers[worker].moves += change
        self._paced(worker)

    def _pace(self, worker: int) -> float:
        """How fast a worker computes beside what it moves."""
        me = self.workers[worker]
        fragment, row = self.schedule.fragments[self._ported(worker, me.action).fragment], me.row
        slows = me.uses if fragment.collective_slowdown[row] > 1 else me.moves
        return 1 / float(fragment.slowdown[row]) if slows else 1.0

    def _paced(self, worker: int) -> None:
        """Let what a worker computes go on at another pace."""
        me = self.workers[worker]
        if me.row is None or (pace := self._pace(worker)) == me.rate:
            return
        self._account(worker)
        me.left -= (self.now - me.last) * me.rate
        me.last, me.rate = self.now, pace
        self._expect(worker)

    def _expect(self, worker: int) -> None:
        me = self.workers[worker]
        me.version += 1
        heappush(self.events, (self.now + _ticks(me.left, me.rate), 1, worker, me.version))

    def _worked(self, worker: int) -> None:
        self._account(worker)
        me = self.workers[worker]
        row = me.waiting_row if me.row is None else me.row
        assert row is not None
        me.row = me.waiting_row = None
        host_delay = int(self.schedule.fragments[self._ported(worker, me.action).fragment].host_delay[row])
        until = int(self.schedule.release[worker][me.action]) + host_delay
        if until > self.now:  # its host is not that far
            me.waiting_row, me.last, me.exposed = row, self.now, 0
            me.version += 1
            heappush(self.events, (until, 3, worker, me.version))
            self._beside(worker)
            return
        self._finished(worker, me.action, row, me.begun)
        self._begin(worker)

    def _delivered(self, which: int) -> None:
        transfer = self.transfers.pop(which)
        for resource, _ in self.schedule.transfer_classes.uses[transfer.transfer_class]:
            del self.load[resource][which]
        self._share(transfer.transfer_class)
        if self._collective(transfer):
            self.workers[transfer.worker].uses -= 1
            self._paced(transfer.worker)
        transfer.parts.remove(which)
        if transfer.parts:  # others beside it are under way
            return
        ends = dict.fromkeys([transfer.worker, transfer.peer])
        for end in ends:
            self._talking(end, -1)
        if transfer.peer == transfer.worker:
            self._moving(transfer.worker, -1)
        if transfer.message is not None:
            self.arrived.add(transfer.message)
        self._finished(transfer.worker, transfer.action, transfer.row, transfer.begun)
        for end in ends:
            self._begin(end)

    def _finished(self, worker: int, action: int, row: int, begun: int) -> None:
        fragment = self.schedule.fragments[self._ported(worker, action).fragment]
        self.busy[worker][int(fragment.stream[row])] = False
        self.done.add((worker, action, row))
        if fragment.label[row] >= 0:
            self.label_ticks[worker][int(fragment.label[row])] += self.now - begun

    def _account(self, worker: int) -> None:
        """Add up the time in which a worker did the same."""
        me, host = self.workers[worker], int(self.schedule.host[worker])
        if me.seen < host < self.now:
            self._account_until(worker, host)
        self._account_until(worker, self.now)

    def _account_until(self, worker: int, now: int) -> None:
        me = self.workers[worker]
        span = nothing = now - me.seen  # of it ``nothing`` without compute and collectives within it
        if me.row is not None:
            fragment = self.schedule.fragments[self._ported(worker, me.action).fragment]
            ticks, spent = max(float(fragment.ticks[me.row]), 1.0), float(now - me.begun)
            done, more = spent, 0.0  # ticks of it, and those in which it waited for what it moves itself
            if fragment.collective_slowdown[me.row] > 1:
                done = float(fragment.ticks[me.row]) - (me.left - float(now - me.last) * me.rate)
                more = spent - done
            exposed = int(more + done / ticks * float(fragment.exposed[me.row]))
            gap = int(done / ticks * float(fragment.gap[me.row]))
            more, me.exposed = exposed - me.exposed, exposed
            nothing, me.gap = gap - me.gap, gap
            self.communication[worker] += more
            self.work[worker] += span - more - nothing
        elif me.waiting_row is not None:
            fragment = self.schedule.fragments[self._ported(worker, me.action).fragment]
            exposed = int(fragment.waiting_exposed * float(now - me.last))
            more, me.exposed = exposed - me.exposed, exposed
            nothing = span - more
            self.communication[worker] += more
        if me.talks:
            self.communication[worker] += nothing
        elif now <= int(self.schedule.host[worker]):
            self.hosted[worker] += nothing
        me.seen = now


def _ticks(left: float, rate: float) -> int:
    """Whole ticks until so much is done."""
    return 0 if left <= 0 else math.ceil(left / rate - 1e-6)
