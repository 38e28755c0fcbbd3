"""A tree over many servers, with its load spread evenly.

Two binary trees give almost every member the same to do: an inner node of the one is a leaf of the other, and sends and
receives the whole buffer twice (Sanders, Speck and Traeff 2009).  Edge by edge they tell all members apart, though,
which over hundreds of servers means to follow every one of them where following one would do.  So beyond a few servers
what is played is the load: every member sends as much as the busiest member of the trees does, to its neighbour, in as
long as the trees take when they are alone.
"""

from __future__ import annotations

import numpy as np

from triosim.collectives.algorithms.tree import PIECES
from triosim.collectives.group import LinkClass
from triosim.collectives.pattern import ring
from triosim.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, Collective, Graph, Pattern, Task, Wires
from triosim.engine.play import play
from triosim.units import PICOSECONDS_PER_SECOND

FOLLOWED_SERVERS = 8
"""Trees over at most so many servers are played edge by edge."""


def evened(pattern: Pattern, link: LinkClass) -> tuple[Pattern, float]:
    """A pattern in which every member does the same, and the seconds by which it must begin later.

    Args:
        pattern: transfers between members that are all in different servers.
        link: between them.
    """
    sent = np.bincount(pattern.source, pattern.bytes * pattern.count, pattern.members)
    even = ring(pattern.members, -(-int(sent.max()) // PIECES), PIECES)
    return even, max(0.0, _alone(pattern, link) - _alone(even, link))


def _alone(pattern: Pattern, link: LinkClass) -> float:
    """Seconds that a pattern takes when each member has its own way out and in, and nothing else uses them."""
    n, edges = pattern.members, len(pattern)
    capacity = np.full(2 * n, int(link.bandwidth * CAPACITY_PER_BYTE), np.int64)
    ends = np.stack([pattern.source, n + pattern.target], axis=1).reshape(-1)
    latency = np.full(edges, round(link.latency * PICOSECONDS_PER_SECOND), np.int64)
    wires = Wires(capacity, Ragged(ends.astype(np.int32), np.arange(edges + 1, dtype=np.int64) * 2), latency)
    zeros = np.zeros(n, np.int32)
    graph = Graph(
        np.full(n, Task.COLLECTIVE, np.int8), zeros - 1, zeros.astype(np.int64), zeros, np.arange(n, dtype=np.int32),
        Ragged.empty(n, np.int32), 0, collectives=(Collective(pattern, np.arange(edges, dtype=np.int32)),),
        instances=np.zeros(1, np.int32),
    )  # fmt: skip
    return int(play(graph, wires).finish.max(initial=0)) / PICOSECONDS_PER_SECOND
