"""DDP: every replica has everything, and gradients are all-reduced in buckets."""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class Ddp(Rule):
    """Replicates parameters, gradients and states.

    Attributes:
        first_bytes, bytes: caps of the first bucket and the others.
    """

    first_bytes: int = 1_048_576
    bytes: int = 26_214_400

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Everything Replicate."""
        return replace(placed, states=False, weights=False, first_bytes=self.first_bytes, bytes=self.bytes)
