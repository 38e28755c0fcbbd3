"""What the engine plays: tasks on in-order streams, transfers over shared links, collectives of many transfers.

The engine knows nothing of training, models or GPUs.  Time is a whole number of picoseconds, amounts
are whole bytes, link capacities are whole multiples of 1/1024 byte per second; every rule below is stated
in these integers, so that a result does not depend on the order in which equal things are visited, and every engine
gives the same ticks.

Rules
* A task *is ready* when enough of its predecessors have finished (all, or ``need`` of them) and, if it is
  on a stream, the task before it on that stream has finished.  It starts then; streams never reorder.
* COMPUTE lasts ``amount`` ticks.  JOIN lasts nothing.
* TRANSFER: the latency of its route passes, then the flow shares the links of the route until the last of its
  ``amount`` bytes has been served; it finishes then.  Alone on its links it is served for ``ceil(bytes / rate)``.
* COLLECTIVE: one task per member.  When all members are ready, and ``delay`` has passed, the transfers of its
  :class:`Pattern` start as soon as what they wait for has been delivered; each takes the latency of its route first, as
  a TRANSFER does.  A member finishes when all that it sends and all that is sent to it has been delivered, and not
  before the transfers may start.
* PUT adds a token to counter ``what``; it lasts nothing.  TAKE starts when it is ready and ends when it has got a
  token of counter ``what``: those that wait for one counter are served in the order of (tick of being ready, row).  A
  token that is put at a tick can be taken at that tick.  Tokens are given in rounds: when everything else of a tick has
  happened, all counters give what they have to those that wait; what follows from that at the same tick happens, and
  so on until nobody gets a token any more.  Then the network model is asked.
* Sharing: the network model is asked at each instant at which flows start or end, once for all of them (see
  :mod:`triosim.engine.solver`).  A flow that no link limits is delivered when it joins, as is one of no bytes.

Weights.  A flow may stand for many alike (a folded job): on each link of its route it then counts ``weight`` times,
which is how many of those it stands for cross each of the links that this one stands for.  Filling divides what is left
of a link by the sum of weights and takes rate x weight from it, which in whole numbers is exactly what happens to
each of the many.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

CAPACITY_PER_BYTE = 1024
"""Link capacities count 1/1024 byte per second."""

UNLIMITED = -1
"""Capacity of a link that never limits."""

BEYOND = 2**63 - 1
"""The first tick that cannot be counted, after 106 days."""

ALL = -1
"""As a lag: wait for the last transfer of the needed edge."""


class Task(IntEnum):
    """Kinds of task."""

    COMPUTE = 0
    TRANSFER = 1
    COLLECTIVE = 2
    JOIN = 3
    PUT = 4
    TAKE = 5


@dataclass(frozen=True)
class Pattern:
    """Who sends how much to whom in a collective, and what waits for what: ``e`` edges, played lazily.

    An edge is a sequence of ``count`` equal transfers from one position to another.  They follow each other: transfer k
    starts when transfer k - 1 of its edge has been delivered and, for each edge f that it ``needs``, transfer
    ``k - lag`` of f has been delivered: nothing to wait for where that is below 0, and the last transfer of f where
    f has no such transfer or ``lag`` is :data:`ALL`.  ``pause`` ticks pass before each transfer starts.  Waiting with a
    lag of 0 must not go in circles.

    Memory grows with the edges, never with the transfers.  A ring all-reduce of n members is n edges of 2 (n - 1)
    transfers, each needing the edge before it with lag 1; a pipeline along a chain has lag 0 (a chunk goes on when
    it has come); a tree has an edge up and an edge down for each member.

    Attributes:
        members: positions ``0 .. members - 1`` are members, each the task of the graph with that ``member``.
        places: number of positions; those from ``members`` on are places in the network that forward or reduce (a
            switch) and have no task.
        source, target: position that sends and that receives, shape ``(e,)``, int32; they are the same where positions
            have been folded into one.
        bytes: of each transfer of an edge, shape ``(e,)``, int64.
        count: transfers of each edge, at least 1, shape ``(e,)``, int32.
        needs: for each edge the edges it needs.
        lag: beside ``needs.values``, int32; 0 or more, or :data:`ALL`.
        pause: shape ``(e,)``, int64, ticks.
    """

    members: int
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    bytes: NDArray[np.int64]
    count: NDArray[np.int32]
    needs: Ragged
    lag: NDArray[np.int32]
    pause: NDArray[np.int64]
    places: int = -1

    def __post_init__(self) -> None:
        if self.places < 0:
            object.__setattr__(self, "places", self.members)

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Collective:
    """A pattern on routes.

    Attributes:
        pattern: who sends what to whom.
        route: route of each edge, row of ``EngineNetwork.routes``, shape ``(edges,)``, int32.
        delay: ticks from the arrival of the last member to the first transfer.
    """

    pattern: Pattern
    route: NDArray[np.int32]
    delay: int = 0


@dataclass(frozen=True)
class EngineNetwork:
    """The network as the engine sees it.

    Attributes:
        capacity: of each link in 1/1024 byte per second, or :data:`UNLIMITED`, int64.
        routes: links of each route, in order, none twice; a route may be empty.
        latency: of each route in picoseconds, software cost included, int64.
        weights: beside ``routes.values``: how many times a flow on that route counts on that link, int32, 1 or more.
            None where every flow stands for itself.
        ends: the two nodes of each link, shape ``(links, 2)``, int32, for network models that know of nodes; None
            where not known.
    """

    capacity: NDArray[np.int64]
    routes: Ragged
    latency: NDArray[np.int64]
    weights: NDArray[np.int32] | None = None
    ends: NDArray[np.int32] | None = None


def _no_tokens() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _no_instances() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class Graph:
    """Tasks in columns, ``n`` rows.  On a stream, tasks run in row order.

    Attributes:
        kind: :class:`Task` codes, int8.
        stream: in-order stream of each task, or -1 for none, int32.
        amount: ticks of COMPUTE, bytes of TRANSFER, else 0, int64.
        what: route of TRANSFER, row of ``instances`` of COLLECTIVE, counter of PUT and TAKE, else -1, int32.
        member: of COLLECTIVE, position in it, int32.
        before: predecessors of each task.
        streams: number of streams.
        need: how many predecessors must have finished, 0 for all, int32; None where all tasks need all.
        collectives: the distinct collectives.
        instances: row of ``collectives`` of each collective that is run, int32.
        tokens: tokens in each counter at the beginning, int64.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int32]
    amount: NDArray[np.int64]
    what: NDArray[np.int32]
    member: NDArray[np.int32]
    before: Ragged
    streams: int
    need: NDArray[np.int32] | None = None
    collectives: tuple[Collective, ...] = ()
    instances: NDArray[np.int32] = field(default_factory=_no_instances)
    tokens: NDArray[np.int64] = field(default_factory=_no_tokens)

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class GraphRun:
    """When everything happened, in picoseconds.

    Attributes:
        start: when each task was ready and began, int64.
        begin: when its bytes began to move: for TRANSFER and COLLECTIVE the end of waiting for members (``delay`` and
            latency count as moving), else ``start``.
        finish: when it ended, int64.
        link_bytes: bytes that each link carried, int64.
        flows: transfers simulated, those inside collectives included.
        events: instants at which the sharing of links was solved.
        engine: which engine played it.
    """

    start: NDArray[np.int64]
    begin: NDArray[np.int64]
    finish: NDArray[np.int64]
    link_bytes: NDArray[np.int64]
    flows: int
    events: int
    engine: str


class Stuck(RuntimeError):
    """Tasks that can never start or end: a cycle, a collective that a member never reaches, a token that is never
    put (a defect of the caller)."""


CIRCLE = "tasks wait for each other in a circle"
"""What a graph says that is :class:`Stuck` on a cycle."""


class TimeOverflow(InputError):
    """A run that goes on to tick :data:`BEYOND`."""
