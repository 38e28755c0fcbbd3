"""Where a value is on one axis of the mesh: the words of DTensor and GSPMD."""

from __future__ import annotations

from dataclasses import dataclass

from triosim.trace.symbols import Segment as Shard


@dataclass(frozen=True)
class Replicate:
    """Each rank has all of it."""


@dataclass(frozen=True)
class Partial:
    """Each rank has a summand."""


Placement = Replicate | Shard | Partial
"""``Shard`` is a part of one dimension, of which each rank has an equal share: part ``size`` of the dimension
``outer * size * inner``, for rows of a flattened batch need the outer, fused projections the inner."""

REPLICATE, PARTIAL = Replicate(), Partial()

__all__ = ["PARTIAL", "REPLICATE", "Partial", "Placement", "Replicate", "Shard"]
