"""Offload: optimizer states, activations or parameters are in host memory until they are needed.

* Activations (as in torch's ``save_on_cpu`` and torchtune's activation offloading): what a repeated block keeps for its
  backward goes to the host when the block's forward has ended, and comes back when the backward of the block after it
  begins.  At most two blocks wait to leave: the one after them does not begin before the first has left.  The last two
  blocks of a stage keep theirs, for they are needed at once.
* Parameters (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857, section 5; without its disk): those of a block arrive
  while the block before it runs, forward and backward, and are dropped after it.  Parameters outside of blocks stay.
* Optimizer (ZeRO-Offload, Ren et al., arXiv:2101.06840, section 4.1): states and master weights are on the host.
  Gradients go there when they are complete, in DDP's buckets (at most two wait to leave, as with activations), the
  host's processor updates, and the new parameters come back.  What is reduced over data-parallel ranks first leaves
  after the backward.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError, quoted
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.residence import HostStay
from triosim.partition.rule import Rule
from triosim.trace.tables import Category

STAYS = {
    what: HostStay(category, f"offload {what}")
    for what, category in (
        ("optimizer", Category.OPTIMIZER_STATE),
        ("activations", Category.ACTIVATION),
        ("parameters", Category.WEIGHT),
    )
}
"""By what users call it, what stays on the host and when it travels."""


@registered
@dataclass(frozen=True)
class Offload(Rule):
    """Places on the host.

    Attributes:
        what: ``"optimizer"`` states, which the host's processor updates, ``"activations"`` and ``"parameters"`` of the
            repeated blocks.
    """

    what: tuple[str, ...] = ("optimizer",)

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """With this too on the host.

        Raises:
            PlanError: it cannot be, or not together with what else is asked for.
        """
        wrong = [one for one in self.what if one not in STAYS]
        if wrong:
            raise PlanError(f"offload: {quoted(wrong[0])} cannot be on the host; what can is {', '.join(STAYS)}")
        away = tuple(dict.fromkeys((*placed.away, *(STAYS[one] for one in self.what))))
        if placed.rooted:
            raise PlanError("dp-style dataparallel keeps everything on its devices: use dp-style ddp, or no offload")
        placed = replace(placed, away=away)
        if placed.stay(Category.WEIGHT) and not placed.updates_on_host:
            raise PlanError(
                "offload parameters needs them updated where they are: use offload optimizer as well, or not parameters"
            )
        if placed.stay(Category.WEIGHT) and placed.weights:
            raise PlanError(
                f"offload parameters and {placed.name} both say where parameters come from: use zero 1 or 0, or "
                "offload optimizer only"
            )
        return placed
