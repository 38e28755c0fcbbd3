"""Offload: optimizer states, activations or parameters are in host memory, or on NVMe, until they are needed.

* Activations (as in torch's ``save_on_cpu`` and torchtune's activation offloading): what a repeated block keeps for its
  backward goes to the host when the block's forward has ended, and comes back when the backward of the block after it
  begins.  At most two blocks wait to leave: the one after them does not begin before the first has left.  The last two
  blocks of a stage keep theirs, for they are needed at once.  ``activations:40`` takes those of the first 40 blocks
  of a stage alone (Megatron's ``cpu_offloading_num_layers``).
* Parameters (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857, section 5): those of a block arrive while the block
  before it runs, forward and backward, and are dropped after it.  Parameters outside of blocks stay.  Those that are
  Shard (ZeRO 3) come in shards: each rank fetches its own of a block before the block is gathered.
* Optimizer (ZeRO-Offload, Ren et al., arXiv:2101.06840, section 4.1): states and master weights are on the host.
  Gradients go there when they are complete, in DDP's buckets (at most two wait to leave, as with activations), the
  host's processor updates, and the new parameters come back.  What is reduced over data-parallel ranks first leaves
  after the backward.

Each may be on the server's NVMe drives instead (``optimizer=nvme``), as in ZeRO-Infinity: what travels passes through
host memory.  Optimizer states are read while the processor updates, and written back; gradients stay in host memory.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError, quoted
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.residence import HOST, NVME, HostStay
from triosim.partition.rule import Rule
from triosim.trace.tables import Category

CATEGORIES = {
    "optimizer": Category.OPTIMIZER_STATE, "activations": Category.ACTIVATION, "parameters": Category.WEIGHT,
}  # fmt: skip
"""What can be away, by what users call it."""


def stay(what: str) -> HostStay | None:
    """What ``"optimizer"``, ``"optimizer=nvme"`` or ``"activations:40"`` says of where something is; None where it says
    nothing."""
    told, given, place = what.partition("=")
    name, counted, blocks = told.partition(":")
    if name not in CATEGORIES or (given and place not in (HOST, NVME)):
        return None
    if counted and (name != "activations" or not blocks.isdecimal() or int(blocks) < 1):
        return None
    return HostStay(CATEGORIES[name], f"offload {name}", place=place or HOST, blocks=int(blocks) if counted else None)


@registered
@dataclass(frozen=True)
class Offload(Rule):
    """Places on the host.

    Attributes:
        what: ``"optimizer"`` states, which the host's processor updates, ``"activations"`` and ``"parameters"`` of the
            repeated blocks, ``"activations:N"`` of the first N of them; with ``=nvme`` those on the server's drives.
    """

    what: tuple[str, ...] = ("optimizer",)

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """With this too on the host.

        Raises:
            PlanError: it cannot be, or not together with what else is asked for.
        """
        stays = {one: stay(one) for one in self.what}
        wrong = [one for one, said in stays.items() if said is None]
        if wrong:
            raise PlanError(
                f"offload: {quoted(wrong[0])} cannot be away: give {', '.join(CATEGORIES)} or activations:N (of the "
                f"first N blocks), each on its own or with ={NVME}"
            )
        away = tuple(dict.fromkeys((*placed.away, *(said for said in stays.values() if said is not None))))
        if len({said.category for said in away}) < len(away):
            raise PlanError("offload names the same in host memory and on NVMe: give it once")
        if placed.rooted:
            raise PlanError("dp-style dataparallel keeps everything on its devices: use dp-style ddp, or no offload")
        placed = replace(placed, away=away)
        if placed.stay(Category.WEIGHT) and not placed.updates_on_host:
            raise PlanError(
                "offload parameters needs them updated where they are: use offload optimizer as well, or not parameters"
            )
        return placed
