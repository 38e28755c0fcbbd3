"""Patterns that several algorithms are made of: rings, chains, stars and exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.limits import check_memory
from triosim.engine.graph import Pattern

EDGE_BYTES = 600
"""Memory of one sending of one member to another, from the pattern to the played job."""


def pattern(
    members: int, source: NDArray, target: NDArray, size: int, count: int = 1, needs: Ragged | None = None, lag: int = 0
) -> Pattern:
    """A pattern whose edges are alike.

    Args:
        members: members of the group, all positions.
        source, target: positions of each edge.
        size: bytes of each transfer.
        count: transfers of each edge.
        needs: edges that each edge needs, none if not given.
        lag: of everything that is needed.
    """
    edges = len(source)
    if needs is None:
        needs = Ragged.empty(edges, np.int32)
    return Pattern(
        members, source.astype(np.int32), target.astype(np.int32), np.full(edges, size, np.int64),
        np.full(edges, count, np.int32), needs, np.full(len(needs.values), lag, np.int32), np.zeros(edges, np.int64),
    )  # fmt: skip


def ring(members: int, size: int, count: int) -> Pattern:
    """Everyone sends ``count`` times to the next, each time after having got what the one before sent last."""
    n = members if members > 1 and count else 0
    at = np.arange(n)
    needs = Ragged((at - 1).astype(np.int32) % max(n, 1), np.arange(n + 1, dtype=np.int64))
    return pattern(members, at, (at + 1) % max(n, 1), size, count, needs, lag=1)


def rings(orders: Sequence[Sequence[int]], size: int, count: int) -> Pattern:
    """Several rings through the same members, each in its order of them, all at once."""
    members = len(orders[0])
    at = np.array(orders, np.int64)
    edge = np.arange(at.size).reshape(at.shape)
    needs = Ragged(np.roll(edge, 1, axis=1).ravel().astype(np.int32), np.arange(at.size + 1, dtype=np.int64))
    return pattern(members, at.ravel(), np.roll(at, -1, axis=1).ravel(), size, count, needs, lag=1)


def chain(members: int, size: int, count: int) -> Pattern:
    """Position 0 sends ``count`` pieces to the next, which passes each on when it has come, and so on to the last."""
    n = members - 1 if count else 0
    at = np.arange(n)
    needs = Ragged(at[:-1].astype(np.int32), np.maximum(np.arange(-1, n, dtype=np.int64), 0))
    return pattern(members, at, at + 1, size, count, needs)


def to_first(members: int, size: int) -> Pattern:
    """Everyone sends to position 0 at once."""
    others = np.arange(1, members)
    return pattern(members, others, np.zeros(len(others)), size)


def from_first(members: int, size: int) -> Pattern:
    """Position 0 sends to everyone at once."""
    others = np.arange(1, members)
    return pattern(members, np.zeros(len(others)), others, size)


def exchange(members: int, size: int, peers: int | None = None) -> Pattern:
    """Everyone sends to everyone; first the edges to the next position, then those to the one after it.

    Args:
        members: members of the group, all positions.
        size: bytes of each transfer.
        peers: to how many each sends at a time, and from how many it gets: a transfer waits for the one so many
            places before it at its sender and for that at its receiver.  All at once if None.
    """
    source, target = _rounds(members)
    if peers is None:
        return pattern(members, source, target, size)
    edges = np.arange(len(source))
    sent = edges - peers * members
    got = sent - sent % members + (target - sent // members - 1) % members
    later = sent >= 0
    needs = np.stack([sent, got], axis=1)[later].ravel()
    offsets = np.concatenate([[0], np.cumsum(2 * later)]).astype(np.int64)
    return pattern(members, source, target, size, needs=Ragged(needs.astype(np.int32), offsets))


def in_flight(peers: int | None) -> int | None:
    """``peers`` if it can be a number of transfers at a time.

    Raises:
        InputError: it is less than 1.
    """
    if peers is not None and peers < 1:
        raise InputError(f"all_to_all with {peers} peers at a time: the least is 1")
    return peers


def rounds(members: int, size: int) -> Pattern:
    """In round s everyone sends to the position s + 1 places on; who has sent and got what a round has for it goes on
    to the next."""
    source, target = _rounds(members)
    edges = np.arange(len(source))
    own = edges - members
    got = own - own % members + (source - edges // members) % members  # who is s places before, in the round before
    later = edges >= members
    needs = np.stack([own, got], axis=1)[later].ravel()
    offsets = np.concatenate([[0], np.cumsum(2 * later)]).astype(np.int64)
    return pattern(members, source, target, size, needs=Ragged(needs.astype(np.int32), offsets))


def _rounds(members: int) -> tuple[NDArray, NDArray]:
    check_memory(members * (members - 1) * EDGE_BYTES, f"an all-to-all of {members:,} members", "use smaller groups")
    source = np.tile(np.arange(members), members - 1)
    return source, (source + np.repeat(np.arange(1, members), members)) % members
