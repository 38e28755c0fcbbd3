"""Store and forward: a message moves whole, one hop after the other, and each link serves one message at a time.

The rule of ASTRA-sim's congestion-aware analytical back end (Won et al., "ASTRA-sim2.0: Modeling Hierarchical Networks
and Disaggregated Systems for Large-model Training at Scale", ISPASS 2023): on each hop a message waits until those that
came to the link before it have been served, occupies the link for bytes / bandwidth, and is at the next node the hop's
latency and bytes / bandwidth after it began.  Over h hops a message alone therefore takes h times its serialisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from triosim.core.registry import registered
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import NEVER, Flow, NetworkModel


@registered
class StoreAndForward(NetworkModel):
    """First come, first served, hop by hop.

    The latency of a route is divided evenly among its hops, in whole ticks that add up to it.  Messages that come to a
    link at the same tick go in the order in which they joined the network; of those that joined at the same tick, the
    smaller first; of those of one size, by their links, then the shorter latency, then in the order of the graph
    (:attr:`Flow.number`).  A link that serves a message in less than a tick hands it on at the same tick.

    Args:
        clock: ticks to which times are rounded down; ASTRA-sim counts whole nanoseconds, 1000.  What joins within one
            period counts as joining at its beginning, in the order in which it came.
    """

    pays_latency = True

    def __init__(self, clock: int = 1) -> None:
        self.clock = clock

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`."""
        self._capacity: list[int] = network.capacity.tolist()
        self._free = [0] * len(self._capacity)
        self._arriving: list[tuple[int, tuple[Any, ...], int, Flow]] = []
        self.wake = None

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        """See :meth:`NetworkModel.change`: a message has an end once it has come to its last link."""
        period = now // self.clock
        ends = dict.fromkeys((flow.number for flow in joined), NEVER)
        arriving = self._arriving
        for flow in joined:
            heappush(arriving, (period, (now, flow.work, flow.links, flow.latency, flow.number), 0, flow))
        while arriving and arriving[0][0] <= period:
            self._serve(*heappop(arriving), ends)
        self.wake = arriving[0][0] * self.clock if arriving else None
        return [(number, end if end == NEVER else max(end * self.clock, now + 1)) for number, end in ends.items()]

    def _serve(self, at: int, turn: tuple[Any, ...], hop: int, flow: Flow, ends: dict[int, int]) -> None:
        """A message has come to the link of a hop in period ``at``: it is served when the link is free."""
        link, hops = flow.links[hop], len(flow.links)
        rate = self._capacity[link] * self.clock
        begin = max(at, self._free[link])
        self._free[link] = begin + flow.work // rate
        latency = flow.latency * (hop + 1) // hops - flow.latency * hop // hops  # all shares make the whole
        there = begin + (latency * self._capacity[link] + flow.work) // rate
        if hop + 1 < hops:
            heappush(self._arriving, (there, turn, hop + 1, flow))
        else:
            ends[flow.number] = there
