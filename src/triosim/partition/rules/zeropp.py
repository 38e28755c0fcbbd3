"""ZeRO++: ZeRO 3 that sends a quarter as much between servers, or less (:mod:`triosim.partition.wire_format`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import M, Rule
from triosim.partition.wire_format import WireFormat


@registered
@dataclass(frozen=True)
class ZeroPlusPlus(Rule):
    """ZeRO++: its three parts, each of which can be had alone; comes after the rule that says what is Shard.

    Attributes:
        qwz: parameters travel in 8 bits.
        hpz: the backward gathers within a server, where its ranks have a second copy among them.
        qgz: gradients travel in 4 bits, within servers and then between them.
        near: ranks of a server; 0 for what the system says.
    """

    qwz: bool = True
    hpz: bool = True
    qgz: bool = True
    near: Annotated[int, AtLeast(0)] = 0

    def arranged(self, mesh: M) -> M:
        """With the axes ``dp_between`` servers and ``dp_within`` them.

        Raises:
            PlanError: the replicas cannot be divided into servers.
        """
        replicas = mesh.size("dp")
        near = self.near or mesh.on_server("dp")
        if not near or replicas % near:
            said = f"{near} of them do not divide it" if near else "which of them are on one server is not known"
            raise PlanError(f"zeropp: dp {replicas} ranks: {said}: give near=N that does")
        return mesh.resplit(("dp",), (("dp_between", replicas // near), ("dp_within", near)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """What is gathered and scattered travels otherwise.

        Raises:
            PlanError: parameters are not divided among all replicas.
        """
        if placed.axis != "dp" or not placed.weights or not placed.regathers or placed.apart or placed.away:
            raise PlanError("zeropp: it changes how ZeRO 3 sends: give --zero 3, and leave hsdp, cp, ep, offload out")
        sizes = {axis: mesh.size(axis) for axis in ("dp_within", "dp_between")}
        within, between = (axis if size > 1 else "" for axis, size in sizes.items())
        travel = WireFormat(
            8 * self.qwz, 4 * self.qgz, within, between, "dp_within" if self.hpz and within and between else ""
        )  # fmt: skip
        return replace(placed, travel=travel)
