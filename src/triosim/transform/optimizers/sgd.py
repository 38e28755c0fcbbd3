"""Stochastic gradient descent, with momentum unless it is left out."""

from __future__ import annotations

from collections.abc import Mapping

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.transform.optimizing import (
    OptimizerRule,
    ParameterGroup,
    Shape,
    State,
    StepBuilder,
    fused_kernel,
    in_place,
    out_of_place,
)


@registered
@dataclass(frozen=True)
class Sgd(OptimizerRule):
    """As ``torch.optim.SGD``: 4 bytes a parameter with momentum, none without.

    Attributes:
        momentum: whether there is any.
        decay: whether weights decay.
    """

    momentum: bool = True
    decay: bool = True

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        return {"momentum_buffer": (shape, "float32")} if self.momentum else {}

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        gradients = group.gradients
        if self.decay:
            gradients = out_of_place(step, "_foreach_add", gradients, other=group.masters)
        if self.momentum:
            held = in_place(step, "_foreach_mul_", group.states["momentum_buffer"])
            gradients = in_place(step, "_foreach_add_", held, other=gradients)
        group.masters = in_place(step, "_foreach_add_", group.masters, other=gradients)

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        fused_kernel(step, "_fused_sgd_", group, {"momentum_buffer": "momentum_buffer_list"} if self.momentum else {})
