"""Lion (Chen et al., arXiv:2302.06675): the sign of a mean of gradients, one moment of each parameter."""

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
class Lion(OptimizerRule):
    """Algorithm 2 of the paper, with decay: 4 bytes a parameter.  Fused as DeepSpeed's ``FusedLion``, one kernel."""

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        return {"exp_avg": (shape, "float32")}

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        gradients, mean = group.gradients, group.states["exp_avg"]
        masters = in_place(step, "_foreach_mul_", group.masters)  # weight decay
        update = in_place(step, "_foreach_add_", out_of_place(step, "_foreach_mul", mean), other=gradients)
        update = in_place(step, "_foreach_sign_", update)
        group.masters = in_place(step, "_foreach_add_", masters, other=update)
        in_place(step, "_foreach_add_", in_place(step, "_foreach_mul_", mean), other=gradients)

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        fused_kernel(step, "_fused_lion_", group, {"exp_avg": "exp_avgs"})
