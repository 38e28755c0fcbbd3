"""Expert parallelism: the ranks of a group have the experts among them, and tokens travel to those that they chose.

The axis ``ep`` is taken from the data axis.  Every rank works on samples of its own; before the experts of a layer each
sends the rows of its tokens to the ranks that have their experts (*dispatch*, an all-to-all), and gets them back after
(*combine*); the backward sends gradients the same way, a recomputation sends again.  With ``T`` tokens of ``h``
elements that take ``k`` experts each, one of the four sends ``T k h`` elements a rank, ``(ep - 1) / ep`` of them to
others.  A rank keeps ``experts / ep`` of the experts, their gradients and optimizer states; those gradients are
reduced along ``edp`` alone, the ranks that have the same experts.

Sources: Lepikhin et al., GShard (arXiv:2006.16668), section 3; Fedus et al., Switch Transformer (arXiv:2101.03961);
Megatron-LM's ``--expert-model-parallel-size``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.experts import spread
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.routing import UNIFORM, routing_of
from triosim.partition.rule import M, Rule
from triosim.partition.step import Step


@registered
@dataclass(frozen=True)
class ExpertParallelism(Rule):
    """Divides the experts of every layer among neighbouring ranks of the data axis.

    Attributes:
        ep: ranks that have all experts among them.
        imbalance: rows of the fullest rank over the mean, 1 or more; all wait for that rank.
        routing: ``uniform``, ``zipf:S`` or a file with a count of tokens for each expert; the rank with most of them
            sets the time, and has ``imbalance`` times that where both are given.
    """

    ep: int = 8
    imbalance: float = 1.0
    routing: str = UNIFORM

    def arranged(self, mesh: M) -> M:
        """With the axes ``edp`` and ``ep``, the latter innermost: of a group of hsdp, and of ranks that share samples.

        Raises:
            PlanError: the replicas cannot be divided into groups of so many.
        """
        base = next(axes for axes in (("dp_shard",), ("dp", "cp"), ("dp",)) if set(axes) <= set(mesh.names))
        replicas, about = prod(map(mesh.size, base)), " x ".join(f"{axis} {mesh.size(axis)}" for axis in base)
        if self.ep < 1 or replicas % self.ep:
            near = ", ".join(str(n) for n in range(1, replicas + 1) if replicas % n == 0)
            raise PlanError(
                f"experts: {about} cannot be divided into groups of ep {self.ep}: sizes that fit are {near}"
            )
        if not 1 <= self.imbalance < math.inf:
            raise PlanError(
                f"experts: imbalance {self.imbalance:g} is no load of the fullest rank over the mean: give 1 or more"
            )
        return mesh.resplit(base, (("edp", replicas // self.ep), ("ep", self.ep)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Gradients of experts are reduced along ``edp``.

        Raises:
            PlanError: one replica drives the others, or gradients are reduced in a way of their own.
        """
        if placed.rooted or placed.path:
            raise PlanError(
                f"experts: ep does not go with {'dataparallel' if placed.rooted else 'a path of reductions'}: leave "
                "one of them out"
            )
        return replace(placed, apart="edp")

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With one rank's experts, and what is sent to and from them.

        Raises:
            PlanError: there are no experts, they do not divide, or the routing is none or of other experts.
        """
        return spread(step, mesh.size("ep"), mesh.row("ep"), self.imbalance, routing_of(self.routing))
