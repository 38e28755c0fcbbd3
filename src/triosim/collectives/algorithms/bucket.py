"""Bucket: a buffer in several parts, each of which goes along the sides of a torus in an order of its own.

A part is gathered along one side, then what was gathered along the next.  With a part for each side to begin with and
each way round it, all links of a member are busy from begin to end (Jain and Sabharwal, "Optimal bucket algorithms for
large MPI collectives on torus interconnects", ICS 2010).  So do TPUs: time is bytes over the bandwidth of all axes of
the torus together, and a hop for each member on the way (Austin et al., "How to Scale Your Model", 2025, section 3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.group import Group
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.engine.graph import Pattern
from triosim.network.torus_box import BoxSide


@registered
class Bucket(Algorithm):
    """Members that form a box of a torus.

    What is played has the load and the duration of the algorithm, not the way of each byte: on every side rings, all at
    once, that carry as much as the side has bandwidth for, in as many steps as the farthest member is away.
    """

    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    placed = True

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`.

        Raises:
            InputError: the members form no box of a torus.
        """
        if members == 1:
            return CollectiveSchedule(_joined(1, [], [], []), (0,))
        if group is None or group.box is None:
            raise InputError(
                f"collective algorithm 'bucket' needs {members} members that form a box of a torus: use auto or ring"
            )
        box, rounds = group.box, 2 if kind == "all_reduce" else 1
        sent = rounds * (size - size // members)
        hops = rounds * sum(side.farthest for side in box.sides)
        orders, sizes, counts = [], [], []
        for axis, side in enumerate(box.sides):
            steps = max(1, round(hops / side.hop))
            ways = _ways(box.members, axis, side)
            for order in ways:
                orders.append(order)
                sizes.append(part(part(int(sent * side.links / box.links), len(ways)), steps))
                counts.append(steps)
        return CollectiveSchedule(_joined(members, orders, sizes, counts), tuple(range(members)))


def _ways(members: NDArray[np.int64], axis: int, side: BoxSide) -> list[NDArray[np.int64]]:
    """Rings along a side, a row each: one way round or both."""
    rings = np.moveaxis(members, axis, -1).reshape(-1, side.length)[:, side.cycle]
    return [rings, rings[:, ::-1]] if side.closed else [rings]


def _joined(members: int, orders: list[NDArray[np.int64]], sizes: list[int], counts: list[int]) -> Pattern:
    """All rings at once; each transfer waits for the one before it on its ring."""
    source, target, needs, first = [], [], [], 0
    for order in orders:
        edge = first + np.arange(order.size).reshape(order.shape)
        source.append(order.ravel())
        target.append(np.roll(order, -1, axis=1).ravel())
        needs.append(np.roll(edge, 1, axis=1).ravel())
        first += order.size
    empty = [np.zeros(0, np.int64)]
    lengths = [order.size for order in orders]
    return Pattern(
        members, np.concatenate(source or empty).astype(np.int32), np.concatenate(target or empty).astype(np.int32),
        np.repeat(np.array(sizes, np.int64), lengths), np.repeat(np.array(counts, np.int32), lengths),
        Ragged(np.concatenate(needs or empty).astype(np.int32), np.arange(first + 1, dtype=np.int64)),
        np.ones(first, np.int32), np.zeros(first, np.int64),
    )  # fmt: skip
