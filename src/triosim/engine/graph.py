"""What the engine plays: tasks on in-order streams, transfers over shared links, stepped collectives.

The engine knows nothing of training, models or GPUs.  Time is a whole number of picoseconds, amounts
are whole bytes, link capacities are whole multiples of 1/1024 byte per second; every rule below is stated
in these integers, so that a result does not depend on the order in which equal things are visited.

Rules
* A task *is ready* when enough of its predecessors have finished (all, or ``need`` of them) and, if it is
  on a stream, the task before it on that stream has finished.  It starts then; streams never reorder.
* COMPUTE lasts ``duration``.  JOIN lasts nothing.
* TRANSFER: ``delay`` and the route's latency pass, then the flow shares the links of its route until its last byte
  has been served; it finishes then.  Alone on its links it is served for ``ceil(bytes / rate)``.
* COLLECTIVE: one task per member.  When all members are ready, and ``delay`` has passed, the steps run
  (:class:`Steps`); a member finishes when everything that it sends has been delivered and everything that is sent to
  it has arrived.  Each transfer takes its route's latency first, as a TRANSFER does.  A step in which a member neither
  sends nor receives takes it no time.
* Sharing: the solver is asked at each instant at which flows start or end, once for all of them.  A flow with
  ``left`` work at ``rate`` ends ``ceil(left / rate)`` ticks later, work being bytes x 1024 x 10**12.  A flow that no
  link limits is delivered when it joins, as is one of no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged

CAPACITY_PER_BYTE = 1024
"""Link capacities count 1/1024 byte per second."""

UNLIMITED = -1
"""Capacity of a link that never limits."""


class Task(IntEnum):
    """Kinds of task."""

    COMPUTE = 0
    TRANSFER = 1
    COLLECTIVE = 2
    JOIN = 3


class Send(IntEnum):
    """Who sends to whom in the steps of a collective of ``n`` members at positions ``0..n-1``."""

    SHIFT = 0
    """Position p sends to ``(p + shift + step * stride) mod n``."""
    CHAIN = 1
    """Position p sends to p + 1, the last position to nobody; p takes part from step p on, for ``active`` steps."""
    TO_FIRST = 2
    """Every position but 0 sends to 0."""
    FROM_FIRST = 3
    """Position 0 sends to position step + 1."""


@dataclass(frozen=True)
class Steps:
    """A collective as a compact rule that is played lazily: memory does not grow with the number of steps.

    Attributes:
        members: number of members, ``n``.
        steps: number of steps.
        bytes: bytes of each transfer.
        send: who sends to whom, see :class:`Send`.
        shift, stride: of :attr:`Send.SHIFT`.
        active: of :attr:`Send.CHAIN`: how many transfers each position sends.
        wait: a position's transfer of step s starts when its own transfer of step s - 1 has been delivered and
            what is sent to it in step s - 1 has arrived.  If False all steps start at once.
    """

    members: int
    steps: int
    bytes: int
    send: Send = Send.SHIFT
    shift: int = 1
    stride: int = 0
    active: int = 0
    wait: bool = True

    def peer(self, position: int, step: int) -> int:
        """Where ``position`` sends in ``step``, or -1 if it sends nothing then."""
        n = self.members
        if not 0 <= step < self.steps or n < 2:
            return -1
        if self.send == Send.SHIFT:
            to = (position + self.shift + step * self.stride) % n
            return to if to != position else -1
        if self.send == Send.CHAIN:
            return position + 1 if position < n - 1 and position <= step < position + self.active else -1
        if self.send == Send.TO_FIRST:
            return 0 if position and step == 0 else -1
        return step + 1 if position == 0 and step + 1 < n else -1


@dataclass(frozen=True)
class Collective:
    """One collective: its steps and the routes that its transfers take.

    Attributes:
        steps: the rule.
        routes: route of each position's transfer, shape ``(1, members)`` where the peer is the same in all steps, else
            ``(steps, members)``; -1 where a position sends nothing.
        delay: picoseconds from the arrival of the last member to the first step.
    """

    steps: Steps
    routes: NDArray[np.int32]
    delay: int = 0


@dataclass(frozen=True)
class Wires:
    """The network as the engine sees it.

    Attributes:
        capacity: of each link in 1/1024 byte per second, or :data:`UNLIMITED`, int64.
        routes: links of each route, in order, none twice; a route may be empty.
        latency: of each route in picoseconds, int64.
    """

    capacity: NDArray[np.int64]
    routes: Ragged
    latency: NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """Tasks in columns, ``n`` rows.  On a stream, tasks run in row order.

    Attributes:
        kind: :class:`Task` codes, int8.
        stream: in-order stream of each task, or -1 for none, int32.
        duration: of COMPUTE in picoseconds, int64.
        route: of TRANSFER, row of ``Wires.routes``, int32, else -1.
        bytes: of TRANSFER, int64.
        delay: of TRANSFER in picoseconds, int64.
        collective: of COLLECTIVE, index into ``collectives``, int32, else -1.
        member: of COLLECTIVE, position in it, int32.
        before: predecessors of each task.
        need: how many predecessors must have finished, 0 for all, int32.
        streams: number of streams.
        collectives: the collectives.
    """

    kind: NDArray[np.int8]
    stream: NDArray[np.int32]
    duration: NDArray[np.int64]
    route: NDArray[np.int32]
    bytes: NDArray[np.int64]
    delay: NDArray[np.int64]
    collective: NDArray[np.int32]
    member: NDArray[np.int32]
    before: Ragged
    need: NDArray[np.int32]
    streams: int
    collectives: tuple[Collective, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Played:
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
    """Tasks that can never start: a cycle, or a collective that a member never reaches (a defect of the caller)."""
