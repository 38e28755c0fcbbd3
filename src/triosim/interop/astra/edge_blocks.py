"""Builds the pattern of a collective, many edges at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.engine.graph import ALL, Pattern

PER_NS = 1000
"""Picoseconds in a nanosecond."""

Rows = NDArray[np.int64]
Needs = Sequence[tuple[Rows, int]]
"""(edge that each new edge needs, lag): one pair for each thing that all new edges wait for."""


class EdgeBlocks:
    """Edges of a pattern in blocks: one edge from each of some positions, all alike but for their ends.

    Args:
        members: positions of the pattern.
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self._columns: list[tuple[NDArray, ...]] = []
        self._needs: list[NDArray[np.int64]] = []
        self._lags: list[NDArray[np.int64]] = []
        self._edges = 0

    def add(
        self, source: NDArray, target: NDArray, size: int, *, count: int = 1, pause_ps: int = 0, needs: Needs = ()
    ) -> Rows:
        """Append an edge from each ``source`` to the ``target`` beside it.

        Args:
            source, target: positions, shape ``(n,)``.
            size: bytes of each transfer.
            count: transfers of each edge.
            pause_ps: picoseconds before each transfer.
            needs: what each of the edges waits for; the edges of one pair have shape ``(n,)``.

        Returns:
            the new edges, shape ``(n,)``.
        """
        n = len(source)
        one = np.ones(n, np.int64)
        self._columns.append((source, target, one * size, one * count, one * pause_ps, one * len(needs)))
        if needs:
            self._needs.append(np.stack([edges for edges, _ in needs], axis=1).reshape(-1))
            self._lags.append(np.tile([lag for _, lag in needs], n))
        self._edges += n
        return np.arange(self._edges - n, self._edges)

    def add_following(
        self, source: NDArray, target: NDArray, size: int, *, count: int, pause_ps: int, needs: Needs, before: NDArray
    ) -> Rows:
        """As :meth:`add`, and each transfer but the first waits for the one before it of the new edge at index
        ``before`` as well: a ring."""
        following = np.arange(self._edges, self._edges + len(source))[before]
        ring = [(following, 1)] if count > 1 else []
        return self.add(source, target, size, count=count, pause_ps=pause_ps, needs=[*needs, *ring])

    def rest(self, where: NDArray, pause_ps: int, needs: Needs) -> Rows:
        """A pause at each position ``where`` after what it needs, as an edge of no bytes from it to itself."""
        return self.add(where, where, 0, pause_ps=pause_ps, needs=needs)

    def pattern(self) -> Pattern:
        """The pattern of all edges so far."""
        columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)]
        source, target, size, count, pause, lengths = columns
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Pattern(
            members=self.members,
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            bytes=size.astype(np.int64),
            count=count.astype(np.int32),
            needs=Ragged(_joined(self._needs).astype(np.int32), offsets),
            lag=_joined(self._lags).astype(np.int32),
            pause=pause.astype(np.int64),
        )


def all_of(edges: Rows) -> tuple[Rows, int]:
    """Wait for the last transfer of these edges."""
    return edges, ALL


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
