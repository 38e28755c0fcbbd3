"""A network model of one's own: on every link the smallest messages go first, and share it equally."""

from triosim.core.registry import registered
from triosim.engine.solver import Sharing


@registered
class SmallestFirst(Sharing):
    def start(self, network):
        super().start(network)
        self.flows = {}

    def rates(self, now, joined, left):
        for number in left:
            del self.flows[number]
        self.flows.update({flow.number: flow for flow in joined})
        return {number: min(self.part(link, flow) for link in flow.links) for number, flow in self.flows.items()}

    def part(self, link, flow):
        sizes = [other.work for other in self.flows.values() if link in other.links]
        return self.capacity[link] // sizes.count(flow.work) if flow.work == min(sizes) else 0
