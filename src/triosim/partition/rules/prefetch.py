"""How far ahead, and by which modules, sharded parameters are gathered.

PyTorch's FSDP2 gathers a block while the one before computes; ``set_modules_to_forward_prefetch`` and
``set_modules_to_backward_prefetch`` launch gathers further ahead, for the memory of as many more blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.residence import GatheredModules
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class Prefetch(Rule):
    """Comes after the rule that says that parameters are Shard.

    Attributes:
        forward, backward: modules ahead of which a gather is launched.
        modules: which are gathered by themselves: paths in which ``*`` stands for a name, with ``+`` between; empty for
            the repeated blocks.
    """

    forward: Annotated[int, AtLeast(0)] = 1
    backward: Annotated[int, AtLeast(0)] = 1
    modules: str = ""

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Parameters are gathered so far ahead.

        Raises:
            PlanError: nothing is gathered.
        """
        if not placed.weights or placed.whole:
            raise PlanError("prefetch: no parameters are gathered: give --zero 2 or 3 before, or leave it out")
        modules = tuple(word.strip() for word in self.modules.split("+") if word.strip())
        return replace(placed, modules=GatheredModules(modules, self.forward, self.backward))
