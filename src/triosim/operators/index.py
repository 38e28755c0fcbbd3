"""Operators that choose elements by number or by order: gather, scatter, sort, top-k."""

from __future__ import annotations

import math
from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import NO_LABEL, Dims, Output, aligned, at_once, blank, in_each, listed, number, unknown
from triosim.operators._kind import Kind
from triosim.operators._work import INDEX, MovedBytes
from triosim.operators.embedding import gathered_bytes, scattered

_SCATTERS = ("index_put", "_index_put_impl", "index_add", "index_copy", "index_fill", "scatter", "scatter_add",
             "scatter_reduce", "_unsafe_index_put", "masked_scatter", "index_reduce")  # fmt: skip
_SORTS = ("sort", "argsort", "unique", "_unique2", "msort")
_ALONG = ("gather", "scatter", "scatter_add", "scatter_reduce", "topk", "sort", "argsort")


@registered
class Index(Kind):
    """Elements of ``self`` at given places are read (gather) or written (scatter), or brought into order (sort)."""

    names = """
        index _unsafe_index: self indices
        _unsafe_masked_index: self mask indices fill
        index_put _unsafe_index_put _index_put_impl: self indices values accumulate
        _unsafe_masked_index_put_accumulate: self mask indices values
        index_select: self dim index
        index_add index_copy: self dim index source
        index_fill: self dim index value
        index_reduce: self dim index source reduce
        gather: self dim index sparse_grad
        scatter scatter_add scatter_reduce: self dim index src
        select_scatter: self src dim index
        slice_scatter: self src dim start end step
        diagonal_scatter: self src offset dim1 dim2
        as_strided_scatter: self src size stride storage_offset
        take: self index
        take_along_dim: self indices dim
        masked_select: self mask
        nonzero argwhere msort: self
        topk: self k dim largest sorted
        sort argsort: self dim descending
        one_hot: self num_classes
        searchsorted: sorted_sequence self
        bucketize: self boundaries
        bincount: self weights minlength
        histc: self bins min max
        unique _unique2: self sorted return_inverse return_counts
        unique_consecutive unique_dim: self
        multinomial: self num_samples
        isin: elements test_elements
        grid_sampler: input grid
        embedding_renorm: self indices
        """
    words = "index scatter gather"
    stream = "index"

    def bytes(self, call: Call) -> float:
        """Only what is returned is read."""
        return gathered_bytes(call) if not call.backward else super().bytes(call)

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Scattering touches the rows that it writes, once the whole is there; sorting passes over 8 bits a time."""
        made, item = call.outputs[0] if call.outputs else (), call.item(0)
        size = float(math.prod(made)) if call.outputs else 1.0
        if call.backward:
            grad = call.shape("grad_output", "grad")
            if not grad or not made:
                return counted
            values = float(math.prod(grad))
            return scattered(counted, values, values / max(grad[-1], 1), size, call, fills=True)
        if call.name in _SCATTERS and call.inputs:
            source = call.shape("values", "source", "src")
            values = float(math.prod(source)) if source is not None else 0.0
            indices = float(
                sum(math.prod(s) for s, r in zip(call.inputs, call.roles, strict=True) if r in ("index", "indices"))
            )
            values = values or indices
            copied = 0.0 if call.full_name.split(".")[0].endswith("_") else size * item
            return MovedBytes(
                counted.stream, copied + 2 * values * item + indices * INDEX, copied + values * item,
                kernels=1.0 + (copied > 0),
            )  # fmt: skip
        keys = float(math.prod(call.shape("input", "self") or (call.inputs[0] if call.inputs else ())))
        if call.name in _SORTS:
            passes = max(item, 1.0)
            moved = passes * keys * (item + INDEX)
            return MovedBytes(counted.stream, moved, moved, kernels=passes)
        if call.name == "topk":  # finds the k-th largest 8 bits at a time, then gathers
            return MovedBytes(counted.stream, (item + 1.0) * keys * item, counted.written, kernels=2.0)
        if call.name == "multinomial":  # running sums, written and searched
            return MovedBytes(counted.stream, 2 * keys * item, keys * item + counted.written, kernels=2.0)
        return counted

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if call.backward or not call.inputs:
            return None
        x, dtype = call.inputs[0], call.dtype(0)
        index, dims = call.shape("index", "indices"), listed(call, "dim", len(x))
        if call.name in _SCATTERS or call.name.endswith("_scatter"):
            return (CallResult(x, dtype),)
        if call.name in ("gather", "take"):
            return (CallResult(index, dtype),) if index is not None else None
        if call.name == "index_select" and dims and index is not None and x:
            return (CallResult((*x[: dims[0]], math.prod(index), *x[dims[0] + 1 :]), dtype),)
        if call.name in ("index", "_unsafe_index") and call.roles.count("indices") == 1 and index is not None:
            return (
                None
                if call.dtype(call.find("indices")) in ("bool", "uint8")
                else (CallResult((*index, *x[1:]), dtype),)
            )
        if call.name in ("sort", "msort", "argsort"):
            order = CallResult(x, "int64")
            return (order,) if call.name == "argsort" else (CallResult(x, dtype), *(order,) * (call.name == "sort"))
        if call.name == "topk":
            k, at = number(call, "k"), (dims or [len(x) - 1])[0]
            shape = (*x[:at], k, *x[at + 1 :]) if k is not None and x else None
            return (CallResult(shape, dtype), CallResult(shape, "int64")) if shape else None
        return None

    def dims(self, call: Call) -> Dims:
        """Chosen dimensions follow nothing and are needed whole; the others are those of the first input."""
        found = _dims(call)
        return replace(found, linear=_linear(call)) if found.known else found


def _dims(call: Call) -> Dims:
    if not call.inputs or not call.outputs:
        return unknown(call)
    x, out = call.inputs[0], call.outputs[0]
    dims = listed(call, "dim", len(x)) if len(x) else None
    full = tuple(range(len(x)))
    if call.name == "index_select" and dims and len(out) == len(x) and not call.backward:
        row = tuple(d if d != dims[0] else NO_LABEL for d in full)
        return Dims((full, *blank(call.inputs[1:])), (Output(row),), frozenset(dims))
    if call.name in _ALONG and len(out) == len(x):
        row = tuple(d if d not in (dims or [len(x) - 1]) else NO_LABEL for d in full)
        ins = tuple(row if len(s) == len(x) else (NO_LABEL,) * len(s) for s in call.inputs)
        outs = tuple(Output(row if len(s) == len(x) else (NO_LABEL,) * len(s)) for s in call.outputs)
        return Dims(ins, outs, frozenset(dims or ()))
    if out == x and not call.backward:
        return aligned(call)
    return unknown(call)


def _linear(call: Call) -> tuple[frozenset[int], ...]:
    if call.name in ("index", "_unsafe_index", "index_select", "gather", "take", "take_along_dim"):
        return in_each(0)
    if call.name in ("index_add", "scatter_add"):
        return (at_once(0, call.find("source", "src")),)
    return ()
