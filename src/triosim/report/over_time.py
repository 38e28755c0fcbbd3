"""What happens over time, in equal parts of it: for curves of a page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def mean_value(time: Times, value: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean between edges of what is ``value`` from ``time`` on, ascending, and 0 before."""
    if not len(time):
        return np.zeros(len(edges) - 1)
    area = np.append(0.0, np.cumsum(value[:-1] * np.diff(time).astype(np.float64)))
    after = np.maximum(edges - time[-1], 0.0) * value[-1]
    return np.diff(np.interp(edges, time, area) + after) / np.diff(edges)


def most_value(time: Times, value: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest value between edges, likewise."""
    kept = np.append(0, value)
    entering = kept[np.searchsorted(time, edges[:-1], "right")].astype(np.float64)
    within = np.clip(np.searchsorted(edges, time, "right") - 1, 0, len(edges) - 2)
    np.maximum.at(entering, within, value)
    return entering


def share_of_time(begin: Times, end: Times, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Part of the time between edges that spans cover, which are in order and do not overlap."""
    if not len(begin):
        return np.zeros(len(edges) - 1)
    length = (end - begin).astype(np.float64)
    until = np.cumsum(length)
    time = np.stack([begin, end], 1).reshape(-1)
    covered = np.stack([until - length, until], 1).reshape(-1)
    return np.diff(np.interp(edges, time, covered)) / np.diff(edges)
