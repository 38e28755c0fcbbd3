"""What tests of collectives share: groups, networks, and who holds what when a pattern has been played."""

from __future__ import annotations

import numpy as np

from tests.engine.graphs import Builder, wires
from triosim.collectives.group import Group, LinkClass
from triosim.collectives.scheduling import ScheduledCollective
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.graph import ALL, CAPACITY_PER_BYTE, GraphRun, Pattern
from triosim.engine.play import play

NVLINK3 = LinkClass(240e9, 0.7e-6, 6e-6, "NVLink3", "NVLink", 240e9)
NVLINK4 = LinkClass(360e9, 0.6e-6, 6e-6, "NVLink4", "NVLink", 360e9)
NVLINK5 = LinkClass(720e9, 0.6e-6, 6e-6, "NVLink5", "NVLink", 720e9)
PCIE4 = LinkClass(25e9, 0.6e-6, 8e-6, "PCIe4x16", "PCIe", 25e9)
NDR = LinkClass(46e9, 1.3e-6, 12e-6, "InfiniBand-NDR", "InfiniBand", 46e9)
PLAIN = LinkClass(100e9, 1e-6)

ARCHITECTURES = {"NVLink3": "Ampere", "NVLink4": "Hopper", "NVLink5": "Blackwell"}


def server(members: int, link: LinkClass = NVLINK4, switch: int = -1) -> Group:
    """Members of one server."""
    return Group(np.zeros(members, np.int32), link, None, switch, ARCHITECTURES.get(link.name, ""))


def servers(count: int, width: int, intra: LinkClass = NVLINK4, inter: LinkClass = NDR) -> Group:
    """As many members in each of some servers, each with its own way out."""
    where = np.repeat(np.arange(count, dtype=np.int32), width)
    return Group(where, intra if width > 1 else None, inter, architecture=ARCHITECTURES.get(intra.name, ""))


def run(made: ScheduledCollective, group: Group) -> GraphRun:
    """Play one collective alone: each member has its link to the switch of its server, and its way out to a network
    that never limits.  Links of member m: out to the switch, in from it, out to the network, in from it."""
    links = [link for link in (group.intra, group.inter) for _ in range(2)]
    capacity = [int(link.bandwidth * CAPACITY_PER_BYTE) if link else 1 for link in links] * group.members
    pattern = made.pattern
    seat = [*made.order, *(-1 for _ in made.nodes)]
    routes, latencies = [], []
    for p, q in zip(pattern.source.tolist(), pattern.target.tolist(), strict=True):
        a, b = seat[p], seat[q]
        crosses = a >= 0 and b >= 0 and group.server[a] != group.server[b]
        route = [4 * a + 2 * crosses] * (a >= 0) + [4 * b + 2 * crosses + 1] * (b >= 0)
        link = group.inter if crosses else group.intra
        assert link is not None
        routes.append(route)
        latencies.append(round(link.latency * PICOSECONDS_PER_SECOND) if a >= 0 else 0)
    builder = Builder()
    delay = round(made.delay_s * PICOSECONDS_PER_SECOND)
    builder.collective(pattern, range(len(routes)), delay=delay)
    return play(builder.graph(), wires(capacity, routes, latencies))


def holdings(pattern: Pattern, start: list[set]) -> list[set]:
    """What each position holds at the end if everyone passes on all it has when a transfer starts."""
    held, done = [set(s) for s in start], [0] * len(pattern)
    lags, count = iter(pattern.lag.tolist()), pattern.count.tolist()
    needs = [[(other, next(lags)) for other in row] for row in pattern.needs.lists()]

    def ready(edge: int) -> bool:
        k = done[edge]
        enough = [done[f] >= (count[f] if lag == ALL else min(k - lag + 1, count[f])) for f, lag in needs[edge]]
        return k < count[edge] and all(enough)

    while starting := [edge for edge in range(len(pattern)) if ready(edge)]:
        before = [set(s) for s in held]
        for edge in starting:
            held[pattern.target[edge]] |= before[pattern.source[edge]]
            done[edge] += 1
    assert done == count
    return held
