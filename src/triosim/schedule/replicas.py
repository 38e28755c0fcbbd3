"""What the replicas of a job share of a step, however it is cut into stages and in whatever order they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triosim.partition.gradients import Gradient, total_bytes
from triosim.partition.passes.fuse import UnitsByModule, modules_of_their_own, units_by_module
from triosim.partition.replication import GradientReduction
from triosim.partition.residence import GatheredModules
from triosim.partition.resolve import JobMesh
from triosim.partition.step import Step
from triosim.plan import Plan


class ReplicaFacts:
    """What replicas share.

    Args:
        step: one rank's share of a micro-batch.
        plan, mesh: of the job.
        grads: gradients that are reduced.

    Attributes:
        replication: where replicas have what.
        sharing: ranks whose gradients are added up.
        bits: of an element of a parameter in the mean, and of a gradient as it is reduced.
        shared: how parameters are shared that all replicas have, and those of which they have different ones.
        modules: units of parameters that are gathered together, None where none are.
        gathered: which modules those are.
        exchanged: bytes, kind and axis of what is exchanged within a replica.
    """

    def __init__(self, step: Step, plan: Plan, mesh: JobMesh, grads: list[Gradient]) -> None:
        self.step, self.plan, self.mesh, self.grads = step, plan, mesh, grads
        self.replication = step.replication
        self.sharing = self.replication.ranks(mesh)
        apart = self.replication.of_apart() if step.apart else self.replication
        self.bits = self._bits()
        self.shared = (self.replication.sharing(mesh, *self.bits), apart.sharing(mesh, *self.bits))
        if apart.ranks(mesh) == 1:
            self.shared = (self.shared[0], replace(self.shared[1], reductions=()))
        self.modules: UnitsByModule | None = None
        self.gathered = self.replication.modules
        if self.replication.weights and self.sharing > 1:
            shards, shards_apart = (shared.shards for shared in self.shared)
            if plan.stack is not None and plan.stack.gathers == "module" and not self.gathered.modules:
                self.gathered = GatheredModules(modules_of_their_own(step.trace), 1, 1)
            self.modules = units_by_module(step.trace, shards, self.gathered.modules, step.apart, shards_apart)
        sent = step.transfers
        self.exchanged = list(zip(sent.bytes.tolist(), sent.what.tolist(), sent.axis.tolist(), strict=True))

    def _bits(self) -> tuple[float, float]:
        values, own = self.step.trace.values, [gradient.parameter for gradient in self.grads]
        elements = max(int(values.elements()[own].sum()), 1) if own else 1
        weights = float(values.bytes()[own].sum()) if own else 2.0
        return 8 * weights / elements, 8 * total_bytes(self.grads) / elements if own else 16.0

    @property
    def copies_gradients(self) -> bool:
        """Whether gradients are copied to buckets; main gradients are reduced where they are (Megatron-LM's
        ``param_and_grad_buffer.py``)."""
        plan, main = self.plan, self.plan.stack is not None and self.plan.stack.gradients != "parameter"
        return self.sharing > 1 and plan.training and plan.overlap and not self.replication.states and not main

    def gathering_axis(self, parameter: int) -> str:
        """The axis along which the shards of an updated parameter are brought together."""
        return self.replication.apart if parameter in self.step.apart else self.replication.axis

    def reductions(self, parameter: int) -> tuple[GradientReduction, ...]:
        """What becomes of the gradient of a parameter, in order."""
        return self.shared[parameter in self.step.apart].reductions

    def compressible(self, group: Sequence[Gradient]) -> tuple[list[tuple[int, ...]], float]:
        """Shapes of the gradients of a group, and bytes of an element."""
        values = self.step.trace.values
        shapes = [tuple(int(extent) for extent in values.shape[gradient.parameter]) for gradient in group]
        return shapes, total_bytes(group) / max(sum(math.prod(shape) for shape in shapes), 1)
