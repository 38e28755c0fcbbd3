"""The interface of rules: how values are placed on one axis of the mesh.

A rule is a frozen dataclass whose fields are its options, one a file in ``partition/rules``, in a file of the user's or
behind an entry point in the group ``triosim.partition``.  Several rules may place values on the same axis: each is
given what those before it have placed and returns that with its own added.

A rule must not look at names of models.  It reads the facts of the step: layers, shapes, who reads what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar, Literal, TypeVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import Registry
from triosim.operators import NO_LABEL
from triosim.partition.facts import Facts, WeightUse
from triosim.partition.mesh import Mesh
from triosim.partition.placements import Shard
from triosim.partition.replication import Replication
from triosim.partition.step import Step
from triosim.trace.tables import Trace

M = TypeVar("M", bound=Mesh)


@dataclass(frozen=True)
class Placing:
    """What is placed on an axis before anything is propagated; everything else is Replicate.

    Attributes:
        axis: name of the axis.
        size: ranks along it.
        weights: parameter (value id) -> the dimension along which it is Shard.
        gathered: rows of operators whose outputs are gathered at once.
        losses_divided: whether a loss is computed on a vocabulary that is Shard.
        at_boundaries: resolve every Partial value where it arises, as torch's ``parallelize_module`` does at the
            boundary of each module, instead of where it is first needed.
        resting: value -> the Shard in which it waits between the operators that need it otherwise: a Partial value
            becomes this one (reduce-scatter) instead of Replicate (all-reduce).
        inputs: value that the step is given -> the Shard in which it arrives.
        stationary: what stays where two Shards meet: ``"weights"``, between which activations only rest, or
            ``"activations"``, whose own Shard stays through every layer (``resting`` then only says what a Partial
            value becomes).
        per_rank: kinds of operator that each rank runs on what it has, so that what they sum up is Varying instead of
            Partial: ``"loss"`` where every rank has tokens or samples of its own.
        alone: rows of operators that each rank runs on what it has although their dimensions do not tell that they can
            be divided so (a rank's own tokens are sorted by expert); what comes out is in its Shard of ``resting``,
            else Varying, in a backward Partial.
        own: rows of layers that each rank runs on what rests with it, so that nothing is gathered for them; the
            gradients of their weights are Partial.
        left: parameters whose Partial gradients are left to what reduces those of all replicas
            (:meth:`Rule.replicate`), instead of being added up along this axis before the optimizer.
        regathers: whether a copy that a forward gathered is freed after it and gathered again in the backward.
        refused: what could not be placed, and why, for people.
        chosen: whether the user chose layer by layer, so that what is left whole is so on purpose.
    """

    axis: str
    size: int
    weights: Mapping[int, int] = field(default_factory=dict)
    gathered: frozenset[int] = frozenset()
    losses_divided: bool = False
    at_boundaries: bool = False
    resting: Mapping[int, Shard] = field(default_factory=dict)
    inputs: Mapping[int, Shard] = field(default_factory=dict)
    stationary: Literal["weights", "activations"] = "weights"
    per_rank: frozenset[str] = frozenset()
    alone: frozenset[int] = frozenset()
    own: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    regathers: bool = False
    refused: tuple[str, ...] = ()
    chosen: bool = False

    def refusal(self, facts: Facts, layer: WeightUse, dim: int) -> str:
        """Why a layer's weight cannot be Shard along ``dim``; ``""`` where it can."""
        extent = facts.shapes[layer.weight][dim] if dim != NO_LABEL else 1
        if extent % self.size == 0:
            return ""
        return f"{layer.path or 'a layer'} has {extent}, which does not divide by {self.size}"

    def sharding(self, weights: Mapping[int, int]) -> Placing:
        """With more weights Shard; those that are already stay as they are."""
        return replace(self, weights={**weights, **self.weights})

    def refusing(self, *reasons: str) -> Placing:
        """With more reasons why something is left whole."""
        return replace(self, refused=(*self.refused, *(why for why in reasons if why)))


class Rule:
    """Places values: on the axis that divides a step (:meth:`place`), among its replicas (:meth:`replicate`), or both.

    Attributes:
        axis: name of the axis that :meth:`place` is about.
        cuts_inputs: whether it divides what the step is given, so that other axes divide a part of it.
        needs_ranks: whether it is told when that axis has one rank only, for who asks for this rule expects more.
        optimizers: names of those that it is defined for, where the plan names one; empty for any.
    """

    axis: ClassVar[str] = "tp"
    cuts_inputs: ClassVar[bool] = False
    needs_ranks: ClassVar[bool] = False
    optimizers: ClassVar[tuple[str, ...]] = ()

    def arranged(self, mesh: M) -> M:
        """The mesh with the axes that this rule needs: those of the plan, or the same ranks divided anew.

        Raises:
            PlanError: the ranks cannot be divided so.
        """
        return mesh

    def suited(self, trace: Trace, mesh: Mesh) -> Trace:
        """The workload as this rule needs it, for example with a vocabulary that divides."""
        return trace

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """What rules before this one have placed among the replicas of a step, and what this one changes.

        Raises:
            PlanError: what was asked for cannot be.
        """
        return placed

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """The divided step with what this rule changes in it: transfers of its own, operators that not all run.

        Raises:
            PlanError: what was asked for cannot be.
        """
        return step

    @property
    def places(self) -> bool:
        """Whether :meth:`place` is to be asked: not where it would add nothing, whatever the step."""
        return type(self).place is not Rule.place

    @property
    def pads_experts(self) -> bool:
        """Whether every expert works on as many rows, whatever tokens take."""
        return False

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """What rules before this one have placed on the axis that divides a step, and what this one adds.

        Args:
            facts: the step as it is on one device.
            placing: placed so far.

        Raises:
            PlanError: what was asked for cannot be.
        """
        return placing


RULES = Registry("triosim.partition.rules", "triosim.partition", "rule of parallelism", Rule)
"""Rules by name (``--parallelism``)."""
