"""Adam (Kingma and Ba, arXiv:1412.6980): two moments of each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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
class Adam(OptimizerRule):
    """As ``torch.optim.Adam``: 8 bytes a parameter.

    Attributes:
        moments: element type of both moments.  DeepSeek-V3 keeps them in bfloat16 (arXiv:2412.19437, section 3.3.3), as
            Megatron-LM's precision-aware optimizer does with ``--exp-avg-dtype`` and ``--exp-avg-sq-dtype``.
    """

    moments: Literal["float32", "bfloat16", "float16"] = "float32"
    kernel = "_fused_adam_"

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        return {"exp_avg": (shape, self.moments), "exp_avg_sq": (shape, self.moments)}

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        gradients = group.gradients
        mean = in_place(step, "_foreach_lerp_", group.states["exp_avg"], tensors1=gradients)
        square = in_place(step, "_foreach_mul_", group.states["exp_avg_sq"])
        square = in_place(step, "_foreach_addcmul_", square, tensor1=gradients, tensor2=gradients)
        root = out_of_place(step, "_foreach_sqrt", square)
        root = in_place(step, "_foreach_div_", root)  # bias correction
        root = in_place(step, "_foreach_add_", root)  # epsilon
        group.masters = in_place(step, "_foreach_addcdiv_", group.masters, tensor1=mean, tensor2=root)

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        fused_kernel(step, self.kernel, group, {"exp_avg": "exp_avgs", "exp_avg_sq": "exp_avg_sqs"})
