"""A fleet of replicas under traffic: the loop that plays arrivals and steps in order of time.

At one instant all steps that end and all requests that arrive come before any replica starts a new step.  Times are
whole picoseconds, so equal input gives equal output to the last digit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.core.units import MOST_SUM
from triosim.serving.quantiles import Samples
from triosim.serving.replica import Replica
from triosim.serving.requests import Request, RequestTable
from triosim.serving.router import Router

Progress = Callable[[int, int], None]
"""Given the requests that are done and all of them."""

_NEVER = 2 * MOST_SUM


@dataclass(frozen=True)
class Served:
    """What became of each request, and what the replicas did.  Times are picoseconds, int64, one row a request.

    Attributes:
        requests: what arrived.
        replica: number of the replica that served it.
        arrived: when it came.
        scheduled: when it was first in a step.
        first_token, finished: when it had its first and its last token.
        waited: between its steps.
        restarts: how often it lost what it had computed.
        cached: prompt tokens that it found in the cache.
        gaps: picoseconds between tokens of a request, over all of them.
        steps: of each replica.
        busy: of each replica, the mean of its stages.
        computed: tokens of each replica, recomputed ones included.
        padding: tokens of each replica that filled captured graphs.
        peak_blocks, blocks: of each replica's cache.
        hit_tokens, looked_up_tokens: prompt tokens found in all caches, and looked for.
    """

    requests: RequestTable
    replica: NDArray[np.int64]
    arrived: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    first_token: NDArray[np.int64]
    finished: NDArray[np.int64]
    waited: NDArray[np.int64]
    restarts: NDArray[np.int64]
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


def play(table: RequestTable, replicas: Sequence[Replica], router: Router, progress: Progress | None = None) -> Served:
    """Serve all requests.

    Args:
        table: what arrives when.
        replicas: fresh ones; at least one.
        router: chooses among them when a request arrives.
        progress: told now and then.

    Raises:
        InputError: a request can never run, a policy broke a rule, or the run is longer than can be counted.
    """
    if not replicas:
        raise InputError("the fleet holds no replica of the model: give at least one")
    size = replicas[0].cache.block_tokens
    reuse = any(replica.cache.reuses for replica in replicas)
    keys = block_keys(table, size) if reuse else None
    prompts, outputs, sessions = table.prompt.tolist(), table.output.tolist(), table.session.tolist()
    delays, first = table.arrived.tolist(), np.flatnonzero(table.follows < 0).tolist()
    followers: dict[int, list[int]] = {}
    for row in np.flatnonzero(table.follows >= 0).tolist():
        followers.setdefault(int(table.follows[row]), []).append(row)
    total = len(table)
    live: list[Request | None] = [None] * total
    chosen = np.zeros(total, np.int64)
    arrivals = [(delays[row], row) for row in first]  # ascending, and so a heap
    ends: list[tuple[int, int]] = []

    def finished(request: Request) -> None:
        for row in followers.get(request.row, ()):
            heapq.heappush(arrivals, (request.finished + delays[row], row))

    for replica in replicas:
        replica.on_finished = finished
    foreseen = not followers or len(replicas) == 1
    number = 0
    while arrivals or ends:
        arrival = arrivals[0][0] if arrivals else _NEVER
        now = min(arrival, ends[0][0] if ends else _NEVER)
        touched: list[Replica] = []
        while ends and ends[0][0] == now:
            replica = replicas[heapq.heappop(ends)[1]]
            replica.end(now)
            touched.append(replica)
        while arrivals and arrivals[0][0] == now:
            row = heapq.heappop(arrivals)[1]
            request = live[row] = Request(
                row, number, now, prompts[row], outputs[row], sessions[row], keys[row] if keys else ()
            )
            replica = router.choose(request, replicas) if len(replicas) > 1 else replicas[0]
            replica.arrive(request)
            chosen[row] = replica.number
            if replica not in touched:
                touched.append(replica)
            if progress is not None and number % 1024 == 0:
                progress(number, total)
            number += 1
        horizon = (arrivals[0][0] if arrivals else _NEVER) if foreseen else 0
        for replica in touched:
            while (end := replica.start(now, horizon)) >= 0:
                if end > MOST_SUM:
                    raise InputError(
                        "the run is longer than the 106 days that can be counted in picoseconds: serve less"
                    )
                heapq.heappush(ends, (end, replica.number))
    for replica in replicas:
        if error := replica.stuck():
            raise error
    return _served(table, [request for request in live if request is not None], chosen, replicas)


def _served(table: RequestTable, live: list[Request], chosen: NDArray[np.int64], replicas: Sequence[Replica]) -> Served:
    def column(name: str) -> NDArray[np.int64]:
        return np.array([getattr(request, name) for request in live], np.int64)

    return Served(
        requests=table,
        replica=chosen,
        arrived=column("arrived"),
        scheduled=column("scheduled"),
        first_token=column("first_token"),
        finished=column("finished"),
        waited=column("waited"),
        restarts=column("restarts"),
        cached=column("cached"),
        gaps=Samples.joined(replica.gaps for replica in replicas),
        steps=np.array([replica.steps for replica in replicas], np.int64),
        busy=np.array([sum(replica.busy) / replica.stages for replica in replicas]),
        computed=np.array([replica.tokens for replica in replicas], np.int64),
        padding=np.array([replica.padding for replica in replicas], np.int64),
        peak_blocks=np.array([replica.cache.peak for replica in replicas], np.int64),
        blocks=np.array([replica.cache.blocks for replica in replicas], np.int64),
        hit_tokens=sum(replica.cache.hit_tokens for replica in replicas),
        looked_up_tokens=sum(replica.cache.looked_up_tokens for replica in replicas),
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
