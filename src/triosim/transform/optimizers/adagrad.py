"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011): the sum of a parameter's squared gradients."""

from __future__ import annotations

from collections.abc import Mapping

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
class Adagrad(OptimizerRule):
    """As ``torch.optim.Adagrad``: 4 bytes a parameter."""

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        return {"sum": (shape, "float32")}

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        gradients = group.gradients
        total = in_place(step, "_foreach_addcmul_", group.states["sum"], tensor1=gradients, tensor2=gradients)
        root = in_place(step, "_foreach_add_", out_of_place(step, "_foreach_sqrt", total))  # epsilon
        scaled = out_of_place(step, "_foreach_mul", gradients)  # the learning rate
        group.masters = in_place(step, "_foreach_addcdiv_", group.masters, tensor1=scaled, tensor2=root)

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        fused_kernel(step, "_fused_adagrad_", group, {"sum": "state_sums"})
