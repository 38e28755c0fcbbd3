"""Cutting a row of work in places: the slowest part as fast as possible, and over its cuts as little as possible.

Numbers only: what is cut knows :mod:`triosim.schedule.cutting`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def _alike_possible(ends: Sequence[float], count: int, limit: float, issued: Sequence[float] | None) -> bool:
    """Whether ``count`` stages on equal devices are enough: each takes as much as it can within ``limit`` seconds.

    What fewer stages can do, more can too, as long as there are points to cut at.

    Args:
        ends: time of the work before each point and before the end.
        count: number of stages.
        limit: seconds.
        issued: as ``ends``, what the hosts take for the same work; None where that is nothing.
    """
    done, begun, at = 0.0, 0.0, 0
    for _ in range(count):
        last = at
        at = bisect_right(ends, done + limit, last)  # plain numbers: an array's search costs ten times as much
        if issued is not None:
            at = min(at, bisect_right(issued, begun + limit, last))
        if at == len(ends):
            return True
        if at <= last:
            return False
        done, begun = ends[at - 1], issued[at - 1] if issued is not None else 0.0
    return False


def _possible(
    before: NDArray[np.float64], points: NDArray[np.int64], limit: float, issued: NDArray[np.float64] | None
) -> bool:
    """Whether each stage can have some of the work within ``limit`` seconds, cutting only at ``points``.

    Stage by stage: an end can be reached if the latest end of the stage before that lies before it is near enough.
    More is not needed, since a shorter stage is never slower.  Taking as much as one can is wrong here: what comes next
    may be too much for the device of the next stage, and not for the one after it.

    Args:
        before: time of the work before each position, by stage, shape (stages, n + 1).
        points: where cuts are allowed, ascending, shape (p,).
        limit: seconds.
        issued: time that the hosts take for the work before each position, shape (n + 1,), or None.
    """
    ends = np.append(points, before.shape[1] - 1)  # (p + 1,)
    hosts = np.zeros(len(ends)) if issued is None else issued[ends]
    first = before[0]
    reached = (first[ends] <= limit) & (hosts <= limit)
    for own in before[1:]:
        at = np.arange(len(ends))
        latest = np.maximum.accumulate(np.where(reached, at, -1))  # the last end so far that can be reached
        start = np.concatenate([[-1], latest[:-1]])
        begin = np.maximum(start, 0)
        reached = (start >= 0) & (own[ends] - own[ends[begin]] <= limit) & (hosts - hosts[begin] <= limit)
    return bool(reached[-1])


def bottleneck(
    before: NDArray[np.float64], cost: NDArray[np.float64], points: Sequence[int],
    issued: NDArray[np.float64] | None = None,
) -> float:  # fmt: skip
    """The smallest possible time of the slowest stage or of the sends between stages (bisection).

    Sends run beside computation, so a cut must only not take longer than the slowest stage.  Hosts issue beside it too:
    a stage takes as long as its device or as its host, whichever is slower (``issued``, as of :func:`_possible`).
    """
    count, at = len(before), np.array(points, np.int64)
    sends, alike = cost[at], not before.strides[0] or bool((before == before[0]).all())
    slowest, every = float(sends.max(initial=0.0)), before[0][np.append(at, before.shape[1] - 1)].tolist()

    def possible(limit: float) -> bool:
        open_ = at if slowest <= limit else at[sends <= limit]
        if len(open_) < count - 1:
            return False
        if not alike:
            return _possible(before, open_, limit, issued)
        ends = every if open_ is at else before[0][np.append(open_, before.shape[1] - 1)].tolist()
        hosts = None if issued is None else issued[np.append(open_, before.shape[1] - 1)].tolist()
        return _alike_possible(ends, count, limit, hosts)

    # no stage beats its part of the work, each operator on the device that is fastest at it
    least = before[0, -1] if alike else np.diff(before).min(axis=0).sum()
    hosts = 0.0 if issued is None else float(issued[-1])
    low, high = max(float(least), hosts) / count, max(float(before[:, -1].max()), hosts) + float(cost.max())
    if possible(low * (1 + 1e-9)):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
        if high - low <= 1e-10 * high:
            break
    return high


def _even(before: NDArray[np.float64]) -> float:
    """Seconds that each stage would take if work could be divided at will, in proportion to how fast each device is."""
    totals = before[:, -1]
    if (totals == totals[0]).all():
        return float(totals[0]) / len(totals)
    return float(1 / np.sum(1 / totals)) if (totals > 0).all() else 0.0


def lightest(
    before: NDArray[np.float64], crossing: NDArray[np.float64], points: Sequence[int], limit: float,
    issued: NDArray[np.float64] | None = None,
) -> list[int]:  # fmt: skip
    """Cuts within the limit over which the fewest bytes cross (then the most even); one stage for each row.

    ``issued`` is as of :func:`bottleneck`; stages are even in what takes longer over all of them.
    """
    limit *= 1 + 1e-9
    starts = np.array([0, *points], np.int64)
    hosts = np.zeros(before.shape[1]) if issued is None else issued
    bound = bool(hosts[-1] > before[:, -1].max())  # by hosts
    begun, whole = hosts[starts].tolist(), float(hosts[-1])
    even, crosses = whole / len(before) if bound else _even(before), crossing[starts].tolist()
    # plain numbers: what is read one at a time here is no array's
    alike = not before.strides[0]
    alone = [before[0][starts].tolist()] * len(before) if alike else [own[starts].tolist() for own in before]
    latest = np.maximum(
        _latest(before, starts, limit), _latest(hosts[None].repeat(len(before), 0), starts, limit)
    ).tolist()
    best: list[dict[int, tuple[float, float]]] = [{0: (0.0, 0.0)}]
    origin: list[dict[int, int]] = []
    for done, last in zip(alone[:-1], latest[1:], strict=True):
        previous = best[-1]
        row: dict[int, tuple[float, float]] = {}
        came: dict[int, int] = {}
        window: deque[int] = deque()
        least = min(previous, default=len(done))
        for k in range(least + 1, len(done)):
            if k - 1 in previous:
                while window and previous[window[-1]] >= previous[k - 1]:
                    window.pop()
                window.append(k - 1)
            while window and (done[k] - done[window[0]] > limit or begun[k] - begun[window[0]] > limit):
                window.popleft()
            if window and k >= last:
                weight, uneven = previous[window[0]]
                took = begun[k] - begun[window[0]] if bound else done[k] - done[window[0]]
                row[k] = (weight + crosses[k], uneven + abs(took - even))
                came[k] = window[0]
            elif not window and k > max(previous):
                break
        best.append(row)
        origin.append(came)
    ends, left = best[-1], (before[-1, -1] - before[-1, starts]).tolist()
    allowed = [k for k in sorted(ends) if left[k] <= limit and whole - begun[k] <= limit]
    k = min(allowed, key=lambda i: ends[i])
    cuts = []
    for came in reversed(origin):
        cuts.append(int(starts[k]))
        k = came[k]
    return cuts[::-1]


def _latest(before: NDArray[np.float64], starts: NDArray[np.int64], limit: float) -> list[int]:
    """For each stage the first of the points at which it may begin so that it and those after it have time enough."""
    found = [len(starts)] * len(before)
    end = before.shape[1] - 1
    for stage in range(len(before) - 1, -1, -1):
        own = before[stage]
        # what is rounded otherwise here than there is left in
        found[stage] = int(np.searchsorted(own[starts], own[end] - limit * (1 + 1e-9) - 1e-9 * own[-1], side="left"))
        end = int(starts[min(found[stage], len(starts) - 1)])
    return found
