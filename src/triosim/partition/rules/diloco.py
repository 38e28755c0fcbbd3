"""DiLoCo: groups of replicas take local steps and average what they have learned once in many iterations.

Within a group replicas are data parallel, or sharded by ZeRO, also in parts of it (``hsdp``); between groups only
parameters travel, and seldom (:mod:`triosim.partition.local_steps`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.local_steps import OuterStep
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import M, Rule

ITEM = {"float32": 4.0, "bfloat16": 2.0, "fp8": 1.0, "int4": 0.5}


@registered
@dataclass(frozen=True)
class LocalSteps(Rule):
    """Cuts the data axis into groups that seldom talk.

    Attributes:
        workers: groups; DiLoCo's workers.
        every: local steps between two exchanges.
        exchange: type in which differences of parameters travel.
    """

    workers: Annotated[int, AtLeast(1)] = 2
    every: Annotated[int, AtLeast(1)] = 500
    exchange: Literal["float32", "bfloat16", "fp8", "int4"] = "float32"

    def arranged(self, mesh: M) -> M:
        """With the axes ``workers`` and ``dp_local``, the latter innermost.

        Raises:
            PlanError: the replicas cannot be divided into so many groups.
        """
        replicas = mesh.size("dp")
        if replicas % self.workers:
            near = ", ".join(str(n) for n in range(1, replicas + 1) if replicas % n == 0)
            raise PlanError(f"diloco: dp {replicas} has no {self.workers} workers of equal size: there can be {near}")
        return mesh.resplit(("dp",), (("workers", self.workers), ("dp_local", replicas // self.workers)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Gradients are reduced, and what is Shard is so, within a group.

        Raises:
            PlanError: replicas are arranged otherwise.
        """
        if placed.axis != "dp" or placed.rooted or placed.path or placed.apart or placed.away:
            raise PlanError(
                "diloco: workers go with ZeRO and plain data parallelism: name it before hsdp, cp and ep, "
                "leave offload out"
            )
        alone = mesh.size("dp_local") == 1
        kept = replace(placed, states=False, weights=False, regathers=False) if alone else placed
        outer = OuterStep("workers", self.every, ITEM[self.exchange]) if self.workers > 1 else None
        return replace(kept, axis="dp_local", outer=outer)
