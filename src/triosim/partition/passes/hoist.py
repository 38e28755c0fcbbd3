"""Hoisting: what a unit needs is launched when a unit before it begins, so that it is there in time (prefetching)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def hoist(units: Sequence[T], ahead: int) -> list[T]:
    """For each unit the one at whose beginning what it needs is launched.

    Args:
        units: in the order in which they begin.
        ahead: how many units before; where there are not so many, the first one launches it.
    """
    return [units[max(at - ahead, 0)] for at in range(len(units))]
