"""A fleet of replicas under traffic: the loop that plays arrivals and steps in order of time.

At one instant all steps that end and all requests that arrive come before any replica starts a new step.  Times are
whole picoseconds, so equal input gives equal output to the last digit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.garbage import collection_paused
from triosim.core.units import MOST_SUM
from triosim.serving import native
from triosim.serving.kv_cache import KVCache
from triosim.serving.quantiles import Samples
from triosim.serving.replica import Replica, TooLong
from triosim.serving.requests import Request, RequestTable
from triosim.serving.router import RequestRouter

if TYPE_CHECKING:
    from triosim.serving.availability import Availability, FleetHistory
    from triosim.serving.disaggregation import KVCacheTransfer
    from triosim.serving.request_sketch import RequestSketch
    from triosim.serving.tiers import TierTraffic
    from triosim.serving.time_sharing import TimeSharing

Progress = Callable[[int, int], None]
"""Given the requests that are done and all of them."""

_NEVER = 2 * MOST_SUM
_ROWS = ("arrived", "scheduled", "first_token", "finished", "waited", "restarts", "displaced", "cached")
"""What is kept of a request that has ended."""
MOST_KEPT = 4096
"""Requests that have ended and are kept as objects."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Replicas that serve one model.

    Attributes:
        replicas: to which its requests come.
        router: chooses among them.
        hand_over: sends requests from these, which prefill, to those that decode; None where they do both.
    """

    replicas: Sequence[Replica]
    router: RequestRouter
    hand_over: KVCacheTransfer | None = None


@dataclass(frozen=True)
class FleetRun:
    """Times of every request, and work of every replica.  Times are picoseconds, int64, one row a request; counts
    are whole numbers of 32 bits or 64.

    Attributes:
        requests: what arrived.
        replica: number of the replica that served it to its end.
        arrived: when it came.
        scheduled: when it was first in a step.
        first_token, finished: when it had its first and its last token.
        waited: between its steps.
        restarts: how often it lost what it had computed.
        displaced: how often of these with its replica, which failed or whose devices went to another model.
        cached: prompt tokens that it found in the cache.
        gaps: picoseconds between tokens of a request, over all of them.
        steps: of each replica.
        busy: of each replica, the mean of its stages.
        computed: tokens of each replica, recomputed ones included.
        padding: tokens of each replica that filled captured graphs.
        peak_blocks, blocks: of each replica's cache.
        hit_tokens, looked_up_tokens: prompt tokens found in all caches, and looked for.
        transfer: between its first token and the arrival of its KV cache where it decodes, -1 where it stayed.
        sent_bytes: of KV caches.
        swapped_blocks: copied to the host and back.
        drafted, accepted, verifications: tokens that were drafted, of these accepted, and steps of single requests in
            which they were.
        adapter_loads: adapters that were copied to devices.
        reloads: requests whose blocks came from other tiers of KV cache.
        loaded_bytes, written_bytes: from these and to them.
        history: of replicas that come and go; None where all are there all the time.
        sharing: replicas that are on the devices of others.
        swaps: how often a model's weights were loaded in place of another's.
        swapping: picoseconds that took.
        joules: that the devices of each replica drew while they computed, by
            :data:`triosim.serving.request_energy.JOULES`; None where nobody counted them.
        sketch: what was added up of requests in place of ``scheduled``, ``first_token``, ``finished``, ``waited`` and
            ``restarts``, which have no row then; None where all have.
    """

    requests: RequestTable
    replica: NDArray[np.int64]
    arrived: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    first_token: NDArray[np.int64]
    finished: NDArray[np.int64]
    waited: NDArray[np.int64]
    restarts: NDArray[np.int64]
    displaced: NDArray[np.int64]
    cached: NDArray[np.int64]
    gaps: Samples
    steps: NDArray[np.int64]
    busy: NDArray[np.float64]
    computed: NDArray[np.int64]
    padding: NDArray[np.int64]
    peak_blocks: NDArray[np.int64]
    blocks: NDArray[np.int64]
    hit_tokens: int
    looked_up_tokens: int
    transfer: NDArray[np.int64]
    sent_bytes: int = 0
    swapped_blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    verifications: int = 0
    adapter_loads: int = 0
    reloads: int = 0
    loaded_bytes: int = 0
    written_bytes: int = 0
    history: FleetHistory | None = None
    sharing: int = 0
    swaps: int = 0
    swapping: int = 0
    joules: tuple[NDArray[np.float64] | None, ...] = ()
    sketch: RequestSketch | None = None


def play(
    table: RequestTable, replicas: Sequence[Replica], router: RequestRouter | None = None,
    progress: Progress | None = None, groups: Sequence[ReplicaGroup] = (), core: bool = True,
    tiers: TierTraffic | None = None, availability: Availability | None = None, sharing: TimeSharing | None = None,
    front: int = 0, sketch: RequestSketch | None = None,
) -> FleetRun:  # fmt: skip
    """Serve all requests.

    Args:
        table: what arrives when.
        replicas: fresh ones, at least one, each at the place of its number.
        router: chooses among them when a request arrives.
        progress: told now and then.
        groups: of these replicas, by the model of a request; all of them serve any request where there is none.
        core: whether what C++ can play is played there (:mod:`triosim.serving.native`), to the same result.
        tiers: behind the caches of replicas, if any have some.
        availability: which replicas serve when, if some come and go; not with tiers or hand-overs.
        sharing: which take turns on the same devices, if some do; with nothing of these.
        front: picoseconds between clients and engines, there and back: a client sees tokens, and asks again, so much
            later.
        sketch: told of requests as they end, where C++ plays; no rows of their times are kept then.

    Raises:
        InputError: a request can never run, a policy broke a rule, or the run is longer than can be counted.
    """
    if not replicas:
        raise InputError("the fleet holds no replica of the model: give at least one")
    if not groups:
        assert router is not None
        groups = (ReplicaGroup(replicas, router),)
    if front:
        follows = table.follows >= 0
        known = (
            replace(table, arrived=np.where(follows, table.arrived + front, table.arrived)) if follows.any() else table
        )
        found = _play(known, replicas, groups, progress, core, tiers, availability, sharing, front, sketch)
        for column in (found.first_token, found.finished):  # of millions: nobody else has them yet
            column += front
        return replace(found, requests=table)
    return _play(table, replicas, groups, progress, core, tiers, availability, sharing, 0, sketch)


def _play(
    table: RequestTable, replicas: Sequence[Replica], groups: Sequence[ReplicaGroup], progress: Progress | None,
    core: bool, tiers: TierTraffic | None, availability: Availability | None, sharing: TimeSharing | None, front: int,
    sketch: RequestSketch | None,
) -> FleetRun:  # fmt: skip
    """As engines see it."""
    alone = tiers is None and availability is None and sharing is None
    if core and alone and len(groups) == 1 and groups[0].hand_over is None:
        told = None if sketch is None else sketch.add
        played = native.play(table, replicas, groups[0].router, progress, _made(table, replicas[0].cache), told)
        if played is not None:
            none = np.broadcast_to(np.int64(0), table.arrived.shape)  # replicas that come and go are played here
            left_out = dict.fromkeys(_ROWS, np.zeros(0, np.int64)) if sketch is not None else {}
            rows = {**left_out, "arrived": table.arrived, **played.rows, "displaced": none}
            return _served(table, replicas, rows, sketch=sketch)
    return _Run(table, replicas, groups, progress, tiers, availability, sharing, front).served()


def _made(table: RequestTable, cache: KVCache) -> native.MadeRequest:
    """Makes the object of a request when it arrives."""
    keys: list[Sequence[int]] = []

    def request(row: int, number: int, now: int, prompt: int, output: int) -> Request:
        if cache.reuses and not keys:
            keys.extend(block_keys(table, cache.block_tokens))
        priority = 0 if table.priority is None else int(table.priority[row])
        return Request(
            row, number, now, prompt, output, int(table.session[row]), keys[row] if cache.reuses else (), priority
        )

    return request


class _Run:
    """One run: what is known of each request, and what happens when."""

    def __init__(
        self,
        table: RequestTable,
        replicas: Sequence[Replica],
        groups: Sequence[ReplicaGroup],
        progress: Progress | None,
        tiers: TierTraffic | None,
        availability: Availability | None,
        sharing: TimeSharing | None,
        front: int,
    ) -> None:
        self.front = front
        self.tiers, self.availability, self.sharing = tiers, availability, sharing
        self.table, self.replicas, self.groups, self.progress = table, replicas, groups, progress
        self.keys = {
            size: block_keys(table, size)
            for size in {replica.cache.block_tokens for replica in replicas if replica.cache.reuses}
        }
        self.prompts, self.outputs = table.prompt.tolist(), table.output.tolist()
        self.sessions, self.delays = table.session.tolist(), table.arrived.tolist()
        self.priorities = [0] * len(table) if table.priority is None else table.priority.tolist()
        self.group_of = None if table.model is None else table.model.tolist()
        self.followers: dict[int, list[int]] = {}
        for row in np.flatnonzero(table.follows >= 0).tolist():
            self.followers.setdefault(int(table.follows[row]), []).append(row)
        self.rows = {name: np.zeros(len(table), np.int64) for name in _ROWS}
        self.ended: list[Request] = []  # that are not among the rows yet
        self.chosen = np.zeros(len(table), np.int64)
        first = np.flatnonzero(table.follows < 0).tolist()
        self.arrivals = [(self.delays[row], row) for row in first]  # ascending, and so a heap
        self.ends: list[tuple[int, int]] = []
        self.number = 0
        self.touched: list[Replica] = []
        self.hand_overs = [group.hand_over for group in groups if group.hand_over is not None]
        self.over_of: dict[int, KVCacheTransfer] = {}
        self.takes_from: dict[int, KVCacheTransfer] = {}
        for replica in replicas:
            replica.on_finished = self._finished
        for over in self.hand_overs:
            over.delivered = self._delivered
            self.over_of |= {replica.number: over for replica in over.prefill}
            self.takes_from |= {replica.number: over for replica in over.decode}
        for number, over in self.over_of.items():
            replicas[number].on_finished = partial(self._prefilled, over, replicas[number])
        # Who decodes what others have computed can be foreseen until one of these ends a step.
        self.foreseen = not self.followers or len(replicas) == 1

    def served(self) -> FleetRun:
        """Play from the first arrival to the last end."""
        alone = not self.hand_overs and self.tiers is None and self.availability is None and self.sharing is None
        with collection_paused():
            if alone:
                self._plain()
            else:
                self._beside_others()
        for replica in self.replicas:
            if error := replica.stuck():
                raise error
        return self._table()

    def _plain(self) -> None:
        """Replicas alone: nothing happens but arrivals and ends of steps."""
        replicas, ends, arrivals = self.replicas, self.ends, self.arrivals
        watched = any(one.stages > 1 or one.on_step is not None or one.recorder is not None for one in replicas)
        apart = not self.followers and not watched
        while ends or arrivals:
            due = arrivals[0][0] if arrivals else _NEVER
            now = ends[0][0] if ends else _NEVER
            if due <= now:
                now = due
            touched = self.touched = []
            while ends and ends[0][0] == now:
                replica = replicas[heapq.heappop(ends)[1]]
                replica.end(now)
                if replica not in touched:
                    touched.append(replica)
            while arrivals and arrivals[0][0] == now:
                self._arrive(now, heapq.heappop(arrivals)[1])
            if apart:
                for replica in touched:
                    self._alone(replica, now, arrivals[0][0] if arrivals else MOST_SUM)
            else:
                self._start(touched, now, (arrivals[0][0] if arrivals else _NEVER) if self.foreseen else 0)

    def _alone(self, replica: Replica, now: int, horizon: int) -> None:
        """All steps of a replica that end before somebody arrives, of which others see nothing, and the next."""
        end = replica.start(now, horizon)
        while 0 <= end < horizon:
            replica.end(end)
            end = replica.start(end, horizon)
        if end > MOST_SUM:
            raise TooLong
        if end >= 0:
            heapq.heappush(self.ends, (end, replica.number))

    def _beside_others(self) -> None:
        """Replicas, what is sent between them and to them, and those that come and go."""
        replicas, ends, arrivals, comes_and_goes = self.replicas, self.ends, self.arrivals, self.availability
        if comes_and_goes is not None:
            comes_and_goes.begin(arrivals[0][0])
        while True:
            now = min(arrivals[0][0] if arrivals else _NEVER, ends[0][0] if ends else _NEVER)
            for over in self.hand_overs:
                later = over.next
                now = now if later is None else min(now, later)
            if self.tiers is not None and (later := self.tiers.next) is not None:
                now = min(now, later)
            if self.sharing is not None and (later := self.sharing.next) is not None:
                now = min(now, later)
            if comes_and_goes is not None and (now != _NEVER or comes_and_goes.holds):
                later = comes_and_goes.next
                now = now if later is None else min(now, later)
            if now == _NEVER:
                break
            self.touched = []
            while ends and ends[0][0] == now:
                replica = replicas[heapq.heappop(ends)[1]]
                replica.end(now)
                for one in replica.peers:
                    self.touch(one)
            for over in self.hand_overs:
                self._hand_over(over, now)
            if self.tiers is not None:
                self.tiers.at(now)
                for replica in self.tiers.touched:
                    self.touch(replica)
                self.tiers.touched.clear()
            if comes_and_goes is not None:
                self._come_and_go(comes_and_goes, now)
            while arrivals and arrivals[0][0] == now:
                self._arrive(now, heapq.heappop(arrivals)[1])
            if self.hand_overs:
                self._start_with_hand_overs(now)
            elif self.sharing is not None:
                self._start_in_turn(self.sharing, now)
            else:
                self._start(self.touched, now, self._horizon() if self.foreseen else 0)
            if self.tiers is not None:
                self.tiers.network.settle(now)

    def _start_in_turn(self, sharing: TimeSharing, now: int) -> None:
        for replica in sharing.loaded(now):
            self.touch(replica)
        ready = sharing.turn(self.touched, now)
        self._start(ready, now, min(self._horizon(), sharing.horizon()) if self.foreseen else 0)

    def _horizon(self) -> int:
        """The tick before which nobody comes."""
        first = self.arrivals[0][0] if self.arrivals else _NEVER
        later = None if self.availability is None else self.availability.next
        return first if later is None else min(first, later)

    def _come_and_go(self, availability: Availability, now: int) -> None:
        for replica in self.touched:
            availability.ended(replica, now)
        if availability.next != now:
            return
        again = availability.at(now)
        for replica in availability.failed:
            self.ends[:] = [end for end in self.ends if end[1] != replica.number]
            heapq.heapify(self.ends)
        for group, request in again:
            self._route(self.groups[group], group, request, now)

    def touch(self, replica: Replica) -> None:
        """It may be able to start a step."""
        if replica not in self.touched:
            self.touched.append(replica)

    def _start(self, replicas: Sequence[Replica], now: int, horizon: int) -> None:
        for replica in replicas:
            while (end := replica.start(now, horizon)) >= 0:
                if end > MOST_SUM:
                    raise TooLong
                heapq.heappush(self.ends, (end, replica.number))
                if replica.stages == 1:
                    break

    def _start_with_hand_overs(self, now: int) -> None:
        """Those that prefill first: what they bring about bounds what can be foreseen of the others."""
        for replica in [one for one in self.touched if one.number in self.takes_from]:
            self.takes_from[replica.number].pump(replica, now)
        for over in self.hand_overs:
            self._hand_over(over, now)
            if over.network is not None:
                over.network.settle(now)
        self._start([one for one in self.touched if one.number not in self.takes_from], now, 0)
        horizon = 0
        if self.foreseen:
            due = [end for end, number in self.ends if number not in self.takes_from]
            due += [later for over in self.hand_overs if (later := over.next) is not None]
            horizon = min([*due, self.arrivals[0][0] if self.arrivals else _NEVER])
        self._start([one for one in self.touched if one.number in self.takes_from], now, horizon)
        for over in self.hand_overs:  # layers of the steps that have begun: room for them is looked for at once
            waiting, over.touched = over.touched, []
            for replica in waiting:
                over.pump(replica, now)
            if over.network is not None:
                over.network.settle(now)

    def _hand_over(self, over: KVCacheTransfer, now: int) -> None:
        over.at(now)
        for replica in over.touched:
            self.touch(replica)
        over.touched.clear()

    def _arrive(self, now: int, row: int) -> None:
        place = self.group_of[row] if self.group_of is not None else 0
        group = self.groups[place]
        over = group.hand_over
        some = group.replicas[0].cache
        keys = self.keys[some.block_tokens][row] if some.reuses else ()
        output = self.outputs[row]
        request = Request(
            row,
            self.number,
            now,
            self.prompts[row],
            output if over is None else 1,
            self.sessions[row],
            keys,
            self.priorities[row],
        )
        if over is not None:
            replica = over.arrive(request, output, group.router)
            self.chosen[row] = replica.number
            self.touch(replica)
        else:
            self._route(group, place, request, now)
        if self.progress is not None and self.number % 1024 == 0:
            self.progress(self.number, len(self.table))
        self.number += 1

    def _route(self, group: ReplicaGroup, place: int, request: Request, now: int) -> None:
        """To a replica, if one serves."""
        replicas = group.replicas
        if self.availability is not None:
            replicas = self.availability.open_to(request, place, replicas, now)
            if not replicas:
                return
        replica = group.router.choose(request, replicas) if len(replicas) > 1 else replicas[0]
        replica.arrive(request)
        self.chosen[request.row] = replica.number
        self.touch(replica)

    def _finished(self, request: Request) -> None:
        self.ended.append(request)
        if len(self.ended) == MOST_KEPT:
            self._note()
        for row in self.followers.get(request.row, ()):
            heapq.heappush(self.arrivals, (request.finished + self.delays[row], row))

    def _prefilled(self, over: KVCacheTransfer, replica: Replica, request: Request) -> None:
        if not over.prefilled(request, request.finished):
            replica.let_go(request)
            self._finished(request)

    def _delivered(self, request: Request, replica: Replica, now: int) -> None:
        self.chosen[request.row] = replica.number
        self.touch(replica)

    def _note(self) -> None:
        """What became of those that have ended; an object of each takes five times as much memory."""
        places = [request.row for request in self.ended]
        for name, column in self.rows.items():
            column[places] = [getattr(request, name) for request in self.ended]
        self.ended.clear()

    def _table(self) -> FleetRun:
        self._note()
        rows = self.rows
        transfer = np.full(len(self.table), -1, np.int64)
        for over in self.hand_overs:
            transfer[list(over.transfer)] = list(over.transfer.values())
        sent = sum(over.bytes for over in self.hand_overs)
        history = (
            None if self.availability is None else self.availability.history(int(rows["finished"].max()) + self.front)
        )
        made = rows | {"replica": self.chosen}
        return _served(self.table, self.replicas, made, transfer, sent, self.tiers, history, self.sharing)


def _served(
    table: RequestTable, replicas: Sequence[Replica], rows: Mapping[str, NDArray[np.int64]],
    transfer: NDArray[np.int64] | None = None, sent: int = 0, tiers: TierTraffic | None = None,
    history: FleetHistory | None = None, sharing: TimeSharing | None = None, sketch: RequestSketch | None = None,
) -> FleetRun:  # fmt: skip
    """What became of each request, by column, and what the replicas say of themselves."""
    caches = [replica.cache for replica in replicas]
    speculations = [replica.speculation for replica in replicas if replica.speculation is not None]
    return FleetRun(
        requests=table,
        **rows,
        gaps=Samples.joined(replica.gaps for replica in replicas),
        steps=np.array([replica.steps for replica in replicas], np.int64),
        busy=np.array([sum(replica.busy) / replica.stages for replica in replicas]),
        computed=np.array([replica.tokens for replica in replicas], np.int64),
        padding=np.array([replica.padding for replica in replicas], np.int64),
        peak_blocks=np.array([cache.peak for cache in caches], np.int64),
        blocks=np.array([cache.blocks for cache in caches], np.int64),
        hit_tokens=sum(cache.hit_tokens for cache in caches),
        looked_up_tokens=sum(cache.looked_up_tokens for cache in caches),
        transfer=np.broadcast_to(np.int64(-1), table.arrived.shape) if transfer is None else transfer,
        sent_bytes=sent,
        drafted=sum(one.drafted for one in speculations),
        accepted=sum(one.accepted for one in speculations),
        verifications=sum(one.steps for one in speculations),
        adapter_loads=sum(replica.slots.loads for replica in replicas if replica.slots is not None),
        reloads=0 if tiers is None else tiers.reloads,
        loaded_bytes=0 if tiers is None else tiers.loaded,
        written_bytes=0 if tiers is None else tiers.written,
        swapped_blocks=sum(cache.moved for cache in caches),
        history=history,
        sharing=0 if sharing is None else sharing.saved,
        swaps=0 if sharing is None else sharing.swaps,
        swapping=0 if sharing is None else sharing.loading,
        joules=tuple(replica.joules for replica in replicas),
        sketch=sketch,
    )


def block_keys(table: RequestTable, size: int) -> list[Sequence[int]]:
    """Keys of the full blocks of each request, prompt and output; hashes may cover more or fewer tokens than a block.

    What no hash is known of has keys that no other request has, so that an evicted request still finds its own blocks.

    Raises:
        InputError: neither a hash nor a block covers a multiple of the other's tokens.
    """
    ends = (table.prompt + table.output).tolist()
    own = [range(-(row + 1) << 32, (-(row + 1) << 32) + end // size) for row, end in enumerate(ends)]
    if table.hashes is None:
        return list(own)
    covers = table.hashes.tokens
    if covers % size and size % covers:
        raise InputError(
            f"the requests' hashes cover {covers} tokens and a block of the cache {size}: one must be a multiple of "
            "the other (--engine-option block-tokens)"
        )
    out: list[Sequence[int]] = []
    hashed = ends if table.hashes.outputs else table.prompt.tolist()
    for row, known, length in zip(table.hashes.rows.lists(), own, hashed, strict=True):
        if covers >= size:
            per = covers // size
            full = min(length // size, len(row) * per)
            shared = [row[block // per] * per + block % per for block in range(full)]
        else:
            per = size // covers
            shared = [row[(block + 1) * per - 1] for block in range(min(length // size, len(row) // per))]
        out.append((*shared, *known[len(shared) :]))
    return out
