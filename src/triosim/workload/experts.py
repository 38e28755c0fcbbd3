"""Mixtures of experts: the sizes of what one call multiplies, from its shapes.

Two kinds of calls do it.  ``aten::_grouped_mm`` and its scaled relatives are one product of rows that are sorted by
expert, (tokens, k) x (experts, k, n), or a gradient of that.  The fused kernels of serving stacks (``fused_experts``,
``fused_moe``, ``moe_forward``, ``fused_marlin_moe`` of vLLM and SGLang) are a whole layer: tokens (tokens, hidden), the
weights in (experts, 2 or 1 x inner, hidden) and out (experts, hidden, inner), and the experts of every token
(tokens, topk).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from triosim.workload.operators import Call

Shape = tuple[int, ...]
_TOPK = ("topk", "top_k", "num_experts_per_tok")
PACKED = (1, 2, 4, 8)
"""Elements that a packed weight may hold in one: two of 4 bits in a byte, eight in 32 bits."""


class Sizes(NamedTuple):
    """What one call multiplies.

    Attributes:
        tokens: rows.
        topk: experts that each row is multiplied by, 1 where rows are sorted by expert.
        hidden: length of a row.
        inner: length inside an expert, of one of the two matrices in; columns of a single product.
        experts: experts whose weights are there.
        matrices: 3 for a gated layer, 2 for one that is not, 1 for a single product.
        packed: elements in one element of the stored weights.
        times: products of this size, 2 for a backward that yields both gradients.
        weight: position of the input that holds weights, -1 for none.
    """

    tokens: float
    topk: float
    hidden: float
    inner: float
    experts: float
    matrices: int
    packed: float
    times: float
    weight: int

    def flop(self) -> float:
        """Floating-point operations, a multiply-add counts two."""
        return 2.0 * self.tokens * self.topk * self.hidden * self.inner * self.matrices * self.times


def sizes(call: Call) -> Sizes | None:
    """Sizes of a call of kind ``experts``, None where its shapes do not tell."""
    return _single(call) if "grouped_mm" in call.name else _layer(call)


def _single(call: Call) -> Sizes | None:
    matrices = [(at, s) for at, s in enumerate(call.inputs) if len(s) in (2, 3) and all(s)][:2]
    if len(matrices) < 2:
        return None
    (_, a), (at, b) = matrices
    if call.backward:  # a gradient (tokens, n) and what was multiplied
        grad = call.shape("grad_output", "grad") or a
        weight = next((s for s in call.inputs if len(s) == 3), None)
        if len(grad) != 2 or weight is None:
            return None
        hidden = math.prod(weight) / weight[0] / grad[1]
        count = sum(len(out) >= 2 for out in call.outputs)
        return Sizes(grad[0], 1.0, hidden, grad[1], weight[0], 1, 1.0, float(max(count, 1)), -1)
    if len(a) == 2 and len(b) == 3:
        return Sizes(a[0], 1.0, a[1], b[2], b[0], 1, 1.0, 1.0, at) if a[1] == b[1] else None
    if len(a) == 3 and len(b) == 3:  # as many rows for each
        return Sizes(a[0] * a[1], 1.0, a[2], b[2], b[0], 1, 1.0, 1.0, at) if a[2] == b[1] else None
    if len(a) == 3:  # transposed: (experts, m, k) x (k, tokens)
        return Sizes(b[1], 1.0, a[2], a[1], a[0], 1, 1.0, 1.0, matrices[0][0]) if a[2] == b[0] else None
    count = call.outputs[0][0] if call.outputs and len(call.outputs[0]) == 3 else 1
    return Sizes(a[1], 1.0, a[0], b[1], count, 1, 1.0, 1.0, -1) if a[1] == b[0] else None  # the weights' gradient


def _layer(call: Call) -> Sizes | None:
    tokens = next((s for s in call.inputs if len(s) >= 2), None)
    weights = [(at, s) for at, s in enumerate(call.inputs) if len(s) == 3 and s != tokens and all(s)]
    if tokens is None or not all(tokens) or len(weights) < 2 or call.backward:
        return None
    hidden, rows = tokens[-1], math.prod(tokens[:-1])
    for at, (place, first) in enumerate(weights):
        packed = next((p for p in PACKED if first[2] * p == hidden), None)
        for _, second in weights[at + 1 :]:
            if packed is None or second[0] != first[0] or second[1] != hidden:
                continue
            inner = second[2] * packed
            if first[1] not in (inner, 2 * inner):
                continue
            topk = _topk(call, rows, first[0])
            if topk is None:
                return None
            return Sizes(rows, topk, hidden, inner, first[0], 1 + first[1] // inner, float(packed), 1.0, place)
    return None


def _topk(call: Call, rows: int, experts: int) -> float | None:
    """Experts of each token: an argument, or the columns of the chosen experts' numbers."""
    for name in _TOPK:
        value = call.args.get(name)
        if isinstance(value, int) and value > 0:
            return float(value)
    chosen = call.shape("topk_ids", "topk_weights", "token_selected_experts")
    if chosen is None:
        after = [s for s in call.inputs[1:] if len(s) == 2 and s[0] == rows and s[1] < experts]
        chosen = after[0] if after else None
    return float(chosen[-1]) if chosen else None
