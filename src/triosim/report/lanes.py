"""Rows of a picture: slices that overlap in time go to different lanes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lanes(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """A lane for each slice, 0 first, so that slices of one track and lane never overlap.

    An in-order stream needs one lane; arrivals, which are on no stream, may need more.
    """
    lane = np.zeros(len(track), np.int64)
    order = np.lexsort((end, start, track))
    clash = (track[order][1:] == track[order][:-1]) & (start[order][1:] < end[order][:-1])
    for crowded in np.unique(track[order[1:][clash]]):
        free: list[int] = []
        for row in order[track[order] == crowded].tolist():
            at = next((i for i, until in enumerate(free) if until <= start[row]), len(free))
            free[at : at + 1] = [int(end[row])]
            lane[row] = at
    return lane
