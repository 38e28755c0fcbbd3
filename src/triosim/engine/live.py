"""Transfers that enter while time runs: for callers that decide during a run what is sent, without a graph of tasks.

The flows are served by the same network models as those of a graph (:mod:`triosim.engine.solver`), with the same
arithmetic: a transfer joins its links when the latency of its route has passed, shares them with all others, and ends
at a whole picosecond.

The owner of the loop asks for :attr:`LiveNetwork.next`, and at each instant calls :meth:`LiveNetwork.ended` first,
:meth:`LiveNetwork.send` as often as it likes, and :meth:`LiveNetwork.settle` last, so that the model is asked once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.engine.graph import UNLIMITED, EngineNetwork
from triosim.engine.solver import NEVER, WORK_PER_BYTE, Flow, NetworkModel
from triosim.engine.solvers.max_min import MaxMin


class LiveNetwork:
    """Links, and the transfers that are on them now.

    Args:
        capacity: of each link, in 1/1024 byte per second, :data:`triosim.engine.graph.UNLIMITED` for one that never
            limits; shape ``(links,)``.
        model: how links are shared; max-min fair if None.  It must let the engine count latencies.

    Attributes:
        sent: transfers so far.
        bytes: of them.
    """

    def __init__(self, capacity: NDArray[np.int64], model: NetworkModel | None = None) -> None:
        self._model = model or MaxMin()
        if self._model.pays_latency:
            raise ValueError(f"{type(self._model).__name__} counts latencies itself: no transfer can enter at run time")
        self._limited = (capacity != UNLIMITED).tolist()
        self._model.start(EngineNetwork(capacity, Ragged.empty(0, np.int32), np.zeros(0, np.int64)))
        self._joining: list[tuple[int, int, tuple[int, ...], int]] = []  # (tick, number, links, work)
        self._ends: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}  # flow -> the tick at which it ends as things are
        self._what: dict[int, Hashable] = {}
        self._flowing: set[int] = set()  # what the model knows
        self._left: list[int] = []
        self._wake: int | None = None
        self.sent = self.bytes = 0

    def send(self, now: int, links: Sequence[int], latency: int, size: int, what: Hashable) -> bool:
        """Begin a transfer.

        Args:
            now: the tick.
            links: of its route, none twice.
            latency: of its route in ticks.
            size: bytes.
            what: by which :meth:`ended` names it.

        Returns:
            False where it takes no time at all: then it is there already, and is never named.
        """
        self.sent += 1
        self.bytes += size
        route = tuple(link for link in links if self._limited[link]) if size else ()
        if not route and not latency:
            return False
        number = self.sent
        self._what[number] = what
        if route:
            heappush(self._joining, (now + latency, number, route, size * WORK_PER_BYTE))
        else:
            self._end_of[number] = now + latency
            heappush(self._ends, (now + latency, number))
        return True

    @property
    def next(self) -> int | None:
        """The tick at which something happens next; None where nothing will."""
        while self._ends and self._end_of.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)  # it was worked out anew
        due = [queue[0][0] for queue in (self._joining, self._ends) if queue]
        return min([*due, *([] if self._wake is None else [self._wake])], default=None)

    def ended(self, now: int) -> list[Hashable]:
        """What ends at this tick, in the order in which it was sent."""
        found = []
        while self.next == now and self._ends and self._ends[0][0] == now:
            number = heappop(self._ends)[1]
            del self._end_of[number]
            found.append(number)
        served = [number for number in found if number in self._flowing]
        self._flowing.difference_update(served)
        self._left.extend(served)
        return [self._what.pop(number) for number in sorted(found)]

    def settle(self, now: int) -> None:
        """Ask the model what follows from all that began and ended at this tick."""
        joined = []
        while self._joining and self._joining[0][0] == now:
            _, number, route, work = heappop(self._joining)
            joined.append(Flow(number, route, (1,) * len(route), work, 0))
        if not joined and not self._left and self._wake != now:
            return
        self._flowing.update(flow.number for flow in joined)
        for number, end in self._model.change(now, joined, sorted(self._left)):
            if end == NEVER:
                self._end_of.pop(number, None)
            else:
                self._end_of[number] = end
                heappush(self._ends, (end, number))
        self._left.clear()
        self._wake = self._model.wake
