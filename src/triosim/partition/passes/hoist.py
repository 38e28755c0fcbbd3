"""Hoisting: what a unit needs is launched when a unit before it begins, so that it is there in time (prefetching)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def hoist(units: Sequence[T], ahead: int) -> list[T]:
    """For each unit the one at whose beginning what it needs is launched.

    Args:
        units: in the order in which they begin.
        ahead: how many units before; the first ones launch for themselves what they cannot have launched before.
    """
    return [unit if at < ahead else units[at - ahead] for at, unit in enumerate(units)]
