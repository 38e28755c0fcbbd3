"""Max-min fair sharing: no flow can be given more without taking from one that has no more than it.

Progressive filling (Bertsekas and Gallager, *Data Networks*, 2nd ed., section 6.5.2) in whole numbers: all rates
grow together until links are full; flows through a full link keep their rate; the others grow on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from triosim.engine.solver import Solver
from triosim.registry import registered


def fill(capacity: Sequence[int], routes: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Max-min fair rates of all flows, in the unit of ``capacity``.

    The share of a link is what is left of it divided by the flows on it that have no rate yet, rounded down.  In each
    round *all* links with the smallest share are full, and their flows get that share; so the order in which equal
    links are visited does not matter.  What rounding leaves on a full link is less than one unit per flow that it
    holds back.  A flow gets at least 1, so that it always ends; only a link with fewer units than flows is overrun.

    Args:
        capacity: of each link.
        routes: links of each flow, at least one, none twice.
    """
    waiting: dict[int, list[int]] = {}
    for flow, links in routes.items():
        for link in links:
            waiting.setdefault(link, []).append(flow)
    rest = {link: capacity[link] for link in waiting}
    count = {link: len(flows) for link, flows in waiting.items()}
    shares = [(max(rest[link] // count[link], 1), link) for link in waiting]
    heapify(shares)
    rates: dict[int, int] = {}
    while len(rates) < len(routes):
        share = shares[0][0]
        full = []
        while shares and shares[0][0] == share:
            _, link = heappop(shares)
            if count[link]:
                grown = max(rest[link] // count[link], 1)  # since it was noted flows may have got less than its share
                if grown == share:
                    full.append(link)
                else:
                    heappush(shares, (grown, link))
        for link in full:
            for flow in waiting[link]:
                if flow not in rates:
                    rates[flow] = share
                    for crossed in routes[flow]:
                        rest[crossed] -= share
                        count[crossed] -= 1
    return rates


@registered
class MaxMin(Solver):
    """Max-min fair sharing, solved again only for the flows that a change can reach.

    A change reaches the flows on the links that it touches, the flows that share a link with those, and so on; what
    is not connected in this way keeps its rates, because filling never looks across.
    """

    def start(self, capacity: Sequence[int]) -> None:
        self.capacity = capacity
        self.routes: dict[int, Sequence[int]] = {}
        self.rates: dict[int, int] = {}
        self.flows_on: dict[int, set[int]] = {}

    def share(self, now: int, joined: Mapping[int, Sequence[int]], left: Collection[int]) -> Mapping[int, int]:
        touched: set[int] = set()
        for flow in left:
            links = self.routes.pop(flow)
            del self.rates[flow]
            touched.update(links)
            for link in links:
                self.flows_on[link].discard(flow)
        for flow, links in joined.items():
            self.routes[flow] = links
            touched.update(links)
            for link in links:
                self.flows_on.setdefault(link, set()).add(flow)
        rates = fill(self.capacity, self._reached(touched))
        changed = {flow: rate for flow, rate in rates.items() if self.rates.get(flow) != rate}
        self.rates.update(changed)
        return changed

    def _reached(self, touched: set[int]) -> dict[int, Sequence[int]]:
        reached: dict[int, Sequence[int]] = {}
        ahead = list(touched)
        while ahead:
            for flow in self.flows_on[ahead.pop()]:
                if flow not in reached:
                    links = reached[flow] = self.routes[flow]
                    for link in links:
                        if link not in touched:
                            touched.add(link)
                            ahead.append(link)
        return reached
