"""Where a value is on one axis of the mesh: the words of DTensor and GSPMD."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.trace.symbols import Segment as Shard


@dataclass(frozen=True)
class Replicate:
    """Each rank has all of it."""


@dataclass(frozen=True)
class Partial:
    """Each rank has a summand."""


@dataclass(frozen=True)
class Varying:
    """Each rank has its own, which nobody adds up: the loss on its samples, the statistics of a batch norm."""


Placement = Replicate | Shard | Partial | Varying
"""``Shard`` is a part of one dimension, of which each rank has an equal share: part ``size`` of the dimension
``outer * size * inner``, for rows of a flattened batch need the outer, fused projections the inner."""

REPLICATE, PARTIAL, VARYING = Replicate(), Partial(), Varying()

__all__ = ["PARTIAL", "REPLICATE", "VARYING", "Partial", "Placement", "Replicate", "Shard", "Varying"]
