"""Offload: optimizer states, activations or parameters are in host memory until they are needed.

Sources: ZeRO-Offload (Ren et al., arXiv:2101.06840), ZeRO-Infinity (Rajbhandari et al., arXiv:2104.07857), torch's
``save_on_cpu``.  When what travels is worked out in :mod:`triosim.schedule.offload`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triosim.core.errors import PlanError, quoted
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule

KINDS = ("optimizer", "activations", "parameters")


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
        away = tuple(dict.fromkeys((*placed.away, *self.what)))
        wrong = [one for one in away if one not in KINDS]
        if wrong:
            raise PlanError(f"offload: {quoted(wrong[0])} cannot be on the host; what can is {', '.join(KINDS)}")
        if placed.rooted:
            raise PlanError("dataparallel keeps everything on its devices: use dp-style ddp, or no offload")
        if "parameters" in away and ("optimizer" not in away or placed.weights):
            raise PlanError("offload parameters needs offload optimizer as well, and zero 1 or 0")
        return replace(placed, away=away)
