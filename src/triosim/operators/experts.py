"""Products of a mixture of experts: grouped products, and whole layers of experts in one kernel."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import NO_LABEL, Dims, Output, at_once, unknown
from triosim.operators._kind import Kind
from triosim.operators._work import ExpertsWork, ProductWork

_TOPK = ("topk", "top_k", "num_experts_per_tok")
_GROUPED = "grouped_mm"
_LOAD = 8
"""Elements of 16 bits that a thread loads at once: rows of an expert begin at a multiple of it."""
EACH = "each_expert::"
"""Namespace of operators that are told once for all rows and are a kernel for each expert (``_apply_bias`` of
Megatron-Core's ``transformer/moe/experts.py``)."""
PACKED = (1, 2, 4, 8)
"""Elements that a packed weight may hold in one: two of 4 bits in a byte, eight in 32 bits."""


@registered
class GroupedProducts(Kind):
    """``aten::_grouped_mm`` and the fused layers of serving stacks.

    A grouped product multiplies rows that are sorted by expert, (tokens, k) x (experts, k, n), or is a gradient of
    that.  The fused kernels (``fused_experts``, ``fused_moe``, ``moe_forward``, ``fused_marlin_moe`` of vLLM and
    SGLang) are a whole layer: tokens (tokens, hidden), the weights in (experts, 2 or 1 x inner, hidden) and out
    (experts, hidden, inner), and the experts of every token (tokens, topk).
    """

    names = """
        grouped_mm _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 scaled_grouped_mm
        fused_experts inplace_fused_experts outplace_fused_experts
        fused_moe inplace_fused_moe outplace_fused_moe cutlass_fused_moe trtllm_fused_moe flashinfer_fused_moe
        moe_forward moe_forward_shared moe_fused
        fused_marlin_moe marlin_moe
        """
    words = "fused_experts fused_moe moe_forward marlin_moe moe_fused"
    kernels = "experts"

    def kernels_of(self, name: str) -> str:
        """Grouped products are tiled as other products are (CUTLASS, cuBLAS); layers in one kernel have their own."""
        return "matrix" if _GROUPED in name else self.kernels

    def problem(self, call: Call) -> str:
        if sum(len(s) >= 2 for s in call.inputs) < 2 or expert_sizes(call):
            return ""
        shapes = ", ".join(str(list(s)) for s in call.inputs[:4])
        return f"{call.full_name or call.name}: the shapes {shapes} do not tell tokens and experts"

    def flop(self, call: Call) -> float:
        found = expert_sizes(call)
        return found.flop() if found else math.nan

    def work(self, call: Call) -> ExpertsWork | ProductWork | None:
        """Sizes of the call, None where its shapes do not tell."""
        found = expert_sizes(call)
        return _as_products(call, found) if found and _GROUPED in call.name else found

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        found = expert_sizes(call)
        if found is None or call.backward:
            return None
        tokens = next(at for at, s in enumerate(call.inputs) if len(s) >= 2)
        if found.matrices > 1:
            return (CallResult(call.inputs[tokens], call.dtype(tokens)),)
        a, b = [s for s in call.inputs if len(s) in (2, 3)][:2]
        if len(a) == len(b) == 2:
            return None  # the gradient of weights: how many experts there are is not told
        return (CallResult((*a[:-1], b[-1]) if len(a) == len(b) else (a[-2], b[-1]), call.dtype(tokens)),)

    def dims(self, call: Call) -> Dims:
        """Rows keep their labels through the experts; which expert a weight is of follows nothing."""
        found = expert_sizes(call)
        gradient = _gradient_dims(call)
        if gradient is not None:
            return gradient
        source = next((at for at, s in enumerate(call.inputs) if len(s) >= 2), -1)
        if found is None or found.weight < 0 or math.prod(call.inputs[source][:-1]) != found.tokens:
            return unknown(call)
        x = call.inputs[source]
        rows, length, columns = tuple(range(len(x) - 1)), len(x) - 1, len(x)
        ins = [rows if s and s[:-1] == x[:-1] else () for s in call.inputs]
        ins = [(*r, NO_LABEL) if r else (NO_LABEL,) * len(s) for r, s in zip(ins, call.inputs, strict=True)]
        ins[source] = (*rows, length)
        last = length if found.matrices > 1 else columns
        if found.matrices == 1:
            ins[found.weight] = (NO_LABEL, length, columns)
        outs = tuple(
            Output((*rows, last) if len(s) == len(x) and s[:-1] == x[:-1] else (NO_LABEL,) * len(s))
            for s in call.outputs
        )
        linear = (at_once(source), at_once(found.weight)) if found.matrices == 1 else ()
        return Dims(tuple(ins), outs, linear=linear)


def _gradient_dims(call: Call) -> Dims | None:
    """Of the gradient of weights: (m, tokens) x (tokens, n) -> (experts, m, n); None for another call."""
    matrices = [(at, s) for at, s in enumerate(call.inputs) if len(s) == 2 and all(s)][:2]
    made = call.outputs[0] if call.outputs else ()
    if "grouped_mm" not in call.name or call.backward or len(matrices) < 2 or len(made) != 3:
        return None
    (first, a), (second, b) = matrices
    if a[1] != b[0] or made[1:] != (a[0], b[1]):
        return None
    m, rows, n = 0, 1, 2
    ins: list[tuple[int, ...]] = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[first], ins[second] = (m, rows), (rows, n)
    outs = (Output((NO_LABEL, m, n)), *(Output((NO_LABEL,) * len(s)) for s in call.outputs[1:]))
    return Dims(tuple(ins), outs, linear=(at_once(first), at_once(second)))


def expert_sizes(call: Call) -> ExpertsWork | None:
    """Tokens, experts and their matrices of a call of this kind; None where its shapes do not tell."""
    found = _single(call) if _GROUPED in call.name else _layer(call)
    return found._replace(family="marlin") if found and "marlin" in call.name else found


def _as_products(call: Call, found: ExpertsWork) -> ProductWork:
    """A grouped product as a batch with one product for each expert, each with as many rows as the mean."""
    rows = found.tokens / found.experts
    if found.weight < 0 and not call.backward:  # the gradient of weights sums over the rows, padded to whole loads
        return ProductWork(found.hidden, found.inner, math.ceil(rows / _LOAD) * _LOAD, found.experts, found.times)
    return ProductWork(rows, found.inner, found.hidden, found.experts, found.times)


def _single(call: Call) -> ExpertsWork | None:
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
        return ExpertsWork(grad[0], 1.0, hidden, grad[1], weight[0], 1, 1.0, float(max(count, 1)), -1)
    if len(a) == 2 and len(b) == 3:
        return ExpertsWork(a[0], 1.0, a[1], b[2], b[0], 1, 1.0, 1.0, at) if a[1] == b[1] else None
    if len(a) == 3 and len(b) == 3:  # as many rows for each
        return ExpertsWork(a[0] * a[1], 1.0, a[2], b[2], b[0], 1, 1.0, 1.0, at) if a[2] == b[1] else None
    if len(a) == 3:  # transposed: (experts, m, k) x (k, tokens)
        return ExpertsWork(b[1], 1.0, a[2], a[1], a[0], 1, 1.0, 1.0, matrices[0][0]) if a[2] == b[0] else None
    count = call.outputs[0][0] if call.outputs and len(call.outputs[0]) == 3 else 1
    return ExpertsWork(a[1], 1.0, a[0], b[1], count, 1, 1.0, 1.0, -1) if a[1] == b[0] else None  # weights' gradient


def _layer(call: Call) -> ExpertsWork | None:
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
            return ExpertsWork(rows, topk, hidden, inner, first[0], 1 + first[1] // inner, float(packed), 1.0, place)
    return None


def _topk(call: Call, rows: int, experts: int) -> float | None:
    """Experts of each token: an argument, or the columns of the chosen experts' numbers."""
    for name in _TOPK:
        value = call.args.get(name)
        if isinstance(value, int) and value > 0:
            return float(value)
    chosen: Shape | None = call.shape("topk_ids", "topk_weights", "token_selected_experts")
    if chosen is None:
        after = [s for s in call.inputs[1:] if len(s) == 2 and s[0] == rows and s[1] < experts]
        chosen = after[0] if after else None
    return float(chosen[-1]) if chosen else None
