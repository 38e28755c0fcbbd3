"""Sums, means, extremes and the like over some dimensions; running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import (
    NO_LABEL,
    Dims,
    Output,
    aligned,
    blank,
    in_each,
    in_gradient,
    listed,
    numbers,
    unknown,
)
from triosim.operators._kind import Kind

LINEAR_REDUCTIONS = frozenset(("sum", "mean", "nansum"))
_RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@registered
class Reduction(Kind):
    """``result[kept...] = reduce over dim... of self[...]``, all dimensions where ``dim`` is not given."""

    names = """
        sum mean nansum nanmean prod: self dim keepdim dtype
        var std var_mean std_mean: self dim unbiased keepdim
        argmax argmin: self dim keepdim
        max min amax amin aminmax median nanmedian all any mode: self dim keepdim
        kthvalue: self k dim keepdim
        logsumexp: self dim keepdim
        norm: self p dim keepdim
        linalg_vector_norm linalg_norm: self ord dim keepdim
        frobenius_norm: self dim keepdim
        norm_except_dim: v pow dim
        cumsum cumprod: self dim dtype
        cummax cummin logcumsumexp: self dim
        count_nonzero: self dim
        _grad_sum_to_size sum_to_size: self size
        """
    stream = "reduction"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        source = max(call.find("self", "input"), 0)
        if call.backward or not call.inputs:
            return None
        x, dtype = call.inputs[source], call.dtype(source)
        if call.name in _RUNNING:
            return (
                (CallResult(x, dtype), CallResult(x, "int64"))
                if call.name in ("cummax", "cummin")
                else (CallResult(x, dtype),)
            )
        size = numbers(call, "size")
        if call.name in ("_grad_sum_to_size", "sum_to_size"):
            return (CallResult(size, dtype),) if size is not None else None
        dims = listed(call, "dim", len(x))
        if dims is None and call.args.get("dim") is not None:
            return None
        if dims is None and (len(call.inputs) > 1 or call.args):
            return None  # which dimensions is not told
        gone = set(dims or range(len(x)))
        keep = call.args.get("keepdim") is True
        shape = tuple(1 if d in gone else e for d, e in enumerate(x) if keep or d not in gone)
        if call.name in ("argmax", "argmin", "count_nonzero"):
            dtype = "int64"
        elif call.name in ("all", "any"):
            dtype = "bool"
        elif call.name in ("sum", "prod") and "float" not in dtype and dtype != "unknown":
            dtype = "int64"
        made = CallResult(shape, dtype)
        if call.name in ("var_mean", "std_mean", "aminmax"):
            return (made, made)
        if call.name in ("max", "min", "median", "mode", "kthvalue", "nanmedian") and dims:
            return (made, CallResult(shape, "int64"))
        return (made,)

    def dims(self, call: Call) -> Dims:
        if call.name in _RUNNING or call.backward or not call.inputs:
            base = aligned(call)
            dims = listed(call, "dim", max((len(s) for s in call.inputs), default=0))
            linear = in_each(0) if call.name == "cumsum" and not call.backward else in_gradient(call)
            return replace(base, whole=frozenset(dims or ()), linear=linear)
        source = max(call.find("self", "input"), 0)
        x = call.inputs[source]
        full = tuple(range(len(x)))
        dims = listed(call, "dim", len(x))
        if dims is None or not dims:
            dims = list(full) if all(math.prod(s) == 1 for s in call.outputs) else _missing(x, call.outputs)
        if dims is None:
            return unknown(call)
        kept = tuple(d for d in full if d not in dims)
        ins = blank(call.inputs)
        ins[source] = full
        outs = []
        for shape in call.outputs:
            if len(shape) == len(kept):
                outs.append(Output(kept))
            elif len(shape) == len(full):
                outs.append(Output(tuple(d if d in kept else NO_LABEL for d in full)))
            else:
                return unknown(call)
        whole = frozenset() if call.name in LINEAR_REDUCTIONS else frozenset(dims)
        return Dims(tuple(ins), tuple(outs), whole, linear=in_each(source) if call.name in ("sum", "mean") else ())


def _missing(x: Shape, outputs: Sequence[Shape]) -> list[int] | None:
    """Reduced dimensions of a coarse call without arguments: what is missing on the right, or has become 1."""
    for shape in outputs:
        if len(shape) == len(x):
            return [d for d in range(len(x)) if shape[d] != x[d]]
        if shape == x[: len(shape)]:
            return list(range(len(shape), len(x)))
        if shape == x[len(x) - len(shape) :]:
            return list(range(len(x) - len(shape)))
    return None
