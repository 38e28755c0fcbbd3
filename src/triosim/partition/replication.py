"""How parameters, gradients and optimizer states are placed among the replicas of a step, and what follows from it.

Every replica works on samples of its own, so each gradient of a parameter is Partial over the replicas when it is
made.  The placement of the optimizer state that it updates says what becomes of it: all-reduced if every replica has
the whole state, reduce-scattered if each has a Shard; where shards have replicas of their own, those add up what was
scattered (all-reduce).  A parameter that is Shard is gathered before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from triosim.partition.mesh import Mesh
from triosim.partition.transfers import ALL_REDUCE, REDUCE_SCATTER


class Reduction(NamedTuple):
    """One collective on the way of a gradient.

    Attributes:
        what: row of :data:`triosim.partition.transfers.COLLECTIVES`.
        axis: row of the mesh's axes.
        parts: its buffer is that part of the whole gradients.
    """

    what: int
    axis: int
    parts: int


@dataclass(frozen=True)
class Replication:
    """Placements among the replicas.

    Attributes:
        axis: the axis along which Shards are cut.
        replicas: axis along which those Shards are replicated, ``""`` where ``axis`` has all replicas.
        states: whether optimizer states are Shard.
        weights: whether gradients and parameters are Shard too.
        regathers: whether a parameter that a forward gathered is freed after it and gathered again in the backward
            (``reshard_after_forward`` of PyTorch's ``fully_shard``).
        rooted: whether parameters and states are at the first replica only, which drives the others.
        away: what is in host memory until it is needed: ``"optimizer"`` states, ``"activations"``, ``"parameters"``.
        first_bytes, bytes: caps of the first and the other groups of gradients that are reduced at once, where
            parameters are not gathered module by module.
    """

    axis: str = "dp"
    replicas: str = ""
    states: bool = False
    weights: bool = False
    regathers: bool = False
    rooted: bool = False
    away: tuple[str, ...] = ()
    first_bytes: int = 1_048_576
    bytes: int = 26_214_400

    def ways(self, mesh: Mesh) -> int:
        """Parts into which what is Shard is cut."""
        return mesh.size(self.axis)

    def reductions(self, mesh: Mesh) -> tuple[Reduction, ...]:
        """What makes a gradient that is Partial over all replicas what its optimizer state needs, in order."""
        if not self.states:
            return (Reduction(ALL_REDUCE, mesh.row(self.axis), 1),)
        scattered = Reduction(REDUCE_SCATTER, mesh.row(self.axis), 1)
        if mesh.size(self.replicas) == 1:
            return (scattered,)
        return scattered, Reduction(ALL_REDUCE, mesh.row(self.replicas), self.ways(mesh))
