"""Matrix products without a weight of their own: pairs of matrices, matrices and vectors, ``einsum``."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, at_once, bounded, broadcast, in_each, unknown
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._work import ProductWork
from triosim.operators.linear import product

_BIASED = ("baddbmm", "addbmm", "addmv")
_SECOND = ("batch2", "mat2", "other", "tensor", "vec2", "vec")


@registered
class Matmul(Kind):
    """``result[..., m, n] = self[..., m, k] other[..., k, n]``, pair by pair; a factor may be a vector [k].

    ``baddbmm`` and its relatives add their first input.  A backward is one coarse autograd node.
    """

    names = """
        bmm: self mat2
        baddbmm addbmm: self batch1 batch2 beta alpha
        matmul linalg_matmul: self other
        dot: self tensor
        vdot: self other
        mv: self vec
        addmv: self mat vec beta alpha
        einsum: equation tensors path
        """
    words = "matmul"
    kernels = "matrix"

    def problem(self, call: Call) -> str:
        if not call.inputs or call.name == "einsum":
            return ""
        if call.backward:
            return unmet(call, Need(GRADIENT_ROLES, 1, 9, False))
        if call.name in _BIASED:
            ranks = (2, 1) if call.name == "addmv" else (3, 3)
            return unmet(
                call,
                Need(("batch1", "mat", "mat1"), ranks[0], ranks[0]),
                Need(("batch2", "vec", "mat2"), ranks[1], ranks[1]),
            )
        least, most = {"bmm": (3, 3), "dot": (1, 1), "vdot": (1, 1), "mv": (1, 2)}.get(call.name, (1, 9))
        return unmet(call, Need(("batch1", "mat1", "self"), least, most), Need(_SECOND, least, most))

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if call.backward or call.name == "einsum":
            return None
        a = call.find("batch1", "mat", "mat1") if call.name in _BIASED else call.find("batch1", "mat1", "self")
        x, y = (call.inputs[a] if a >= 0 else ()), call.shape(*_SECOND) or ()
        if not x or not y:
            return None
        lead = broadcast((x[:-2], y[:-2])) if call.name != "addbmm" else ()
        if lead is None:
            return None
        return (CallResult((*lead, *x[-2:-1], *(y[-1:] if len(y) > 1 else ())), call.dtype(a)),)

    def flop(self, call: Call) -> float:
        biased = call.name in ("baddbmm", "addbmm")
        if call.backward:
            grad = call.shape(*GRADIENT_ROLES)
            others = [s for s, r in zip(call.inputs, call.roles, strict=True) if r not in GRADIENT_ROLES]
            if grad is None or not others:
                return math.nan
            inner = math.prod(others[0]) // max(math.prod(grad) // max(grad[-1], 1), 1)
            return 2.0 * math.prod(grad) * inner * max(len(call.outputs), 1)
        matrices = [s for s, r in zip(call.inputs, call.roles, strict=True) if not biased or r not in ("self", "input")]
        if not matrices or not call.outputs or not matrices[0]:
            return math.nan
        if call.name == "einsum":
            return 2.0 * math.sqrt(float(math.prod(call.outputs[0])) * math.prod(math.prod(s) for s in call.inputs))
        return 2.0 * math.prod(call.outputs[0]) * matrices[0][-1]

    def work(self, call: Call) -> ProductWork:
        return product(call, self.flop(call))

    def dims(self, call: Call) -> Dims:
        if call.backward or call.name == "einsum" or not call.outputs:
            return _einsum(call)
        a, b = call.find("batch1", "mat1", "self", "tensor1"), call.find(*_SECOND)
        bias = -1
        if call.name in _BIASED:
            bias, a = call.find("self"), call.find("batch1", "mat", "mat1")
        if a < 0 or b < 0:
            return unknown(call)
        x, y, out = call.inputs[a], call.inputs[b], call.outputs[0]
        if not x or not y:
            return unknown(call)
        tail = ("m",) * (len(x) > 1) + ("n",) * (len(y) > 1)
        lead = max(len(x) - 2, len(y) - 2, 0)
        if call.name == "addbmm":  # the pairs are summed
            made = tail
        else:
            made = (*(f"b{d}" for d in range(lead)), *tail)
        names = (*(f"b{d}" for d in range(lead)), "m", "k", "n")
        label = {name: at for at, name in enumerate(names)}

        def row(rank: int, own: tuple[str, ...]) -> tuple[int, ...]:
            return (*range(lead - (rank - len(own)), lead), *(label[name] for name in own))

        result = tuple(label[name] for name in made)
        if len(out) != len(result):
            return unknown(call)
        reads = {a: row(len(x), ("m", "k")[-len(x) :]), b: row(len(y), ("k", "n")[: len(y)])}
        if bias >= 0:
            reads[bias] = result[len(result) - len(call.inputs[bias]) :]
        ins, outs = bounded(call, reads, {0: result})
        linear = (at_once(bias, a), at_once(bias, b))
        return Dims(tuple(ins), tuple(map(Output, outs)), linear=linear, names=names)


def _einsum(call: Call) -> Dims:
    """``einsum`` with its equation; coarse backward nodes of matrix products are not resolved."""
    equation = call.args.get("equation")
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return unknown(call)
    left, right = equation.replace(" ", "").split("->", 1)
    letters: dict[str, int] = {}
    rows = [tuple(letters.setdefault(c, len(letters)) for c in term) for term in left.split(",")]
    if [len(r) for r in rows] != [len(s) for s in call.inputs]:
        return unknown(call)
    if any(c not in letters for c in right) or [len(right)] != [len(s) for s in call.outputs]:
        return unknown(call)
    ins, outs = bounded(call, dict(enumerate(rows)), {0: tuple(letters[c] for c in right)})
    return Dims(tuple(ins), (Output(outs[0]),), linear=in_each(*range(len(rows))), names=tuple(letters))
