"""How parameters, gradients and optimizer states are placed among the replicas of a step, and what follows from it.

Every replica works on samples of its own, so each gradient of a parameter is Partial over the replicas when it is
made.  The placement of the optimizer state that it updates says what becomes of it: all-reduced if every replica has
the whole state, reduce-scattered if each has a Shard; where shards have replicas of their own, those add up what was
scattered (all-reduce).  A parameter that is Shard is gathered before it is read.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from triosim.core.dataclass import dataclass
from triosim.partition.compression import GradientCompression
from triosim.partition.local_steps import OuterStep
from triosim.partition.mesh import Mesh
from triosim.partition.residence import GatheredModules, HostStay
from triosim.partition.transfers import ALL_GATHER, ALL_TO_ALL, COLLECTIVES, REDUCE_SCATTER
from triosim.partition.wire_format import WireFormat
from triosim.trace.tables import Category


class GradientReduction(NamedTuple):
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
class ReplicaSharing:
    """How some parameters are shared: resolved on a mesh.

    Attributes:
        shards: parts into which what is Shard is cut.
        axis: row of the mesh's axes along which it is.
        reductions: what becomes of a gradient, in order.
        again: the axis along which a backward gathers.
        gathered: bytes that are sent of a gathered parameter over its own.
    """

    shards: int
    axis: int
    reductions: tuple[GradientReduction, ...]
    again: int = -1
    gathered: float = 1.0


@dataclass(frozen=True)
class Replication:
    """Placements among the replicas.

    Attributes:
        axis: the axis along which Shards are cut: that of the replicas, or of them and the ranks that share their
            samples.
        replicas: axis along which those Shards are replicated, ``""`` where ``axis`` has all replicas.
        states: whether optimizer states are Shard.
        weights: whether gradients and parameters are Shard too.
        whole: whether parameters are whole in every pass though their gradients are Shard: a rank updates its part of
            each, and all are gathered after the update (DeepSpeed's stage 2).
        regathers: whether a parameter that a forward gathered is freed after it and gathered again in the backward
            (``reshard_after_forward`` of PyTorch's ``fully_shard``).
        waits: whether gradients that are Shard are whole until all micro-batches have added to them, and only then
            scattered, as in PyTorch's pipelines.
        modules: which parameters are gathered together, and how far ahead.
        path: collectives that make a gradient which is Partial over all replicas what its state needs, in order, each a
            kind and an axis; empty for those that follow from the placements.
        every: gradients are reduced in every so-manieth iteration only (local updates in between).
        rooted: whether parameters and states are at the first replica only, which drives the others.
        away: what is in host memory until it is needed.
        name: what users call that which says so, for messages (``zero 3``).
        apart: axis of the replicas that have the same of what replicas divide among them (experts), ``""`` where there
            is nothing of the kind.
        first_bytes, bytes: caps of the first and the other groups of gradients that are reduced at once, where
            parameters are not gathered module by module.
        elements: cap of all such groups in elements, counted instead of bytes where it is not 0.
        later_groups: whether gradients are divided into groups behind the first part of a pipeline too; otherwise all
            of a part are reduced at once.
        compression: what such groups are compressed by, None for nothing.
        travel: in what parameters and gradients are sent.
        outer: what groups of replicas exchange once in many iterations, None where all are one group.
    """

    axis: str = "dp"
    replicas: str = ""
    states: bool = False
    weights: bool = False
    whole: bool = False
    regathers: bool = False
    waits: bool = False
    modules: GatheredModules = field(default_factory=GatheredModules)
    path: tuple[tuple[str, str], ...] = ()
    every: int = 1
    rooted: bool = False
    away: tuple[HostStay, ...] = ()
    name: str = "sharding"
    apart: str = ""
    first_bytes: int = 1_048_576
    bytes: int = 26_214_400
    elements: int = 0
    later_groups: bool = True
    compression: GradientCompression | None = None
    travel: WireFormat = field(default_factory=WireFormat)
    outer: OuterStep | None = None

    def stay(self, category: Category) -> HostStay | None:
        """How values of a category stay in host memory, None where they do not."""
        return next((stay for stay in self.away if stay.category == category), None)

    @property
    def updates_on_host(self) -> bool:
        """Whether the host's processor updates, for the states are there."""
        return self.stay(Category.OPTIMIZER_STATE) is not None

    @property
    def gathered_after_update(self) -> bool:
        """Whether a rank updates a part of parameters that are whole in every pass."""
        return self.states and (self.whole or not self.weights)

    def shards(self, mesh: Mesh) -> int:
        """Parts into which what is Shard is cut."""
        return mesh.size(self.axis)

    def ranks(self, mesh: Mesh) -> int:
        """Ranks whose gradients are added up."""
        return mesh.size(self.axis) * mesh.size(self.replicas)

    def of_apart(self) -> Replication:
        """The placements of parameters of which replicas have different ones."""
        reduced = self.path == (("all_reduce", self.axis),)  # whole, though states are Shard: parameters are dealt
        return replace(self, axis=self.apart, path=(("all_reduce", self.apart),) if reduced else (), apart="")

    def sharing(self, mesh: Mesh, weight_bits: float = 16, gradient_bits: float = 16) -> ReplicaSharing:
        """How the parameters that all replicas have are shared among them.

        Args:
            mesh: the ranks.
            weight_bits, gradient_bits: of an element of a parameter and of a gradient as it is reduced.
        """
        travel, axis = self.travel, mesh.row(self.axis)
        reductions = self.reductions(mesh)
        if travel.hops:
            parts, found = max(1, round(gradient_bits / travel.gradient_bits)), []
            for hop in travel.hops:
                found.append(GradientReduction(ALL_TO_ALL, mesh.row(hop), parts))
                parts *= mesh.size(hop)
            reductions = tuple(found)
        again = mesh.row(travel.again) if travel.again else axis
        gathered = travel.weight_bits / weight_bits if travel.weight_bits else 1.0
        return ReplicaSharing(self.shards(mesh), axis, reductions, again, gathered)

    def reductions(self, mesh: Mesh) -> tuple[GradientReduction, ...]:
        """What makes a gradient that is Partial over all replicas what its optimizer state needs, in order."""
        found, parts = [], 1
        for kind, axis in self.path or self._follows(mesh):
            what = COLLECTIVES.index(kind)
            parts //= mesh.size(axis) if what == ALL_GATHER else 1
            found.append(GradientReduction(what, mesh.row(axis), parts))
            parts *= mesh.size(axis) if what == REDUCE_SCATTER else 1
        return tuple(found)

    def _follows(self, mesh: Mesh) -> tuple[tuple[str, str], ...]:
        """The collectives that follow from the placements."""
        if not self.states:
            return (("all_reduce", self.axis),)
        if mesh.size(self.axis) == 1 < mesh.size(self.replicas):
            return (("all_reduce", self.replicas),)
        scattered = ("reduce_scatter", self.axis)
        return (scattered,) if mesh.size(self.replicas) == 1 else (scattered, ("all_reduce", self.replicas))
