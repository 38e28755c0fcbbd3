"""Expert parallelism: the ranks of a group have the experts among them, and tokens travel to those that they chose.

The axis ``ep`` is taken from the data axis.  Every rank works on samples of its own; before the experts of a layer each
sends the rows of its tokens to the ranks that have their experts (*dispatch*), and gets them back after (*combine*);
the backward sends gradients the same way, a recomputation sends again.  By which collectives, and how much, says
:mod:`triosim.partition.dispatch`.  A rank keeps ``experts / ep`` of the experts, their gradients and optimizer states;
those gradients are reduced along ``edp`` alone, the ranks that have the same experts.

``tp`` divides each expert as it divides other pairs of layers, and each of its ranks sends all tokens; with
``own_tokens`` each sends those of its part of the sequence, and they gather what came.  With ``etp 1`` experts are
whole instead, and ``ep`` takes its ranks from the tensor axis too: each of its ranks sorts the tokens of its part of
the sequence.  With an ``etp`` between the two that many neighbours divide each expert: they gather the rows that came
to any of them, and scatter the sums of what they make of these, before they are sent back.

Sources: Lepikhin et al., GShard (arXiv:2006.16668), section 3; Fedus et al., Switch Transformer (arXiv:2101.03961);
Megatron-LM's ``--expert-model-parallel-size`` and ``--expert-tensor-parallel-size``; torchtitan's ``ParallelDims``;
capacities: GShard and Switch, DeepSpeed-MoE, Megatron-LM's ``--moe-pad-expert-input-to-capacity``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.dispatch import Dispatch, ElementType, Style
from triosim.partition.experts import routed, spread, with_whole_experts
from triosim.partition.facts import Facts
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.routing import UNIFORM, routing_of
from triosim.partition.rule import M, Placing, Rule
from triosim.partition.rules.sequence import sequence_of
from triosim.partition.step import Step


@registered
@dataclass(frozen=True)
class ExpertParallelism(Rule):
    """Divides the experts of every layer among neighbouring ranks of the data axis.

    Attributes:
        ep: ranks that have all experts among them.
        etp: ranks that divide each expert: those of the tensor axis (0 or ``tp``), 1 for none, or a part of them.
        own_tokens: ranks of the tensor axis that divide each expert send the tokens of their own part of the sequence
            and gather what came to any of them (Megatron-Core); otherwise they gather all tokens before, and each sends
            them all (torchtitan).
        imbalance: rows of the fullest rank over the mean, 1 or more; all wait for that rank.
        routing: ``uniform``, ``zipf:S`` or a file with a count of tokens for each expert; the rank with most of them
            sets the time, and has ``imbalance`` times that where both are given.
        capacity: capacity factor: every expert works on so many times the mean of the rows, padded where fewer came and
            without those that are too many; 0 for experts that take what comes (dropless).
        padded: whether experts are padded to their capacity; otherwise they take what comes and drop what is too much.
        dispatch: how rows travel, see :mod:`triosim.partition.dispatch`.
        dispatch_type: element type in which they travel to the experts: ``same`` as they are computed, or ``fp8``.
        near: ranks of a group that are on one server; 0 for what the system says.
        node_limit: servers whose experts a token may take; 0 for any.
    """

    ep: int = 8
    etp: Annotated[int, AtLeast(0)] = 0
    own_tokens: bool = False
    imbalance: float = 1.0
    routing: str = UNIFORM
    capacity: Annotated[float, AtLeast(0)] = 0.0
    padded: bool = True
    dispatch: Style = "alltoall"
    dispatch_type: ElementType = "same"
    near: Annotated[int, AtLeast(0)] = 0
    node_limit: Annotated[int, AtLeast(0)] = 0

    def arranged(self, mesh: M) -> M:
        """With the axes ``edp`` and ``ep``, the latter innermost: of a group of hsdp or a worker of diloco, of ranks
        that share samples, and with ``etp 1`` of the tensor axis; where rows travel in two hops ``ep_between`` servers
        and ``ep_within`` too.

        Raises:
            PlanError: the replicas cannot be divided into groups of so many, or the groups into servers.
        """
        bases = (("dp_shard",), ("dp_local",), ("dp", "cp"), ("dp",))
        base = next(axes for axes in bases if set(axes) <= set(mesh.names))
        tp = mesh.size("tp")
        if self.etp and tp % self.etp:
            fits = ", ".join(str(n) for n in range(1, tp + 1) if tp % n == 0)
            raise PlanError(f"experts: etp {self.etp} does not divide tp {tp}: sizes that do are {fits}")
        own, apart = (self.etp or tp, tp > 1) if self._apart(tp) else (1, False)
        base = (*base, "tp") if apart else base
        replicas, about = prod(map(mesh.size, base)), " x ".join(f"{axis} {mesh.size(axis)}" for axis in base)
        if self.ep < 1 or replicas % (self.ep * own):
            fits = ", ".join(str(n) for n in range(1, replicas + 1) if replicas % (n * own) == 0)
            each = f" with etp {own} ranks for each" if own > 1 else ""
            raise PlanError(
                f"experts: {about} cannot be divided into groups of ep {self.ep}{each}: sizes that fit are {fits}"
            )
        if apart and 1 == replicas // tp < replicas // (self.ep * own):
            raise PlanError(
                f"experts: with etp {own} and one replica all ranks are to have different experts: give ep "
                f"{replicas // own}"
            )
        if not 1 <= self.imbalance < math.inf:
            raise PlanError(
                f"experts: imbalance {self.imbalance:g} is no load of the fullest rank over the mean: give 1 or more"
            )
        if self.imbalance > self.ep:
            raise PlanError(
                f"experts: imbalance {self.imbalance:g} is more than the {self.ep} ranks of ep: the fullest has at "
                f"most all rows, {self.ep} times the mean"
            )
        if self.near and self.dispatch not in ("2dh", "deepep"):
            raise PlanError(
                f"experts: near says how many ranks are on one server, which dispatch {self.dispatch} does not ask: "
                "leave it out, or give dispatch=2dh or deepep"
            )
        inner = (("etp", own),) if own > 1 else ()
        if self.capacity == math.inf:
            raise PlanError("experts: capacity inf is none: leave it out")
        if self.capacity and self.padded and (self.imbalance != 1 or self.routing != UNIFORM):
            raise PlanError(
                "experts: padded to a capacity every expert has as many rows, whatever tokens take: leave imbalance "
                "and routing out, or give padded=off"
            )
        if not self.padded and not self.capacity:
            raise PlanError("experts: padded=off says how experts reach their capacity: give capacity too")
        mesh = mesh.resplit(base, (("edp", replicas // (self.ep * own)), ("ep", self.ep), *inner))
        if self.node_limit and self.dispatch != "deepep":
            raise PlanError(
                f"experts: node-limit says how often a row crosses to other servers, which dispatch {self.dispatch} "
                "does for each expert: give dispatch=deepep, or leave it out"
            )
        if self.dispatch not in ("2dh", "deepep") or self.ep == 1:
            return mesh
        near = self.near or mesh.on_server("ep")
        if not near or self.ep % near:
            said = f"{near} of them do not divide it" if near else "which of them are on one server is not known"
            raise PlanError(f"experts: dispatch {self.dispatch} of ep {self.ep} ranks: {said}: give near=N that does")
        return mesh.resplit(("ep",), (("ep_between", self.ep // near), ("ep_within", near)))

    def _apart(self, tp: int) -> bool:
        """Whether ranks of the tensor axis have tokens of their own: where fewer divide an expert, or it is said so."""
        return self.own_tokens or self.etp == 1 or 1 < self.etp < tp

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Gradients of experts are reduced along ``edp``.

        Raises:
            PlanError: one replica drives the others, or gradients are reduced in a way of their own.
        """
        if placed.rooted or placed.path:
            raise PlanError(
                f"experts: ep does not go with {'dataparallel' if placed.rooted else 'a path of reductions'}: leave "
                "one of them out"
            )
        return replace(placed, apart="edp")

    @property
    def places(self) -> bool:
        return self.etp > 0 or self.own_tokens

    @property
    def pads_experts(self) -> bool:
        return self.capacity > 0 and self.padded

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """With an ``etp`` of its own experts that this axis does not divide, and tokens that stay where they rest.

        Raises:
            PlanError: tokens are not divided between the layers.
        """
        if not self._apart(placing.size):
            return placing
        if not placing.resting:
            why = f"etp {self.etp}" if self.etp and not self.own_tokens else "own-tokens"
            raise PlanError(
                f"experts: with {why} ranks of the tensor axis have tokens of their own: give "
                "--sequence-parallel before"
            )
        seeds = sequence_of(facts, facts.trace.meta.sequence_length or 0)
        return with_whole_experts(facts, placing, *routed(facts, next(iter(seeds.items()))))

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With one rank's experts, and what is sent to and from them.

        Raises:
            PlanError: there are no experts, they do not divide, or the routing is none or of other experts.
        """
        axes = ("ep", "ep_within", "ep_between")
        whole, within, between = (mesh.row(axis) if axis in mesh.names else -1 for axis in axes)
        near, size = mesh.size("ep_within"), mesh.size("ep")
        dispatch = Dispatch(self.dispatch, size, whole, within, between, near, self.node_limit, self.dispatch_type)
        etp, own = mesh.size("etp"), mesh.row("etp") if "etp" in mesh.names else -1
        routing = routing_of(self.routing)
        return spread(step, dispatch, self.imbalance, routing, etp, own, self.capacity, self.padded)
