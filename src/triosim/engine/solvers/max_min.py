"""Max-min fair sharing: no flow can be given more without taking from one that has no more than it.

Progressive filling (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2) in whole numbers: all rates
grow together until links are full; flows through a full link keep their rate; the others grow on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from triosim.core.registry import registered
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import Flow, Sharing

Crossed = Sequence[tuple[int, int]]
"""The links of a flow, each with how often it counts there."""


def fill(capacity: Sequence[int], flows: Mapping[int, Crossed]) -> dict[int, int]:
    """Max-min fair rates of all flows, in the unit of ``capacity``.

    The share of a link is what is left of it divided by the weights of the flows on it that have no rate yet, rounded
    down.  In each round *all* links with the smallest share are full, and their flows get that share; so the order in
    which equal links are visited does not matter.  What rounding leaves on a full link is less than one unit for each
    weight that it holds back.  A flow gets at least 1, so that it always ends; only a link with fewer units than
    weights is overrun.

    Args:
        capacity: of each link.
        flows: the links of each, with its weight there.
    """
    waiting: dict[int, list[int]] = {}
    weights: dict[int, int] = {}
    for flow, crossed in flows.items():
        for link, weight in crossed:
            if link in waiting:
                waiting[link].append(flow)
                weights[link] += weight
            else:
                waiting[link] = [flow]
                weights[link] = weight
    rest = {link: capacity[link] for link in waiting}
    shares = [(max(rest[link] // weights[link], 1), link) for link in waiting]
    heapify(shares)
    rates: dict[int, int] = {}
    while len(rates) < len(flows):
        share = shares[0][0]
        full = []
        while shares and shares[0][0] == share:
            _, link = heappop(shares)
            if weights[link]:
                grown = max(rest[link] // weights[link], 1)  # since it was noted flows may have got less than its share
                if grown == share:
                    full.append(link)
                else:
                    heappush(shares, (grown, link))
        for link in full:
            for flow in waiting[link]:
                if flow not in rates:
                    rates[flow] = share
                    for other, weight in flows[flow]:
                        rest[other] -= share * weight
                        weights[other] -= weight
    return rates


@registered
class MaxMin(Sharing):
    """Max-min fair sharing, solved again only for the flows that a change can reach.

    A change reaches the flows on the links that it touches, the flows that share a link with those, and so on; what
    is not connected in this way keeps its rates, because filling never looks across.
    """

    alone_at_capacity = True
    weighted = True

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`."""
        super().start(network)
        self._flows: dict[int, Crossed] = {}
        self._rates: dict[int, int] = {}
        self._on: dict[int, set[int]] = {}  # link -> flows

    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        """See :meth:`Sharing.rates`."""
        touched: set[int] = set()
        for number in left:
            del self._rates[number]
            for link, _ in self._flows.pop(number):
                touched.add(link)
                self._on[link].discard(number)
        for flow in joined:
            self._flows[flow.number] = tuple(zip(flow.links, flow.weights, strict=True))
            touched.update(flow.links)
            for link in flow.links:
                self._on.setdefault(link, set()).add(flow.number)
        rates = fill(self.capacity, self._reached(touched))
        changed = {number: rate for number, rate in rates.items() if self._rates.get(number) != rate}
        self._rates.update(changed)
        return changed

    def _reached(self, touched: set[int]) -> dict[int, Crossed]:
        reached: dict[int, Crossed] = {}
        ahead = list(touched)
        while ahead:
            for number in self._on[ahead.pop()]:
                if number not in reached:
                    crossed = reached[number] = self._flows[number]
                    for link, _ in crossed:
                        if link not in touched:
                            touched.add(link)
                            ahead.append(link)
        return reached
