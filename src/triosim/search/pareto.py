"""The Pareto front: what no other is at least as good as in everything, and better in something."""

from __future__ import annotations

from collections.abc import Sequence

Costs = tuple[float, ...]
"""What something costs in several ways, less is better in each."""


def dominates(one: Costs, other: Costs) -> bool:
    """Whether one costs no more than another in anything."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def pareto_front(costs: Sequence[Costs]) -> list[int]:
    """Places of what is on the front, in order of cost; of equals the first."""
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda i: (costs[i], i)):  # what dominates another comes before it
        if not any(dominates(costs[known], costs[place]) for known in found):
            found.append(place)
    return found
