"""torch's ``DataParallel``: one process drives all replicas, and only the first has parameters for good.

Each iteration the first replica scatters the batch and broadcasts parameters and buffers, gathers the outputs, computes
the loss on the whole batch and scatters its gradient; the gradients of the parameters are reduced to it, and it alone
runs the optimizer (torch.nn.parallel.data_parallel and comm, PyTorch documentation).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class DataParallel(Rule):
    """Everything is at the first replica."""

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Rooted.

        Raises:
            PlanError: a replica is several ranks, or something is Shard or on the host.
        """
        if mesh.ranks > mesh.size("dp"):
            raise PlanError("dataparallel is one process over whole replicas: use tp 1 and pp 1, or dp-style ddp")
        if placed.states or placed.away:
            raise PlanError("dataparallel keeps everything whole on its devices: use zero 0 and no offload")
        return replace(placed, rooted=True)
