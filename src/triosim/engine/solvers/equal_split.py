"""Equal split: every flow gets an equal part of each of its links, and what it cannot use of one is lost.

The rule of the released TrioSim (Li et al., "TrioSim: A Lightweight Simulator for Large-Scale DNN Workloads on
Multi-GPU Systems", ISCA 2025), of which max-min sharing is what real networks come closer to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from triosim.core.registry import registered
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import Flow, Sharing


@registered
class EqualSplit(Sharing):
    """A flow's rate is the smallest of its links' capacities, each divided by the weights on it and rounded down; at
    least 1."""

    alone_at_capacity = True
    weighted = True

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`."""
        super().start(network)
        self._flows: dict[int, Flow] = {}
        self._rates: dict[int, int] = {}
        self._on: dict[int, set[int]] = {}  # link -> flows
        self._weight: dict[int, int] = {}

    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        """See :meth:`Sharing.rates`."""
        touched: set[int] = set()
        for number in left:
            flow = self._flows.pop(number)
            del self._rates[number]
            touched.update(flow.links)
            for link, weight in zip(flow.links, flow.weights, strict=True):
                self._on[link].discard(number)
                self._weight[link] -= weight
        for flow in joined:
            self._flows[flow.number] = flow
            touched.update(flow.links)
            for link, weight in zip(flow.links, flow.weights, strict=True):
                self._on.setdefault(link, set()).add(flow.number)
                self._weight[link] = self._weight.get(link, 0) + weight
        changed = {}
        for number in set().union(*(self._on[link] for link in touched)):
            rate = max(min(self.capacity[link] // self._weight[link] for link in self._flows[number].links), 1)
            if self._rates.get(number) != rate:
                changed[number] = self._rates[number] = rate
        return changed
