"""Hybrid sharding: Shards within groups of replicas, replicated between the groups.

The ranks of the data axis are ``dp_replicate x dp_shard``.  What ZeRO divides is divided among the ``dp_shard`` ranks
of a group only, so parameters are gathered within it; the gradients, reduce-scattered within it, are then all-reduced
over ``dp_replicate``: ``1 / dp_shard`` of their bytes.  Source: PyTorch's ``fully_shard`` on a mesh of two dimensions
(``HYBRID_SHARD``), torchtitan's ``data_parallel_replicate_degree``.  Workers of local steps (``diloco``) each have such
groups.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import M, Rule


@registered
@dataclass(frozen=True)
class HybridSharding(Rule):
    """Cuts the data axis, or that of a worker, in two; comes after the rule that says what is Shard.

    Attributes:
        dp_replicate: groups that have all shards.
    """

    dp_replicate: int = 2

    def arranged(self, mesh: M) -> M:
        """With the axes ``dp_replicate`` and ``dp_shard``, the latter innermost.

        Raises:
            PlanError: the replicas cannot be divided into so many groups.
        """
        base = _base(mesh)
        replicas = mesh.size(base)
        if self.dp_replicate < 1 or replicas % self.dp_replicate:
            near = [n for n in range(1, replicas + 1) if replicas % n == 0]
            raise PlanError(
                f"hsdp: {base} {replicas} cannot be divided into dp-replicate {self.dp_replicate} groups: those "
                f"that can are {', '.join(map(str, near))}"
            )
        shard = replicas // self.dp_replicate
        return mesh.resplit((base,), (("dp_replicate", self.dp_replicate), ("dp_shard", shard)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """What is Shard is so on ``dp_shard``; in groups of one everything is Replicate.

        Raises:
            PlanError: nothing is, or experts or sequences have been divided among all replicas before.
        """
        if placed.axis != _base(mesh):
            raise PlanError(
                "hsdp: its groups are of plain replicas, or of a worker's: name it after diloco, before context"
            )
        if placed.apart:
            raise PlanError("hsdp: experts are divided within its groups: name it before them")
        if not placed.states:
            raise PlanError("hsdp: nothing is divided among the replicas of a group: use zero 1, 2 or 3")
        if mesh.size("dp_shard") == 1:
            return replace(placed, states=False, weights=False, regathers=False)
        return replace(placed, axis="dp_shard", replicas="dp_replicate")


def _base(mesh: Mesh) -> str:
    """The axis of the replicas that are divided into groups."""
    return "dp_local" if "dp_local" in mesh.names else "dp"
