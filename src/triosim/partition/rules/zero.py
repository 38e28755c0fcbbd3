"""ZeRO 1 to 3: replicas divide among them what DDP keeps whole (Rajbhandari et al., arXiv:1910.02054).

What one of ``n`` replicas sends and receives for parameters of ``P`` bytes:

* 1, optimizer states: gradients are reduce-scattered in DDP's buckets, each rank updates its part of every parameter,
  and the parameters are all-gathered after the optimizer, as DeepSpeed's stage 1 and Megatron-LM's distributed
  optimizer do.  2 (n - 1) / n P an iteration.
* 2, gradients too, and 3, parameters too: PyTorch's ``fully_shard`` (FSDP2) of every repeated block and of the rest,
  with ``reshard_after_forward`` False and True.  2 and 3 (n - 1) / n P for each micro-batch; in a pipeline gradients
  are scattered after the last one.
* 2 with parameters whole: DeepSpeed's stage 2.  A rank has all parameters in every pass; gradients are reduce-scattered
  in each micro-batch (``stage_1_and_2.py``: ``reduce_ready_partitions_and_remove_grads`` is a hook of every backward,
  and with ``partition_gradients`` only the own part is kept), and the parameters of which it has updated a part are
  all-gathered after the optimizer (``all_gather_dp_groups`` at the end of ``step``).  (m + 1) (n - 1) / n P for ``m``
  micro-batches.  What is reduced at once is a block's gradients, where DeepSpeed fills buckets of 5e8 elements.
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
        whole: whether level 2 leaves parameters whole in every pass, and gathers them after the update.
    """

    level: Literal[1, 2, 3] = 3
    whole: bool = False

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """States Shard from 1 on, gradients and parameters from 2 on; with 3 parameters are not kept gathered."""
        name = f"zero {self.level}"
        return replace(
            placed, states=self.level > 0, weights=self.level > 1, whole=self.whole and self.level == 2,
            regathers=self.level > 2, name=name,
        )  # fmt: skip
