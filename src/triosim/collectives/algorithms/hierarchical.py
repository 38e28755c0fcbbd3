"""Hierarchical: inside each server first, then between servers, then inside again.

Members reduce-scatter in their server, so that each holds a part; those of the same place in all servers all-reduce
their part over the network, each through its own way out; then each server gathers (Horovod's hierarchical all-reduce;
Cho et al., "BlueConnect", MLSys 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.group import Group, blocks_of
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.engine.graph import ALL, Pattern


@registered
class Hierarchical(Algorithm):
    """Rings in servers and rings between servers, one after the other; every server with as many members."""

    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    placed = True

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`.

        Raises:
            InputError: servers have different numbers of members.
        """
        blocks = blocks_of(group, members)
        if len({len(b) for b in blocks}) > 1:
            counts = " and ".join(str(n) for n in sorted({len(b) for b in blocks}))
            raise InputError(
                f"collective algorithm 'hierarchical' needs as many members in every server, got {counts}: "
                "use auto or ring"
            )
        grid = np.stack(blocks)
        servers, width = grid.shape
        inside = (grid, np.roll(grid, -1, axis=1), part(size, width), width - 1)
        across = (grid, np.roll(grid, -1, axis=0), part(part(size, width), servers), servers - 1)
        phases = {
            "reduce_scatter": [inside, across],
            "all_gather": [across, inside],
            "all_reduce": [inside, (*across[:3], 2 * across[3]), inside],
        }[kind]
        return CollectiveSchedule(_phases(members, [p for p in phases if p[3] and size]), tuple(range(members)))


def _phases(members: int, phases: list[tuple[NDArray, NDArray, int, int]]) -> Pattern:
    """Rings one after the other: ``(senders, receivers, bytes, count)``; an edge waits for the one before it in its
    ring, and for the whole of the edge by which its sender was served in the phase before."""
    source, target, sizes, counts, needs, lags, lengths = [], [], [], [], [], [], []
    served, first = np.full(members, -1, np.int64), 0
    for senders, receivers, size, count in phases:
        start, end = senders.ravel(), receivers.ravel()
        edge = np.full(members, -1, np.int64)
        edge[end] = first + np.arange(len(end))
        wanted = np.stack([edge[start], served[start]], axis=1)
        there = wanted >= 0
        needs.append(wanted[there])
        lags.append(np.broadcast_to(np.array([1, ALL]), wanted.shape)[there])
        lengths.append(there.sum(axis=1))
        source.append(start)
        target.append(end)
        sizes.append(np.full(len(start), size, np.int64))
        counts.append(np.full(len(start), count, np.int32))
        served, first = edge, first + len(start)
    empty = [np.zeros(0, np.int64)]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths or empty))]).astype(np.int64)
    return Pattern(
        members, np.concatenate(source or empty).astype(np.int32), np.concatenate(target or empty).astype(np.int32),
        np.concatenate(sizes or empty), np.concatenate(counts or empty).astype(np.int32),
        Ragged(np.concatenate(needs or empty).astype(np.int32), offsets),
        np.concatenate(lags or empty).astype(np.int32), np.zeros(first, np.int64),
    )  # fmt: skip
