"""Rings through several servers, one for each member of a server, so that every way out of it is used.

Ring c enters a server at one member, passes through all others and leaves at the last; the rings are shifted against
each other, and every second server is passed through backwards, so that what leaves at a member's way out (its rail)
comes in at the same place of the next server (NCCL's rings with ``NCCL_CROSS_NIC=0``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.engine.graph import Pattern


def rail_rings(grid: NDArray[np.int64], size: int, count: int) -> Pattern:
    """All rings as one pattern of two edges for each member.

    In every step, all rings but one go from a member to its neighbour in the server, over one link: they are one edge.
    The ring that ends there goes on to the next server.

    Args:
        grid: members of each server, shape ``(servers, width)``, both at least 2.
        size: bytes that all rings together pass on in a step.
        count: steps.
    """
    servers, width = grid.shape
    own = -(-size // width)
    server, place = np.meshgrid(np.arange(servers), np.arange(width), indexing="ij")
    ahead = np.where(server % 2 == 0, 1, -1)
    inside_to = (place + ahead) % width
    across_to = place.copy()
    if servers % 2:  # from the last server to the first, both passed through forwards
        across_to[-1] = (place[-1] + 1) % width
    after = (server + 1) % servers
    inside = np.arange(servers * width).reshape(servers, width)
    across = inside + servers * width
    from_neighbour, from_server = np.empty_like(inside), np.empty_like(inside)
    from_neighbour[server, inside_to] = inside
    from_server[after, across_to] = across
    needs = np.stack([from_neighbour, from_server], axis=-1).reshape(-1, 2)
    values = np.concatenate([needs.ravel(), from_neighbour.ravel()]).astype(np.int32)
    lengths = np.repeat([2, 1], servers * width)
    half = servers * width
    return Pattern(
        half,
        np.concatenate([grid.ravel(), grid.ravel()]).astype(np.int32),
        np.concatenate([grid[server, inside_to].ravel(), grid[after, across_to].ravel()]).astype(np.int32),
        np.repeat(np.array([(width - 1) * own, own], np.int64), half),
        np.full(2 * half, count, np.int32),
        Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
        np.ones(len(values), np.int32),
        np.zeros(2 * half, np.int64),
    )
