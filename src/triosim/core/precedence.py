"""An order in which each row comes after all that it waits for, or the circle that leaves none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def order_after(before: Sequence[Iterable[int]]) -> tuple[list[int], list[int]]:
    """Rows with the lowest first, but each after all that it waits for.

    Args:
        before: for each row the rows that it waits for; one may be named twice.

    Returns:
        The order, of all rows where none wait for each other; and the rows of a circle that leaves others out, each
        before the one that waits for it and the lowest first, or none.
    """
    from heapq import heapify, heappop, heappush

    needs = [set(rows) for rows in before]
    waiting = [len(rows) for rows in needs]
    after: list[list[int]] = [[] for _ in needs]
    for row, rows in enumerate(needs):
        for other in rows:
            after[other].append(row)
    ready = [row for row, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        row = heappop(ready)
        order.append(row)
        for following in after[row]:
            waiting[following] -= 1
            if not waiting[following]:
                heappush(ready, following)
    return order, _circle(needs, waiting)


def _circle(needs: Sequence[set[int]], waiting: Sequence[int]) -> list[int]:
    """A circle among rows that are never ready, in the order in which work would flow."""
    row = next((row for row, count in enumerate(waiting) if count), None)
    if row is None:
        return []
    seen: dict[int, int] = {}
    path: list[int] = []
    while row not in seen:
        seen[row] = len(path)
        path.append(row)
        row = min(other for other in needs[row] if waiting[other])
    circle = path[seen[row] :][::-1]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]
