"""Collectives whose parts differ: all-gather-v, reduce-scatter-v and all-to-all-v.

An edge of a pattern moves equal amounts, so every part of every member is an edge of its own: n (n - 1) of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.collectives.algorithm import CollectiveSchedule
from triosim.collectives.pattern import in_flight
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.graph import Pattern

KINDS = ("all_gather", "reduce_scatter", "all_to_all")


def schedule(kind: str, sizes: ArrayLike, peers: int | None = None) -> CollectiveSchedule:
    """The pattern of a collective with uneven parts: rings for gathering and reducing, direct exchanges.

    Args:
        kind: one of :data:`KINDS`.
        sizes: bytes of each member's part, shape ``(members,)``; for all_to_all what each member (row) sends to each
            (column), shape ``(members, members)``, its own part included.
        peers: to how many an all-to-all lets each send, and from how many get, at a time; all at once if None.

    Raises:
        InputError: there is no such kind, or sizes have another shape or are negative, or peers are not at least 1.
    """
    parts = np.asarray(sizes, np.int64)
    if kind not in KINDS:
        raise InputError(f"{kind} has no uneven parts: use {', '.join(KINDS)}")
    wanted = 2 if kind == "all_to_all" else 1
    if parts.ndim != wanted or not parts.size or len(set(parts.shape)) > 1:
        shape = "members x members" if wanted == 2 else "one for each member"
        raise InputError(f"{kind} with uneven parts: sizes must be {shape}, got shape {parts.shape}")
    if (parts < 0).any():
        raise InputError(f"{kind} with uneven parts: a part has {int(parts.min())} bytes: the least is 0")
    pattern = _exchange(parts, in_flight(peers)) if kind == "all_to_all" else _ring(parts, gathers=kind == "all_gather")
    return CollectiveSchedule(pattern, tuple(range(len(parts))))


def full_buffer(kind: str, sizes: ArrayLike) -> int:
    """Bytes of the full buffer: all parts together, for all_to_all the most that one member sends."""
    parts = np.asarray(sizes, np.int64)
    return int(parts.sum(axis=1).max() if kind == "all_to_all" else parts.sum())


def _ring(parts: NDArray[np.int64], gathers: bool) -> Pattern:
    """In step k, member p passes on the part of p - k (gathering) or of p - k - 1 (reducing), that it got in step
    k - 1; its own transfer before must have been delivered."""
    n = len(parts)
    step, member = (x.ravel() for x in np.meshgrid(np.arange(n - 1), np.arange(n), indexing="ij"))
    part = (member - step - (0 if gathers else 1)) % n
    edge = np.arange(len(step))
    later = step > 0
    needs = np.stack([edge - n, edge - n - member + (member - 1) % n], axis=1)[later]
    offsets = np.concatenate([[0], np.cumsum(2 * later)])
    return _single(n, member, (member + 1) % n, parts[part], Ragged(needs.ravel().astype(np.int32), offsets))


def _exchange(parts: NDArray[np.int64], peers: int | None) -> Pattern:
    """Everyone to everyone, the nearest to the right first; what is empty is not sent.

    A transfer waits for the one ``peers`` places before it among those that its sender sends, and among those that its
    receiver gets.
    """
    n = len(parts)
    source, target = np.nonzero((parts > 0) & ~np.eye(n, dtype=bool))
    needs = Ragged.empty(len(source), np.int32)
    if peers is not None:
        distance = (target - source) % n
        before = np.stack([_before(end, distance, peers) for end in (source, target)], axis=1)
        there = before >= 0
        offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        needs = Ragged(before[there].astype(np.int32), offsets)
    return _single(n, source, target, parts[source, target], needs)


def _before(end: NDArray, distance: NDArray, places: int) -> NDArray:
    """Of each transfer the one so many places before it, by distance, among those with the same end; -1 for none."""
    order = np.lexsort((distance, end))
    before = np.full(len(end), -1)
    same = end[order[places:]] == end[order[:-places]]
    before[order[places:][same]] = order[:-places][same]
    return before


def _single(members: int, source: NDArray, target: NDArray, sizes: NDArray, needs: Ragged) -> Pattern:
    edges = len(source)
    return Pattern(
        members, source.astype(np.int32), target.astype(np.int32), sizes.astype(np.int64), np.ones(edges, np.int32),
        needs, np.zeros(len(needs.values), np.int32), np.zeros(edges, np.int64),
    )  # fmt: skip
