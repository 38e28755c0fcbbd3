"""Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv:2502.16982): orthogonalised momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.transform.optimizers.adamw import AdamW
from triosim.transform.optimizing import (
    OptimizerRule,
    ParameterGroup,
    Shape,
    State,
    StepBuilder,
    cast,
    made,
    part,
    whole,
    written,
)

WORKS_IN = "bfloat16"
"""Element type of the iterations, whatever the parameters are of."""


@registered
@dataclass(frozen=True)
class Muon(OptimizerRule):
    """As ``torch.optim.Muon`` for the matrices of the repeated blocks, a stack of them (experts) at once; embeddings,
    the last layer, norms and biases are updated by AdamW, as both sources do.

    The momentum of a matrix is brought near the closest orthogonal one by Newton-Schulz iterations, each three products
    of whole matrices; a matrix keeps 4 bytes a parameter.  Of ranks that have parts of the matrices (ZeRO 2 and 3) each
    brings some together and is sent their momentum, as ``Muon`` of Dion (github.com/microsoft/dion), torchtitan and
    Megatron-FSDP have it.

    Attributes:
        steps: iterations.
        nesterov: look ahead with the gradient.
    """

    steps: Annotated[int, AtLeast(1)] = 5
    nesterov: bool = True

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        return {"momentum": (shape, "float32")} if is_hidden_matrix(name, shape) else AdamW().states(name, shape)

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        self._update(step, group, AdamW().update)

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        self._update(step, group, AdamW().fused)

    def _update(self, step: StepBuilder, group: ParameterGroup, others: Any) -> None:
        masters = list(group.masters)
        shapes = [weight.shape for weight in group.weights]
        hidden = [at for at, shape in enumerate(shapes) if is_hidden_matrix(group.names[at], shape)]
        rest = [at for at in range(len(shapes)) if at not in set(hidden)]
        for at in hidden:
            masters[at] = self._matrix(step, group.only([at]))
        if rest:
            own = group.only(rest)
            others(step, own)
            for at, master in zip(rest, own.masters, strict=True):
                masters[at] = master
        group.masters = masters

    def _matrix(self, step: StepBuilder, one: ParameterGroup) -> Any:
        """Append the update of one matrix [m, n], or of a stack [..., m, n]; what is left of it."""
        weight, master = one.weights[0], one.masters[0]
        gradient = cast(step, one.gradients[0], master.dtype, weight.value)
        momentum = written(step, "lerp_", one.states["momentum"][0], end=gradient)
        if self.nesterov:
            momentum = made(step, weight, "lerp", gradient.shape, self=gradient, end=momentum)
        x = made(step, weight, "_to_copy", momentum.shape, {"dtype": WORKS_IN}, WORKS_IN, self=momentum)
        x = whole(step, x)
        *stack, rows, columns = x.shape
        short, long = min(rows, columns), max(rows, columns)
        x = step.alias(x, (*stack, short, long))
        dims = {"dim": [-2, -1], "keepdim": True} if stack else {}
        norm = made(step, weight, "linalg_vector_norm", (*stack, 1, 1) if stack else (), dims, self=x)
        x = written(step, "div_", x, other=made(step, weight, "clamp", norm.shape, self=norm))
        square, product, batches = (*stack, short, short), "bmm" if stack else "mm", "batch" if stack else "mat"
        added = "baddbmm" if stack else "addmm"
        for _ in range(self.steps):
            gram = made(step, weight, product, square, self=x, mat2=step.alias(x, (*stack, long, short)))
            change = made(step, weight, added, square, self=gram, **{f"{batches}1": gram, f"{batches}2": gram})
            x = made(step, weight, added, x.shape, self=x, **{f"{batches}1": change, f"{batches}2": x})
        x = part(step, step.alias(x, (*stack, rows, columns)))
        return written(step, "add_", written(step, "mul_", master), other=x)


def is_hidden_matrix(name: str, shape: Shape) -> bool:
    """Whether a parameter is a matrix of a repeated block (``layers.3.mlp.up_proj.weight``), or a stack of such."""
    return len(shape) in (2, 3) and any(part.isdecimal() for part in name.split("."))
