"""Matrix products in which one factor may be a weight: ``linear``, ``addmm``, ``mm``, ``linear``'s autograd node."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import (
    GRADIENT_ROLES,
    Dims,
    Output,
    Row,
    at_once,
    bounded,
    in_gradient,
    unknown,
)
from triosim.operators._kind import Kind, Need, gradients_of, unmet
from triosim.operators._work import ProductWork

_LAYERS = ("linear", "mkldnn_linear", "linear_gelu")


@registered
class Linear(Kind):
    """``result[..., n] = input[..., k] weight[n, k] + bias[n]``; ``mm`` and ``addmm`` multiply (m, k) by (k, n).

    A backward is one coarse autograd node, which multiplies once for each gradient of a matrix.
    """

    names = """
        linear: input weight bias
        addmm _addmm_activation: self mat1 mat2 beta alpha
        mm: self mat2
        _scaled_mm: self mat2 scale_a scale_b bias scale_result out_dtype
        _scaled_mm_v2: self mat2
        _int_mm: self mat2
        mkldnn_linear: self weight bias
        linear_gelu
        """
    gradients = """
        linear_backward: self grad_output weight output_mask
        """
    words = "gemm"
    weights = ("weight", "bias")
    kernels = "matrix"

    def problem(self, call: Call) -> str:
        if not call.inputs:
            return ""
        first, second = ("input", "self", "mat1"), ("weight", "mat2", "other")
        if call.backward:
            grad, source = Need(GRADIENT_ROLES, 1, 9, False), Need(("input", "mat1", "self"), 1, 9, False)
            return unmet(call, grad, source, Need(second, 1, 2, False))
        if call.name in _LAYERS:
            return unmet(call, Need(first, 1, 9), Need(second, 1, 2))
        return unmet(call, Need(("mat1", "self", "input"), 2, 2), Need(second, 2, 2))

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if call.backward:
            return gradients_of(call, ("input", "mat1", "self"), ("weight", "mat2"))
        out = call.args.get("out_dtype")
        if call.name in _LAYERS:
            source, weight = call.find("input", "self"), call.find("weight")
            shape = (*call.inputs[source][:-1], *call.inputs[weight][:-1])
        else:
            source = call.find("mat1", "self", "input")
            shape = (call.inputs[source][0], (call.shape("mat2", "weight", "other") or (0,))[-1])
        return (CallResult(shape, out if isinstance(out, str) else call.dtype(source)),) if call.inputs else None

    def flop(self, call: Call) -> float:
        if call.backward:  # coarse autograd node: one product for each gradient of a matrix
            grad, source = call.shape(*GRADIENT_ROLES), call.shape("input", "mat1", "self")
            weight = call.shape("weight", "mat2", "other")
            if not grad or not (source or weight):
                return math.nan
            inner = source[-1] if source else math.prod(weight or ()) // max(grad[-1], 1)
            return 2.0 * math.prod(grad) * inner * max(sum(len(out) >= 2 for out in call.outputs), 1)
        if call.name in _LAYERS:
            source = call.shape("input", "self")
        else:
            source = call.shape("mat1", "self") if call.name != "mm" else call.shape("self", "mat1", "input")
        source = source if source is not None else (call.inputs[0] if call.inputs else None)
        if not source or not call.outputs:
            return math.nan
        return 2.0 * math.prod(call.outputs[0]) * source[-1]

    def work(self, call: Call) -> ProductWork:
        return product(call, self.flop(call))

    def dims(self, call: Call) -> Dims:
        if call.name in _LAYERS or call.backward:
            return _layer(call)
        a, b = call.find("mat1", "self"), call.find("mat2", "other")
        bias = call.find("accumulator")  # what the result is added to, in a type of its own
        if call.name in ("addmm", "_addmm_activation"):
            a, bias = call.find("mat1"), call.find("self", "input")
        if a < 0 or b < 0 or len(call.inputs[a]) != 2 or len(call.inputs[b]) != 2 or not call.outputs:
            return unknown(call)
        m, k, n = 0, 1, 2
        added = {1: (n,), 2: (m, n)}.get(len(call.inputs[bias]), ()) if bias >= 0 else ()
        ins, outs = bounded(call, {bias: added, a: (m, k), b: (k, n)}, dict.fromkeys(range(len(call.outputs)), (m, n)))
        linear = (at_once(bias, a), at_once(bias, b))
        return Dims(tuple(ins), tuple(map(Output, outs)), linear=linear, names=("m", "k", "n"))


def _layer(call: Call) -> Dims:
    """``linear`` and the autograd nodes of all products: input [..., k], weight [n, k] (or [k, n]), bias [n]."""
    source, weight, bias = call.find("input", "mat1", "self"), call.find("weight"), call.find("bias")
    grad = call.find(*GRADIENT_ROLES) if call.backward else -1
    turned = weight < 0  # the second factor of mm
    if turned:
        weight = call.find("mat2", "other")
    known = [call.inputs[i] for i in (source, grad) if i >= 0] + ([] if call.backward else list(call.outputs[:1]))
    rank = max(map(len, known), default=0)
    if weight < 0 or rank < 1:
        return unknown(call)
    single = len(call.inputs[weight]) == 1  # one column, which the result does not have
    if single and grad >= 0:
        rank = max(rank, len(call.inputs[grad]) + 1)
    rows = tuple(range(rank - 1))
    k, n = rank - 1, rank
    x, w = (*rows, k), (k,) if single else (k, n) if turned else (n, k)
    y = rows if single else (*rows, n)
    reads = {source: x, weight: w, bias: (n,), grad: y}
    names = (*(f"m{d}" for d in rows), "k", "n") if len(rows) != 1 else ("m", "k", "n")
    if not call.backward:
        ins, outs = bounded(call, reads, {0: y})
        linear = (at_once(source, bias), at_once(weight, bias))
        return Dims(tuple(ins), tuple(map(Output, outs)), linear=linear, names=names)
    made: dict[int, Row] = {}
    sources: dict[int, tuple[int, ...]] = {}
    for at, shape in enumerate(call.outputs):  # in the order of the forward's arguments
        if source >= 0 and shape == call.inputs[source] and x not in made.values():
            made[at], sources[at] = x, (grad, weight)
        elif shape == call.inputs[weight] and w not in made.values():
            made[at], sources[at] = w, (grad, source)
        elif len(shape) == 1:
            made[at], sources[at] = (n,), (grad,)
    ins, outs = bounded(call, reads, made)
    outputs = tuple(Output(row, sources.get(at, ())) for at, row in enumerate(outs))
    return Dims(tuple(ins), outputs, known=len(made) == len(outs), linear=in_gradient(call), names=names)


def product(call: Call, flop: float) -> ProductWork:
    """Sizes of the product; ``2 m n k batch times`` is ``flop`` up to rounding.

    A call whose roles or shapes do not tell the product becomes a cube of as much work.
    """
    sizes = _backward(call, flop) if call.backward else _forward(call, flop)
    if flop > 0 and not math.isclose(2.0 * math.prod(sizes), flop, rel_tol=1e-6):
        return ProductWork.cube(flop)
    return sizes


def _forward(call: Call, flop: float) -> ProductWork:
    out = call.outputs[0] if call.outputs else ()
    matrices = _factors(call)
    if not out or not matrices or call.name == "einsum":
        return ProductWork.cube(flop)
    k = float(matrices[0][-1]) if matrices[0] else 1.0
    if call.kind == "linear" and len(matrices) > 1 and len(matrices[1]) == 1:  # one column
        return ProductWork(float(math.prod(out)), 1.0, k, 1.0, 1.0)
    if call.kind == "linear" or (len(matrices) > 1 and len(matrices[1]) <= 2):  # one matrix for the whole batch
        return ProductWork(math.prod(out[:-1]) * 1.0, float(out[-1]), k, 1.0, 1.0)
    if len(out) < 2:
        return ProductWork(float(math.prod(out)), 1.0, k, 1.0, 1.0)
    return ProductWork(float(out[-2]), float(out[-1]), k, float(math.prod(out[:-2])), 1.0)


def _factors(call: Call) -> list[Shape]:
    """Shapes of the inputs that are multiplied; the first input of ``addmm`` and ``baddbmm`` is added."""
    added = ("addmm", "_addmm_activation", "baddbmm", "addbmm", "addmv")
    skip = ("bias", "self", "input") if call.name in added else ("bias",)
    return [shape for shape, role in zip(call.inputs, call.roles, strict=True) if role not in skip]


def _backward(call: Call, flop: float) -> ProductWork:
    grad = call.shape(*GRADIENT_ROLES)
    if not grad or not flop > 0:
        return ProductWork.cube(flop)
    batch = float(math.prod(grad[:-2])) if call.kind == "matmul" else 1.0
    rows = float(math.prod(grad[:-1])) / max(batch, 1.0)
    times = float(max(sum(len(out) >= 2 for out in call.outputs), 1))
    inner = flop / (2.0 * times * max(batch * rows * grad[-1], 1.0))
    return ProductWork(rows, inner, float(grad[-1]), batch, times)  # grad[rows, n] weight[n, inner]
