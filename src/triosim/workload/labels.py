"""Which output dimensions of an operator follow which input dimensions.

A rule gives every dimension of every tensor of one call a *label*, as in an einsum: dimensions with the same label
have the same extent because the operator makes them so.  Two questions are answered from the labels, by the same
walk through a trace: which dimensions grow with the batch or the sequence (:mod:`triosim.workload.rescale`), and
what a tensor-parallel rank computes when a weight is sharded (:mod:`triosim.parallelism.tensor`).

A label that some inputs of an output have and the output has not is summed over, or, if the rule says so, needs
the whole extent at once (softmax, layer norm, a convolution's window).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from triosim.workload.experts import sizes
from triosim.workload.operators import Call

Shape = tuple[int, ...]
NO_LABEL = -1

MM_NAMES = {"mm", "addmm", "_addmm_activation", "_scaled_mm"}
RESHAPES = {
    "view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten", "unsqueeze", "squeeze",
    "_reshape_copy", "view_copy",
}  # fmt: skip
SPLITS = {
    "split", "split_with_sizes", "chunk", "unbind", "slice", "narrow", "select", "tensor_split", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "split_copy", "split_with_sizes_copy",
}  # fmt: skip
PERMUTES = {"t", "transpose", "permute", "swapaxes", "movedim", "numpy_t", "adjoint", "mt"}
LINEAR_REDUCTIONS = {"sum", "mean", "nansum"}


@dataclass(frozen=True)
class Output:
    """Labels of one output and the inputs that it is computed from (all, where None)."""

    labels: tuple[int, ...]
    inputs: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Labels:
    """The labels of one call.

    Attributes:
        inputs: labels of each input's dimensions; :data:`NO_LABEL` where a dimension says nothing (extent 1).
        outputs: labels of each output.
        whole: labels whose whole extent is needed at once.
        reshape: the outputs are the first input's elements in the same order with other dimensions.
        elementwise: the operator is linear in each element (a sum of partial sums may pass through it).
        known: False where no rule fits: nothing may be concluded.
    """

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]
    whole: frozenset[int] = frozenset()
    reshape: bool = False
    known: bool = True
    split: int | None = field(default=None)
    """Label of a dimension that is cut into parts (split, slice, cat): extents differ but follow in proportion."""


def labels(call: Call) -> Labels:
    """The labels of a call's dimensions (see the module's docstring)."""
    rule = _RULES.get(call.kind)
    found = rule(call) if rule else None
    return found if found is not None else _aligned(call)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _unknown(call: Call) -> Labels:
    blank = tuple((NO_LABEL,) * len(s) for s in call.inputs)
    return Labels(blank, tuple(Output((NO_LABEL,) * len(s)) for s in call.outputs), known=False)


def _align_right(shape: Shape, reference: Shape) -> tuple[int, ...] | None:
    """Labels of ``shape`` under numpy broadcasting against ``reference`` (labels are reference dimensions)."""
    shift = len(reference) - len(shape)
    if shift < 0:
        return None
    out = []
    for d, extent in enumerate(shape):
        if extent == reference[d + shift]:
            out.append(d + shift)
        elif extent == 1:
            out.append(NO_LABEL)
        else:
            return None
    return tuple(out)


def _align_left(shape: Shape, reference: Shape) -> tuple[int, ...] | None:
    """Labels of ``shape`` when its dimensions are the leading ones of ``reference``."""
    out = []
    for d, extent in enumerate(shape):
        if d < len(reference) and extent == reference[d]:
            out.append(d)
        elif extent == 1:
            out.append(NO_LABEL)
        else:
            return None
    return tuple(out)


def _aligned(call: Call) -> Labels:
    """Elementwise with broadcasting: the default for operators whose shapes allow it."""
    shapes = [s for s in (*call.outputs, *call.inputs) if s]
    if not shapes:
        return Labels(tuple(() for _ in call.inputs), tuple(Output(()) for _ in call.outputs))
    reference = max(shapes, key=lambda s: (len(s), math.prod(s)))
    reference = _broadcast(shapes) or reference
    known = True

    def align(shape: Shape) -> tuple[int, ...]:
        nonlocal known
        found = _align_right(shape, reference)
        if found is None:
            found = _align_left(shape, reference)
        if found is None:
            if call.kind not in ("elementwise", "copy", "create"):
                known = False
            return (NO_LABEL,) * len(shape)
        return found

    ins = tuple(align(s) for s in call.inputs)
    outs = tuple(Output(align(s)) for s in call.outputs)
    if call.kind == "other" and not any(o.labels for o in outs) and call.outputs:
        known = known and not any(s for s in call.inputs)
    if call.kind in ("elementwise", "copy") and any(
        s and all(l == NO_LABEL for l in o.labels) and math.prod(s) > 1 for s, o in zip(call.outputs, outs, strict=True)
    ):
        known = False
    return Labels(ins, outs, known=known)


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    rank = max(len(s) for s in shapes)
    out = []
    for d in range(rank):
        extents = {s[d - rank + len(s)] for s in shapes if d - rank + len(s) >= 0} - {1}
        if len(extents) > 1:
            return None
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def _dims(call: Call, name: str, rank: int, default: object = None) -> list[int] | None:
    value = call.args.get(name, default)
    if value is None:
        return None
    listed = [value] if isinstance(value, int) else list(value)
    return [d % rank if rank else 0 for d in listed]


def _by_shape(shape: Shape, candidates: Sequence[tuple[Shape, tuple[int, ...]]]) -> tuple[int, ...] | None:
    for other, found in candidates:
        if other == shape:
            return found
    return None


# --- rules, one per kind --------------------------------------------------------------------------------------------


def _linear(call: Call) -> Labels | None:
    if call.name == "linear" or (call.backward and call.find("weight") >= 0):
        return _linear_coarse(call)
    a, b = call.find("mat1", "self"), call.find("mat2", "other")
    bias = -1
    if call.name in ("addmm", "_addmm_activation"):
        a, bias = call.find("mat1"), call.find("self", "input")
    if a < 0 or b < 0 or len(call.inputs[a]) != 2 or len(call.inputs[b]) != 2 or not call.outputs:
        return _unknown(call)
    m, k, n = 0, 1, 2
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[a], ins[b] = (m, k), (k, n)
    if bias >= 0:
        ins[bias] = {1: (n,), 2: (m, n)}.get(len(call.inputs[bias]), ())
        ins[bias] = tuple(l if e > 1 else NO_LABEL for l, e in zip(ins[bias], call.inputs[bias], strict=True))
    return Labels(
        tuple(ins), tuple(Output((m, n)) if len(s) == 2 else Output((NO_LABEL,) * len(s)) for s in call.outputs)
    )


def _linear_coarse(call: Call) -> Labels:
    """``linear`` and its autograd node: input [..., k], weight [n, k], bias [n], output or its gradient [..., n]."""
    source, weight, bias = call.find("input", "self", "mat1"), call.find("weight"), call.find("bias")
    grad = call.find("grad_output", "grad")
    rank = max(
        [len(call.inputs[i]) for i in (source, grad) if i >= 0] + [len(s) for s in call.outputs if not call.backward]
    )
    rows = tuple(range(rank - 1))
    k, n = rank, rank + 1
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    candidates: list[tuple[Shape, tuple[int, ...]]] = []
    for at, row in ((source, (*rows, k)), (weight, (n, k)), (bias, (n,)), (grad, (*rows, n))):
        if at >= 0 and len(call.inputs[at]) == len(row):
            ins[at] = row
            if at != grad:
                candidates.append((call.inputs[at], row))
    if not call.backward:
        return Labels(
            tuple(ins),
            tuple(Output((*rows, n)) if len(s) == rank else Output((NO_LABEL,) * len(s)) for s in call.outputs),
        )
    outs = []
    for shape in call.outputs:
        if source >= 0 and shape == call.inputs[source]:
            outs.append(Output((*rows, k), (grad, weight)))
        elif weight >= 0 and shape == call.inputs[weight]:
            outs.append(Output((n, k), (grad, source)))
        elif len(shape) == 1:
            outs.append(Output((n,), (grad,)))
        else:
            outs.append(Output((NO_LABEL,) * len(shape), ()))
    return Labels(tuple(ins), tuple(outs), known=all(NO_LABEL not in o.labels for o in outs))


def _matmul(call: Call) -> Labels | None:
    if call.backward or call.name == "einsum" or not call.outputs:
        return _einsum(call)
    a, b = call.find("batch1", "mat1", "self", "tensor1"), call.find("batch2", "mat2", "other", "vec2", "vec")
    bias = -1
    if call.name in ("baddbmm", "addbmm", "addmv"):
        bias, a = call.find("self"), call.find("batch1", "mat", "mat1")
    if a < 0 or b < 0:
        return _unknown(call)
    x, y, out = call.inputs[a], call.inputs[b], call.outputs[0]
    rank = max(len(x), len(y), len(out), 2)
    m, k, n = rank, rank + 1, rank + 2

    def batch(shape: Shape, own: int) -> tuple[int, ...]:
        lead = shape[: len(shape) - own]
        return tuple(rank - own - len(lead) + i if e > 1 else NO_LABEL for i, e in enumerate(lead))

    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[a] = (k,) if len(x) == 1 else (*batch(x, 2), m, k)
    ins[b] = (k,) if len(y) == 1 else (*batch(y, 2), k, n)
    tail = ((m,) if len(x) > 1 else ()) + ((n,) if len(y) > 1 else ())
    if len(out) < len(tail):
        return _unknown(call)
    lead = out[: len(out) - len(tail)]
    o = (*(rank - 2 - len(lead) + i for i in range(len(lead))), *tail)
    if bias >= 0:
        aligned = _align_right(call.inputs[bias], out)
        ins[bias] = (
            tuple(o[l] if l >= 0 else NO_LABEL for l in aligned) if aligned else (NO_LABEL,) * len(call.inputs[bias])
        )
    return Labels(tuple(ins), (Output(o), *(Output((NO_LABEL,) * len(s)) for s in call.outputs[1:])))


def _experts(call: Call) -> Labels | None:
    """Rows keep their labels through the experts; which expert a weight is of follows nothing."""
    found = sizes(call)
    source = next((at for at, s in enumerate(call.inputs) if len(s) >= 2), -1)
    if found is None or found.weight < 0 or math.prod(call.inputs[source][:-1]) != found.tokens:
        return _unknown(call)
    x = call.inputs[source]
    rows, length, columns = tuple(range(len(x) - 1)), len(x) - 1, len(x)
    ins = [rows if s and s[:-1] == x[:-1] else () for s in call.inputs]
    ins = [(*r, NO_LABEL) if r else (NO_LABEL,) * len(s) for r, s in zip(ins, call.inputs, strict=True)]
    ins[source] = (*rows, length)
    last = length if found.matrices > 1 else columns
    if found.matrices == 1:
        ins[found.weight] = (NO_LABEL, length, columns)
    outs = tuple(
        Output((*rows, last) if len(s) == len(x) and s[:-1] == x[:-1] else (NO_LABEL,) * len(s)) for s in call.outputs
    )
    return Labels(tuple(ins), outs)


def _einsum(call: Call) -> Labels | None:
    """``einsum`` with its equation; coarse backward nodes of matrix products are not resolved."""
    equation = call.args.get("equation")
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return _unknown(call)
    left, right = equation.replace(" ", "").split("->")
    letters: dict[str, int] = {}
    rows = [tuple(letters.setdefault(c, len(letters)) for c in term) for term in left.split(",")]
    if [len(r) for r in rows] != [len(s) for s in call.inputs]:
        return _unknown(call)
    return Labels(tuple(rows), (Output(tuple(letters[c] for c in right)),))


def _convolution(call: Call) -> Labels | None:
    weight = call.find("weight")
    source, grad, bias = call.find("input", "self"), call.find("grad_output", "grad"), call.find("bias")
    if weight < 0:
        return _unknown(call)
    spatial = len(call.inputs[weight]) - 2
    groups = int(call.args.get("groups", 1) or 1)
    transposed = bool(call.args.get("transposed")) or "transpose" in call.name
    if source >= 0 and groups == 1 and not transposed and len(call.inputs[source]) == spatial + 2:
        groups = max(call.inputs[source][1] // max(call.inputs[weight][1], 1), 1)
    b, o = 0, 1
    c = 1 if groups > 1 else 2  # with groups an output channel belongs to input channels: one label for both
    space = tuple(range(3, 3 + spatial))
    window = (NO_LABEL,) * spatial
    w = (c, o, *window) if transposed else (o, c if groups == 1 else NO_LABEL, *window)
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    x, y = (b, c, *space), (b, o, *window)
    for at, row in ((source, x), (weight, w), (bias, (o,)), (grad, y)):
        if at >= 0 and len(call.inputs[at]) == len(row):
            ins[at] = row
    whole = frozenset(space)
    if not call.backward:
        return Labels(
            tuple(ins),
            tuple(Output(y) if len(s) == spatial + 2 else Output((NO_LABEL,) * len(s)) for s in call.outputs),
            whole,
        )
    outs: list[Output] = []
    for shape in call.outputs:
        if source >= 0 and shape == call.inputs[source] and not any(out.labels == x for out in outs):
            outs.append(Output(x, tuple(i for i in (grad, weight) if i >= 0)))
        elif shape == call.inputs[weight]:
            outs.append(Output(w, tuple(i for i in (grad, source) if i >= 0)))
        elif len(shape) == 1:
            outs.append(Output((o,) if math.prod(shape) else (NO_LABEL,), (grad,) if grad >= 0 else ()))
        else:
            outs.append(Output((NO_LABEL,) * len(shape), ()))
    return Labels(tuple(ins), tuple(outs), whole)


def _attention(call: Call) -> Labels | None:
    """Query [b, h, s, d], key and value [b, h', t, d]; heads of key and value follow those of the query."""
    q, k, v = call.find("query", "q"), call.find("key", "k"), call.find("value", "v")
    if q < 0 or k < 0 or v < 0 or len(call.inputs[q]) != 4:
        return _unknown(call)
    b, h, s, t, d, e = range(6)
    if call.name.startswith("_flash_attention") or call.name.startswith("_efficient_attention"):
        query, key, value = (b, s, h, d), (b, t, h, d), (b, t, h, e)
    else:
        query, key, value = (b, h, s, d), (b, h, t, d), (b, h, t, e)
    result = tuple(e if l == d else l for l in query)
    ins = [(NO_LABEL,) * len(x) for x in call.inputs]
    ins[q], ins[k], ins[v] = query, key, value
    others = dict.fromkeys(("grad_out", "grad_output", "out", "output", "grad"), result)
    others |= {"logsumexp": (b, h, s), "attn_bias": (b, h, s, t), "attn_mask": (b, h, s, t)}
    for role, row in others.items():
        at = call.find(role)
        if at >= 0:
            shape = call.inputs[at]
            row = row[len(row) - len(shape) :] if len(shape) <= len(row) else (NO_LABEL,) * len(shape)
            ins[at] = tuple(l if x > 1 else NO_LABEL for l, x in zip(row, shape, strict=True))
    outs: list[Output] = []
    if call.backward:
        wanted = [query, key, value]
        for at, shape in enumerate(call.outputs):
            ok = at < 3 and len(shape) == 4
            outs.append(Output(wanted[at] if ok else (NO_LABEL,) * len(shape)))
    else:
        for at, shape in enumerate(call.outputs):
            if at == 0 and len(shape) == 4:
                outs.append(Output(result))
            elif at == 1 and len(shape) == 3:
                outs.append(Output((b, h, s)))
            elif at == 1 and len(shape) == 4:
                outs.append(Output((b, h, s, t)))
            else:
                outs.append(Output((NO_LABEL,) * len(shape), ()))
    return Labels(tuple(ins), tuple(outs), frozenset((t, d, e)) if not call.backward else frozenset((d, e)))


def _embedding(call: Call) -> Labels | None:
    table, where, grad = call.find("weight"), call.find("indices"), call.find("grad_output", "grad")
    if where < 0:
        where = call.find("input", "self")
    if where < 0 or not call.outputs:
        return _unknown(call)
    rank = len(call.inputs[where])
    rows, v, d = tuple(range(rank)), rank, rank + 1
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[where] = rows
    if table >= 0:
        ins[table] = (v, d)
    if grad >= 0 and len(call.inputs[grad]) == rank + 1:
        ins[grad] = (*rows, d)
    if call.backward:
        return Labels(tuple(ins), tuple(Output((v, d) if len(s) == 2 else (NO_LABEL,) * len(s)) for s in call.outputs))
    return Labels(
        tuple(ins), tuple(Output((*rows, d) if len(s) == rank + 1 else (NO_LABEL,) * len(s)) for s in call.outputs)
    )


def _normalization(call: Call) -> Labels | None:
    source = call.find("input", "self")
    if source < 0:
        return _aligned(call)
    x = call.inputs[source]
    grad = call.find("grad_out", "grad_output", "grad")
    weight = call.find("weight")
    full = tuple(range(len(x)))
    per_channel = "batch_norm" in call.name or "group_norm" in call.name or "instance_norm" in call.name
    affine = (1,) if per_channel else full[len(x) - len(call.inputs[weight]) :] if weight >= 0 else full[-1:]
    if not per_channel and isinstance(call.args.get("normalized_shape"), list):
        affine = full[len(x) - len(call.args["normalized_shape"]) :]
    rows = full[: len(x) - len(affine)]

    def row_of(shape: Shape) -> tuple[int, ...]:
        if shape == x:
            return full
        if per_channel:
            return (1,) if len(shape) == 1 and len(x) > 1 and shape[0] == x[1] else (NO_LABEL,) * len(shape)
        if shape == tuple(x[d] for d in affine):
            return affine
        found = _align_left(shape, tuple(x[d] for d in rows))
        return found if found is not None else (NO_LABEL,) * len(shape)

    ins = tuple(row_of(s) for s in call.inputs)
    outs = []
    for shape in call.outputs:
        row = row_of(shape)
        if call.backward and row == affine and grad >= 0:
            outs.append(Output(row, (grad, source)))
        else:
            outs.append(Output(row))
    if "group_norm" in call.name:
        whole = frozenset(full[1:])
    else:
        whole = frozenset() if per_channel else frozenset(affine)
    return Labels(ins, tuple(outs), whole)


def _softmax(call: Call) -> Labels | None:
    base = _aligned(call)
    rank = max((len(s) for s in call.inputs), default=0)
    dim = _dims(call, "dim", rank, -1) if rank else None
    return Labels(base.inputs, base.outputs, frozenset(dim or ()), known=base.known)


def _reduction(call: Call) -> Labels | None:
    if call.name in ("cumsum", "cumprod") or call.backward or not call.inputs:
        base = _aligned(call)
        dims = _dims(call, "dim", max((len(s) for s in call.inputs), default=0))
        return Labels(base.inputs, base.outputs, frozenset(dims or ()), known=base.known)
    source = max(call.find("self", "input"), 0)
    x = call.inputs[source]
    full = tuple(range(len(x)))
    dims = _dims(call, "dim", len(x))
    if dims is None or not dims:
        dims = list(full) if all(math.prod(s) == 1 for s in call.outputs) else _guess_reduced(x, call.outputs)
    if dims is None:
        return _unknown(call)
    kept = tuple(d for d in full if d not in dims)
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[source] = full
    outs = []
    for shape in call.outputs:
        if len(shape) == len(kept):
            outs.append(Output(kept))
        elif len(shape) == len(full):
            outs.append(Output(tuple(d if d in kept else NO_LABEL for d in full)))
        else:
            return _unknown(call)
    whole = frozenset() if call.name in LINEAR_REDUCTIONS else frozenset(dims)
    return Labels(tuple(ins), tuple(outs), whole)


def _guess_reduced(x: Shape, outputs: Sequence[Shape]) -> list[int] | None:
    """Reduced dimensions of a coarse call without arguments: what is missing on the right, or has become 1."""
    for shape in outputs:
        if len(shape) == len(x):
            return [d for d in range(len(x)) if shape[d] != x[d]]
        if shape == x[: len(shape)]:
            return list(range(len(shape), len(x)))
        if shape == x[len(x) - len(shape) :]:
            return list(range(len(x) - len(shape)))
    return None


def _pooling(call: Call) -> Labels | None:
    """[b, c, window...] to [b, c, window...]: batch and channel stay, positions mix."""
    reference = call.shape("self", "input", "grad_output") or (call.inputs[0] if call.inputs else ())
    rank = len(reference)
    lead = tuple(range(min(2, max(rank - 1, 0)))) if rank > 2 else ()

    def row(shape: Shape, positions: tuple[int, ...]) -> tuple[int, ...]:
        return (*lead, *positions) if len(shape) == rank else (NO_LABEL,) * len(shape)

    space = tuple(range(len(lead), rank))
    ins = tuple(row(s, space) for s in call.inputs)
    outs = tuple(Output(row(s, (NO_LABEL,) * len(space))) for s in call.outputs)
    return Labels(ins, outs, frozenset(space))


def _view(call: Call) -> Labels | None:
    if not call.inputs or not call.outputs:
        return _unknown(call)
    x = call.inputs[0]
    full = tuple(range(len(x)))
    rest = tuple((NO_LABEL,) * len(s) for s in call.inputs[1:])
    name = call.name
    if name in RESHAPES or (
        call.backward and len(call.outputs) == 1 and math.prod(x) == math.prod(call.outputs[0]) and name not in PERMUTES
    ):
        return Labels((full, *rest), tuple(Output(tuple(range(len(s)))) for s in call.outputs), reshape=True)
    if name in PERMUTES:
        order = _permutation(call, len(x))
        if order is None or tuple(x[d] for d in order) != call.outputs[0]:
            return _unknown(call)
        return Labels((full, *rest), (Output(tuple(order)),))
    if name in SPLITS:
        return _split(call, rest)
    if name in ("view_as_complex", "view_as_real"):
        n = min(len(x), len(call.outputs[0]))
        return Labels(
            ((*full[:n], *(NO_LABEL,) * (len(x) - n)), *rest),
            (Output((*full[:n], *(NO_LABEL,) * (len(call.outputs[0]) - n))),),
        )
    if name in ("as_strided", "unfold", "diagonal", "set_") and call.outputs[0] != x:
        return _unknown(call)
    return _aligned(call)


def _permutation(call: Call, rank: int) -> list[int] | None:
    if call.name in ("t", "numpy_t", "adjoint", "mt"):
        if call.name in ("t", "numpy_t"):
            return list(range(rank))[::-1]
        return [*range(rank - 2), rank - 1, rank - 2]
    if call.name == "permute":
        return _dims(call, "dims", rank)
    if rank == 0:
        return None
    a, b = call.args.get("dim0", call.args.get("axis0")), call.args.get("dim1", call.args.get("axis1"))
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    order = list(range(rank))
    order[a % rank], order[b % rank] = order[b % rank], order[a % rank]
    return order


def _split(call: Call, rest: tuple[tuple[int, ...], ...]) -> Labels | None:
    x = call.inputs[0]
    full = tuple(range(len(x)))
    if call.backward:
        return _split_backward(call, rest)
    dims = _dims(call, "dim", len(x), 0)
    dim = dims[0] if dims else 0
    outs = []
    for shape in call.outputs:
        if len(shape) == len(x):
            outs.append(Output(full))
        elif len(shape) == len(x) - 1:
            outs.append(Output(tuple(d for d in full if d != dim), (0,)))
        else:
            return _unknown(call)
    return Labels((full, *rest), tuple(outs), split=dim)


def _split_backward(call: Call, rest: tuple[tuple[int, ...], ...]) -> Labels | None:
    """The gradient of a part, put into zeros of the whole's shape."""
    x, y = call.inputs[0], call.outputs[0]
    full = tuple(range(len(y)))
    dims = _dims(call, "dim", len(y))
    if len(x) == len(y):
        differ = dims or [d for d in full if x[d] != y[d]]
        return Labels((full, *rest), (Output(full),), split=differ[0] if differ else None)
    if len(x) == len(y) - 1 and dims:
        kept = tuple(d for d in full if d != dims[0])
        return Labels((kept, *rest), (Output(tuple(d if d != dims[0] else NO_LABEL for d in full)),))
    return _unknown(call)


def _copy(call: Call) -> Labels | None:
    if call.name in ("cat", "_cat", "hstack", "vstack") and call.outputs and not call.backward:
        out = call.outputs[0]
        dims = _dims(call, "dim", len(out), 0) or [0]
        full = tuple(range(len(out)))
        ins = tuple(full if len(s) == len(out) else (NO_LABEL,) * len(s) for s in call.inputs)
        return Labels(ins, (Output(full),), split=dims[0])
    if call.name == "stack" and call.outputs and not call.backward:
        out = call.outputs[0]
        dim = (_dims(call, "dim", len(out), 0) or [0])[0]
        kept = tuple(d for d in range(len(out)) if d != dim)
        return Labels(
            tuple(kept for _ in call.inputs), (Output(tuple(d if d != dim else NO_LABEL for d in range(len(out)))),)
        )
    if call.name in ("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d") and call.inputs and call.outputs:
        x, y = call.inputs[0], call.outputs[0]
        row = tuple(d if a == b else NO_LABEL for d, (a, b) in enumerate(zip(x, y, strict=False)))
        return Labels((row, *((NO_LABEL,) * len(s) for s in call.inputs[1:])), (Output(row),))
    if call.name in ("copy", "to", "_to_copy", "clone", "contiguous") and len(call.inputs) >= 1 and call.outputs:
        x, y = call.inputs[-1], call.outputs[0]
        if math.prod(x) == math.prod(y) and x != y and len(call.inputs) == 1:
            return Labels((tuple(range(len(x))),), (Output(tuple(range(len(y)))),), reshape=True)
    return _aligned(call)


def _create(call: Call) -> Labels | None:
    outs = []
    ins = tuple(tuple(range(len(s))) for s in call.inputs)
    for shape in call.outputs:
        same = any(shape == s for s in call.inputs)
        outs.append(Output(tuple(range(len(shape))) if same else (NO_LABEL,) * len(shape), None if same else ()))
    return Labels(
        tuple(i if call.inputs[at] in call.outputs else (NO_LABEL,) * len(i) for at, i in enumerate(ins)), tuple(outs)
    )


def _loss(call: Call) -> Labels | None:
    """Scores [rows..., classes, ...] against targets; the scores' class dimension is 1 (0 for a single row)."""
    source = call.find("self", "input")
    if source < 0:
        return _aligned(call)
    x = call.inputs[source]
    full = tuple(range(len(x)))
    classes = 1 if len(x) > 1 else 0
    target = call.find("target")
    ins = [(NO_LABEL,) * len(s) for s in call.inputs]
    ins[source] = full
    whole: frozenset[int] = frozenset()
    if "nll" in call.name or "cross_entropy" in call.name:
        if target >= 0 and len(call.inputs[target]) == len(x) - 1:
            ins[target] = tuple(d for d in full if d != classes)
        elif target >= 0 and call.inputs[target] == x:
            ins[target] = full
        whole = frozenset((classes,))
    elif target >= 0 and call.inputs[target] == x:
        ins[target] = full
    rows = tuple(d for d in full if d != classes)
    grad = call.find("grad_output", "grad")
    if grad >= 0 and call.inputs[grad] == tuple(x[d] for d in rows):
        ins[grad] = rows
    outs = []
    for shape in call.outputs:
        if shape == x:
            outs.append(Output(full))
        elif shape and shape == tuple(x[d] for d in rows):
            outs.append(Output(rows))
        else:
            outs.append(Output((NO_LABEL,) * len(shape)))
    return Labels(tuple(ins), tuple(outs), whole)


def _index(call: Call) -> Labels | None:
    if not call.inputs or not call.outputs:
        return _unknown(call)
    x = call.inputs[0]
    dims = _dims(call, "dim", len(x)) if len(x) else None
    out = call.outputs[0]
    full = tuple(range(len(x)))
    if call.name == "index_select" and dims and len(out) == len(x):
        row = tuple(d if d != dims[0] else NO_LABEL for d in full)
        return Labels((full, *((NO_LABEL,) * len(s) for s in call.inputs[1:])), (Output(row),), frozenset(dims))
    if call.name in ("gather", "scatter", "scatter_add", "scatter_reduce", "topk", "sort", "argsort") and len(
        out
    ) == len(x):
        row = tuple(d if d not in (dims or [len(x) - 1]) else NO_LABEL for d in full)
        ins = tuple(row if len(s) == len(x) else (NO_LABEL,) * len(s) for s in call.inputs)
        return Labels(
            ins,
            tuple(Output(row if len(s) == len(x) else (NO_LABEL,) * len(s)) for s in call.outputs),
            frozenset(dims or ()),
        )
    if out == x and not call.backward:
        return _aligned(call)
    return _unknown(call)


_RULES: dict[str, Callable[[Call], Labels | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "experts": _experts,
    "convolution": _convolution,
    "attention": _attention,
    "embedding": _embedding,
    "normalization": _normalization,
    "softmax": _softmax,
    "reduction": _reduction,
    "pooling": _pooling,
    "view": _view,
    "copy": _copy,
    "create": _create,
    "loss": _loss,
    "index": _index,
}
