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
        elements: cap of all buckets in elements, counted instead of bytes where it is not 0.
        elements_per_replica: that cap is at least so much times the replicas.
        later_groups: whether there are buckets behind the first part of a pipeline too.
    """

    first_bytes: int = 1_048_576
    bytes: int = 26_214_400
    elements: int = 0
    elements_per_replica: int = 0
    later_groups: bool = True

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Everything Replicate."""
        return replace(
            placed, states=False, weights=False, first_bytes=self.first_bytes, bytes=self.bytes,
            elements=max(self.elements, self.elements_per_replica * mesh.size("dp")),
            later_groups=self.later_groups,
        )  # fmt: skip
