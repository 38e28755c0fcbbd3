"""Half-open intervals of time as pairs of columns, in ticks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def union(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Length of the union of intervals."""
    return int((np.subtract(*merged(start, end)[::-1])).sum())


def merged(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The union of intervals as disjoint ones in ascending order."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return start, end
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > end[:-1])
    last = np.append(first[1:], True)
    return start[first], end[last]


def covered(
    begin: NDArray[np.int64], finish: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How much of each interval from ``begin`` to ``finish`` the disjoint ascending ones of :func:`merged` cover."""
    if not len(start):
        return np.zeros(len(begin), np.int64)
    before = np.concatenate([[0], np.cumsum(end - start)])

    def until(at: NDArray[np.int64]) -> NDArray[np.int64]:
        n = np.searchsorted(start, at, side="right") - 1
        last = np.maximum(n, 0)
        return np.where(n >= 0, before[last] + np.minimum(at, end[last]) - start[last], 0)

    return until(finish) - until(begin)
