"""Uncontended: every message takes what it would take alone, however many share its links.

The rule of ASTRA-sim's congestion-unaware analytical back end.  It is here to agree with it; with more than one message
under way it lets links carry more than they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from triosim.core.registry import registered
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import Flow, NetworkModel


@registered
class Uncontended(NetworkModel):
    """Latency of the route and bytes / bandwidth of its narrowest link, for each message by itself.

    Args:
        clock: ticks to which times are rounded down; ASTRA-sim counts whole nanoseconds, 1000.
    """

    weighted = True
    pays_latency = True

    def __init__(self, clock: int = 1) -> None:
        self.clock = clock

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`."""
        self._capacity: list[int] = network.capacity.tolist()

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        """See :meth:`NetworkModel.change`."""
        ends = []
        for flow in joined:
            rate = min(self._capacity[link] for link in flow.links)
            periods = now // self.clock + (flow.latency * rate + flow.work) // (rate * self.clock)
            ends.append((flow.number, max(periods * self.clock, now + 1)))
        return ends
