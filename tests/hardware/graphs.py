"""Walking a graph of edges, for tests: what `network` will do, in a few lines that are plainly right."""

from __future__ import annotations

import math

from triosim.hardware.system import Edge, Fabric, Link, System, Tier


def edges_of(system: System) -> list[Edge]:
    """The columns of a system as single edges, without their links."""
    fabric = zip(
        system.edge_source.tolist(),
        system.edge_target.tolist(),
        system.bandwidth.tolist(),
        system.latency.tolist(),
        system.edge_tier.tolist(),
        strict=True,
    )
    return [Edge(a, b, Link(bandwidth, latency), Tier(tier)) for a, b, bandwidth, latency, tier in fabric]


def distances(edges: list[Edge], nodes: int, start: int, cost) -> list[float]:
    """Least cost from ``start`` to every node (Bellman and Ford's algorithm)."""
    least = [math.inf] * nodes
    least[start] = 0
    for _ in range(nodes):
        before = list(least)
        for e in edges:
            least[e.target] = min(least[e.target], least[e.source] + cost(e))
        if least == before:
            break
    return least


def hops(fabric: Fabric, start: int) -> list[float]:
    """Edges from one node to every other."""
    return distances(list(fabric.edges), fabric.devices + fabric.switches, start, lambda e: 1)


def latencies(fabric: Fabric, start: int) -> list[float]:
    """Least latency from one node to every other."""
    return distances(list(fabric.edges), fabric.devices + fabric.switches, start, lambda e: e.link.latency)
