"""Adafactor (Shazeer and Stern, arXiv:1804.04235): of a matrix the mean squares of its rows and of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triosim.core.registry import registered
from triosim.transform.optimizing import (
    OptimizerRule,
    ParameterGroup,
    Shape,
    State,
    StepBuilder,
    cast,
    made,
    total,
    written,
)


@registered
class Adafactor(OptimizerRule):
    """As ``torch.optim.Adafactor`` by default: one tensor after the other, no momentum, no decay of weights.

    A tensor of ``[..., m, n]`` keeps ``[..., m, 1]`` and ``[..., 1, n]``, a vector as much as itself; 16-bit gradients
    are cast one at a time.  That the host reads two norms of each tensor, and so waits for the device, is left out.
    Ranks that have parts of the tensors (ZeRO 2 and 3) all-reduce what is a sum over what they divide, as GSPMD does
    with the same lines in JAX; the class of PyTorch 2.13 does not run on the parts that ``fully_shard`` leaves.
    """

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        if len(shape) < 2:
            return {"variance": (shape, "float32")}
        return {
            "row_var": ((*shape[:-1], 1), "float32"),
            "col_var": ((*shape[:-2], 1, shape[-1]), "float32"),
        }

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        updated = []
        for at, weight in enumerate(group.masters):
            owner = group.weights[at]
            gradient = cast(step, group.gradients[at], weight.dtype, owner.value)
            _norm(step, owner, weight)  # the size of the step follows that of the parameter
            if len(weight.shape) < 2:
                squared = made(step, owner, "mul", gradient.shape, self=gradient, other=gradient)
                variance = written(step, "lerp_", group.states["variance"][at], end=squared)
                estimate = made(step, owner, "clone", variance.shape, self=variance)
            else:
                row = _mean_square(step, owner, gradient, group.states["row_var"][at], -1)
                column = _mean_square(step, owner, gradient, group.states["col_var"][at], -2)
                product = {2: "mm", 3: "bmm"}.get(len(weight.shape), "matmul")
                second = "mat2" if product != "matmul" else "other"
                estimate = made(step, owner, product, weight.shape, **{"self": row, second: column})
                mean = made(step, owner, "mean", (*row.shape[:-2], 1, 1), {"dim": [-2], "keepdim": True}, self=row)
                mean = total(step, mean, [-2])
                estimate = written(step, "div_", estimate, other=written(step, "clamp_", mean))
            change = written(step, "rsqrt_", written(step, "clamp_", estimate))
            change = written(step, "mul_", change, other=gradient)
            _norm(step, owner, change)  # clips it
            updated.append(written(step, "add_", weight, other=change))
        group.masters = updated


def _mean_square(step: StepBuilder, weight: Any, gradient: Any, state: Any, dim: int) -> Any:
    """What is left of the state that follows the mean square of a gradient over one dimension."""
    norm = _norm(step, weight, gradient, state.shape, {"dim": [dim], "keepdim": True})
    return written(step, "lerp_", state, end=written(step, "div_", written(step, "pow_", norm)))


def _norm(
    step: StepBuilder, weight: Any, tensor: Any, shape: Shape = (), args: Mapping[str, Any] | None = None
) -> Any:  # fmt: skip
    norm = made(step, weight, "linalg_vector_norm", shape, args, self=tensor)
    return total(step, norm, args["dim"] if args else range(-len(tensor.shape), 0))
