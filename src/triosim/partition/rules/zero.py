"""ZeRO 1 to 3: replicas divide among them what DDP keeps whole (Rajbhandari et al., arXiv:1910.02054).

What one of ``n`` replicas sends and receives for parameters of ``P`` bytes:

* 1, optimizer states: gradients are reduce-scattered in DDP's buckets, each rank updates its part of every parameter,
  and the parameters are all-gathered after the optimizer, as DeepSpeed's stage 1 and Megatron-LM's distributed
  optimizer do.  2 (n - 1) / n P an iteration.
* 2, gradients too, and 3, parameters too: PyTorch's ``fully_shard`` (FSDP2) of every repeated block and of the rest,
  with ``reshard_after_forward`` False and True.  2 and 3 (n - 1) / n P for each micro-batch; in a pipeline gradients
  are scattered after the last one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class Zero(Rule):
    """Shards optimizer states, gradients and parameters.

    Attributes:
        level: 1, 2 or 3.
    """

    level: Literal[1, 2, 3] = 3

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """States Shard from 1 on, gradients and parameters from 2 on; with 3 parameters are not kept gathered."""
        name = f"zero {self.level}"
        return replace(placed, states=self.level > 0, weights=self.level > 1, regathers=self.level > 2, name=name)
