"""Rows of a picture: slices that overlap in time go to different lanes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct


def lanes(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """A lane for each slice, 0 first, so that slices of one track and lane never overlap.

    An in-order stream needs one lane; arrivals, which are on no stream, may need more.
    """
    order = by_track(track, start, end)
    lane = np.empty(len(track), np.int64)
    lane[order] = lanes_in_order(track[order], start[order], end[order])
    return lane


def by_track(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of slices in the order of track, start and end; what is equal in all stays in order.

    Args:
        track: 0 or more.
        start, end: of each slice.  Within most tracks they are in order already.
    """
    narrow = track.astype(np.uint16) if track.max(initial=0) < 1 << 16 else track  # which NumPy sorts by digits
    order = np.argsort(narrow, kind="stable")
    tracks, starts, ends = track[order], start[order], end[order]
    earlier = starts[1:] < starts[:-1]
    earlier |= (starts[1:] == starts[:-1]) & (ends[1:] < ends[:-1])
    mixed = tracks[1:][earlier & (tracks[1:] == tracks[:-1])]
    if len(mixed):  # not every track is in order, as streams are: those few are put in order
        rows = np.flatnonzero(np.isin(tracks, distinct(mixed)))
        order[rows] = order[rows[np.lexsort((ends[rows], starts[rows], tracks[rows]))]]
    return order


def lanes_in_order(track: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """:func:`lanes` of slices that are in the order of track, start and end."""
    lane = np.zeros(len(track), np.int64)
    clash = np.flatnonzero((track[1:] == track[:-1]) & (start[1:] < end[:-1]))
    for crowded in np.unique(track[clash]).tolist():
        free: list[int] = []
        first, last = np.searchsorted(track, [crowded, crowded + 1]).tolist()
        for row, (begins, ends) in enumerate(zip(start[first:last].tolist(), end[first:last].tolist(), strict=True)):
            at = next((i for i, until in enumerate(free) if until <= begins), len(free))
            free[at : at + 1] = [ends]
            lane[first + row] = at
    return lane
