"""What belongs together across ranks: the members of a collective, the two ends of a message."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.prediction.timeline import Slices
from triosim.schedule.program import COLLECTIVES, Op


def collective_kind(name: str) -> str:
    """The kind of collective that a slice's name tells of, one of :data:`COLLECTIVES`, or ``""``.

    ``"all_reduce"``, ``"all-reduce dp"`` and ``"AllReduce"`` are all ``"all_reduce"``.
    """
    plain = "".join(c for c in name.lower() if c.isalpha())
    kinds = sorted(COLLECTIVES, key=len, reverse=True)  # "reduce_scatter" before "reduce"
    return next((kind for kind in kinds if kind.replace("_", "") in plain), "")


def occurrence(*columns: NDArray) -> NDArray[np.int64]:
    """For each row, how many earlier rows are equal in all columns."""
    n = len(columns[0])
    order = np.lexsort((np.arange(n), *columns))
    new = np.ones(n, bool)
    if n > 1:
        new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = np.maximum.accumulate(np.where(new, np.arange(n), 0))
    out = np.empty(n, np.int64)
    out[order] = np.arange(n) - first
    return out


def meetings(slices: Slices) -> NDArray[np.int64]:
    """A number for each slice that the members of one collective, or a send and its arrival, share; -1 for the rest.

    Members meet in order: the k-th collective of a group on one rank is the k-th of that group on every other rank.
    """
    out = np.full(len(slices), -1, np.int64)
    together = np.flatnonzero((slices.op == Op.COLLECTIVE) & (slices.group >= 0))
    if len(together):
        together = together[np.argsort(slices.start[together], kind="stable")]
        group, stream = slices.group[together], slices.stream[together]
        count = occurrence(slices.rank[together], group, stream)
        _, number = np.unique(np.stack([group, stream, count]), axis=1, return_inverse=True)
        out[together] = number.reshape(-1)
    paired = np.flatnonzero(((slices.op == Op.SEND) | (slices.op == Op.RECEIVE)) & (slices.pair >= 0))
    if len(paired):
        _, number = np.unique(slices.pair[paired], return_inverse=True)
        out[paired] = number.reshape(-1) + out.max(initial=-1) + 1
    return out


def spans(slices: Slices) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """From when to when a picture shows each slice: when it took its stream, when it began to work, when it ended.

    A receive takes no stream and no time of its own; it is shown while what it receives is under way.
    """
    start, begin, end = slices.start.copy(), slices.begin.copy(), slices.end.copy()
    sends = np.flatnonzero((slices.op == Op.SEND) & (slices.pair >= 0))
    arrivals = np.flatnonzero((slices.op == Op.RECEIVE) & (slices.pair >= 0))
    if len(sends) and len(arrivals):
        sends = sends[np.argsort(slices.pair[sends], kind="stable")]
        at = np.minimum(np.searchsorted(slices.pair[sends], slices.pair[arrivals]), len(sends) - 1)
        found = slices.pair[sends[at]] == slices.pair[arrivals]
        send, arrival = sends[at[found]], arrivals[found]
        start[arrival] = begin[arrival] = slices.begin[send]
        end[arrival] = slices.end[send]
    return start, begin, end
