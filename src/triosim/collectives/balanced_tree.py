"""A tree over several servers, with its load spread evenly.

Two binary trees give almost every member the same to do: an inner node of the one is a leaf of the other, and sends and
receives the whole buffer twice (Sanders, Speck and Traeff 2009).  Edge by edge they tell all members apart, though,
which means to follow every one of them where following one would do, and how their pieces happen to interleave on a
shared link decides about several percent of the time.  So what is played is the load: every member sends as much as the
busiest member of the trees does, to the same kinds of neighbours.  How long that takes is what
:func:`triosim.collectives.pricing.isolated_seconds` says of the trees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import CollectiveSchedule
from triosim.collectives.algorithms.tree import PIECES
from triosim.collectives.group import Group, blocks_of
from triosim.collectives.pattern import ring
from triosim.collectives.rails import rail_rings
from triosim.core.caching import kept
from triosim.engine.graph import Pattern


def balanced_tree(members: int, inside: int, between: int, group: Group) -> CollectiveSchedule:
    """A ring in the place of trees over several servers.

    Args:
        members: of the group.
        inside, between: bytes that the busiest member sends to others of its server, and to other servers.
        group: where the members are.
    """
    even, order, crosses = _ring(members, np.asarray(group.server, np.int32))
    sent = np.where(crosses, -(-between // PIECES), -(-inside // PIECES)).astype(np.int64)
    return CollectiveSchedule(replace(even, bytes=sent), order)


@kept(16)
def _ring(members: int, servers: NDArray[np.int32]) -> tuple[Pattern, tuple[int, ...], NDArray[np.bool_]]:
    """The ring, its order, and which of its edges go to another server, whatever is sent."""
    blocks = blocks_of(Group(servers), members)
    if len(blocks[0]) > 1 and len({len(block) for block in blocks}) == 1:
        order = np.arange(members)
        even = rail_rings(np.stack(blocks), 1, PIECES)
    else:
        order = np.concatenate(blocks)
        even = ring(members, 1, PIECES)
    server = servers[order]
    return even, tuple(order.tolist()), server[even.source] != server[even.target]
