"""Views: other dimensions, an order or a part of the same elements, which nothing moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import NO_LABEL, Dims, Output, aligned, blank, in_each, listed, number, numbers, unknown
from triosim.operators._kind import Kind

RESHAPES = frozenset((
    "view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten", "unsqueeze", "squeeze",
    "_reshape_copy", "view_copy",
))  # fmt: skip
SPLITS = frozenset((
    "split", "split_with_sizes", "chunk", "unbind", "slice", "narrow", "select", "tensor_split", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "split_copy", "split_with_sizes_copy",
))  # fmt: skip
PERMUTES = frozenset(("t", "transpose", "permute", "swapaxes", "movedim", "numpy_t", "adjoint", "mt"))


@registered
class View(Kind):
    """The result shows the elements of the first input; in place of a gradient it may be put into zeros."""

    names = """
        view _unsafe_view: self size
        reshape: self shape
        _reshape_alias: self size stride
        flatten: self start_dim end_dim
        unflatten: self dim sizes
        view_as expand_as: self other
        t numpy_t mt mh h adjoint: self
        transpose: self dim0 dim1
        swapaxes: self axis0 axis1
        permute: self dims
        movedim moveaxis: self source destination
        unsqueeze squeeze: self dim
        expand: self size implicit
        broadcast_to: self size
        detach alias lift_fresh lift positive real_view view_as_real view_as_complex: self
        slice: self dim start end step
        select: self dim index
        narrow: self dim start length
        split unsafe_split: self split_size dim
        split_with_sizes unsafe_split_with_sizes: self split_sizes dim
        chunk unsafe_chunk: self chunks dim
        tensor_split: self sections dim
        unbind: self dim
        unfold: self dimension size step
        as_strided: self size stride storage_offset
        diagonal: self offset dim1 dim2
        set_: self source
        """
    gradients = """
        slice_backward: grad_output input_sizes dim start end step
        select_backward: grad_output input_sizes dim index
        """

    def kernels_of(self, name: str) -> str:
        return "nothing" if name == "set" else self.kernels

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if not call.inputs:
            return None
        shown = _shown_back(call) if call.backward else _shown(call)
        if shown is None:
            return None
        dtype = call.dtype(0)
        if call.backward:
            return tuple(CallResult(shape, dtype) for shape, _ in shown)
        if call.name == "view_as_complex":
            dtype = {"float32": "complex64", "float64": "complex128"}.get(dtype, dtype)
        elif call.name == "view_as_real":
            dtype = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
        return tuple(CallResult(shape, dtype, 0, offset) for shape, offset in shown)

    def dims(self, call: Call) -> Dims:
        found = _dims(call)
        return replace(found, linear=in_each(0)) if found.known else found


def _dims(call: Call) -> Dims:
    if not call.inputs or not call.outputs:
        return unknown(call)
    x, y, name = call.inputs[0], call.outputs[0], call.name
    full = tuple(range(len(x)))
    rest = tuple(blank(call.inputs[1:]))
    if name in ("squeeze", "unsqueeze") and len(call.outputs) == 1:
        wide, narrow = (y, x) if (name == "unsqueeze") != call.backward else (x, y)
        dims = listed(call, "dim", len(wide))
        kept = tuple(d for d in range(len(wide)) if d not in (dims or ()) or wide[d] != 1)
        if dims is not None and tuple(wide[d] for d in kept) == narrow:
            shown = tuple(d if d in kept else NO_LABEL for d in range(len(wide)))
            one, other = (kept, shown) if wide is y else (shown, kept)
            return Dims((one, *rest), (Output(other),))
    if name in RESHAPES or (
        call.backward and len(call.outputs) == 1 and math.prod(x) == math.prod(y) and name not in PERMUTES
    ):
        return Dims((full, *rest), tuple(Output(tuple(range(len(s)))) for s in call.outputs), reshape=True)
    if name in PERMUTES:
        order = _permutation(call, len(x))
        if order is None or sorted(order) != list(full) or tuple(x[d] for d in order) != y:
            return unknown(call)
        return Dims((full, *rest), (Output(tuple(order)),))
    if name in SPLITS:
        return _split_backward(call, rest) if call.backward else _split(call, rest)
    if name in ("view_as_complex", "view_as_real"):
        n = min(len(x), len(y))
        return Dims(
            ((*full[:n], *(NO_LABEL,) * (len(x) - n)), *rest), (Output((*full[:n], *(NO_LABEL,) * (len(y) - n))),)
        )
    if name in ("as_strided", "unfold", "diagonal", "set") and y != x:
        return unknown(call)
    return aligned(call)


def _permutation(call: Call, rank: int) -> list[int] | None:
    if call.name in ("t", "numpy_t"):
        return list(range(rank))[::-1]
    if call.name in ("adjoint", "mt"):
        return [*range(rank - 2), rank - 1, rank - 2]
    if call.name == "permute":
        return listed(call, "dims", rank)
    if rank == 0:
        return None
    a, b = call.args.get("dim0", call.args.get("axis0")), call.args.get("dim1", call.args.get("axis1"))
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    order = list(range(rank))
    order[a % rank], order[b % rank] = order[b % rank], order[a % rank]
    return order


def _split(call: Call, rest: tuple[tuple[int, ...], ...]) -> Dims:
    x = call.inputs[0]
    full = tuple(range(len(x)))
    dims = listed(call, "dim", len(x), 0)
    dim = dims[0] if dims else 0
    outs = []
    for shape in call.outputs:
        if len(shape) == len(x):
            outs.append(Output(full))
        elif len(shape) == len(x) - 1:
            outs.append(Output(tuple(d for d in full if d != dim), (0,)))
        else:
            return unknown(call)
    return Dims((full, *rest), tuple(outs), split=dim if x else None)


def _split_backward(call: Call, rest: tuple[tuple[int, ...], ...]) -> Dims:
    """The gradient of a part, put into zeros of the whole's shape."""
    x, y = call.inputs[0], call.outputs[0]
    full = tuple(range(len(y)))
    dims = listed(call, "dim", len(y))
    if len(x) == len(y):
        differ = dims or [d for d in full if x[d] != y[d]]
        return Dims((full, *rest), (Output(full),), split=differ[0] if differ else None)
    if len(x) == len(y) - 1 and dims:
        kept = tuple(d for d in full if d != dims[0])
        return Dims((kept, *rest), (Output(tuple(d if d != dims[0] else NO_LABEL for d in full)),))
    return unknown(call)


Parts = list[tuple[Shape, int]]
"""Shape and first element of each result, the source lying contiguous."""


def _shown(call: Call) -> Parts | None:
    """What a view shows."""
    x, name = call.inputs[0], call.name
    rank = len(x)
    if name in ("detach", "alias", "lift_fresh", "lift", "positive", "real_view"):
        return [(x, 0)]
    if name in ("view", "reshape", "_unsafe_view", "_reshape_alias"):
        size = numbers(call, "size", "shape")
        return None if size is None or (whole := _filled(size, math.prod(x))) is None else [(whole, 0)]
    if name in ("expand", "broadcast_to"):
        size = numbers(call, "size")
        if size is None or len(size) < rank:
            return None
        full = (*(1,) * (len(size) - rank), *x)
        return [(tuple(e if s == -1 else s for s, e in zip(size, full, strict=True)), 0)]
    if name in ("view_as", "expand_as"):
        return [(call.inputs[1], 0)] if len(call.inputs) > 1 else None
    if name in PERMUTES:
        order = _permutation(call, rank)
        return [(tuple(x[d] for d in order), 0)] if order is not None and sorted(order) == list(range(rank)) else None
    if name == "flatten" and rank:
        first, last = number(call, "start_dim", 0), number(call, "end_dim", -1)
        if first is None or last is None or not -rank <= first < rank or not -rank <= last < rank:
            return None
        first, last = first % rank, last % rank
        return [((*x[:first], math.prod(x[first : last + 1]), *x[last + 1 :]), 0)] if first <= last else None
    if name == "unflatten":
        dims, sizes = listed(call, "dim", rank), numbers(call, "sizes")
        whole = _filled(sizes, x[dims[0]]) if dims and sizes and x else None
        return [((*x[: dims[0]], *whole, *x[dims[0] + 1 :]), 0)] if dims and whole else None
    if name == "unsqueeze":
        dims = listed(call, "dim", rank + 1)
        return [((*x[: dims[0]], 1, *x[dims[0] :]), 0)] if dims else None
    if name == "squeeze":
        dims = listed(call, "dim", rank) if "dim" in call.args else list(range(rank))
        return None if dims is None else [(tuple(e for d, e in enumerate(x) if e != 1 or d not in dims), 0)]
    if name == "view_as_complex":
        return [(x[:-1], 0)] if x[-1:] == (2,) else None
    if name == "view_as_real":
        return [((*x, 2), 0)]
    return _parts(call)


def _filled(size: Sequence[int], elements: int) -> Shape | None:
    """A shape in which one extent may be -1, that of the rest."""
    if tuple(size).count(-1) == 1:
        rest = -math.prod(size)
        size = [elements // rest if e == -1 and rest else e for e in size]
    return tuple(size) if min(size, default=0) >= 0 and math.prod(size) == elements else None


def _parts(call: Call) -> Parts | None:
    """What operators that cut along one dimension show."""
    x, name = call.inputs[0], call.name
    dims = listed(call, "dim", len(x), 0)
    if not x or not dims:
        return None
    d = dims[0]
    extent, step_over = x[d], math.prod(x[d + 1 :])

    def cut(starts: Sequence[int], lengths: Sequence[int]) -> Parts:
        return [((*x[:d], n, *x[d + 1 :]), at * step_over) for at, n in zip(starts, lengths, strict=True)]

    if name in ("slice", "narrow"):
        start, length = number(call, "start", 0) or 0, number(call, "length")
        end, step = number(call, "end", extent), number(call, "step", 1) or 1
        start = min(max(start + extent if start < 0 else start, 0), extent)
        if name == "narrow":
            return None if length is None else cut([start], [length])
        end = extent if end is None else min(max(end + extent if end < 0 else end, start), extent)
        return cut([start], [-(-(end - start) // step)]) if step > 0 else None
    if name == "select":
        index = number(call, "index")
        if index is None or not -extent <= index < extent:
            return None
        return [((*x[:d], *x[d + 1 :]), index % extent * step_over)]
    if name == "unbind":
        return [((*x[:d], *x[d + 1 :]), i * step_over) for i in range(extent)]
    lengths = _lengths(call, extent)
    return None if lengths is None else cut([sum(lengths[:i]) for i in range(len(lengths))], lengths)


def _lengths(call: Call, extent: int) -> list[int] | None:
    """Lengths of the parts of a split."""
    given = numbers(call, "split_sizes", "split_size", "sections")
    size = number(call, "split_size")
    if "chunk" in call.name:
        chunks = number(call, "chunks")
        size = -(-extent // chunks) if chunks and chunks > 0 else None
    if given is not None and "split" in call.name:
        return list(given) if sum(given) == extent and min(given, default=0) >= 0 else None
    if size is None or size <= 0:
        return None
    return [min(size, extent - at) for at in range(0, extent, size)] or [0]


def _shown_back(call: Call) -> Parts | None:
    """The gradient of what a view showed, in the shape of the source."""
    size = numbers(call, "input_sizes", "self_sym_sizes")
    if size is not None and min(size, default=0) >= 0:
        return [(size, 0)]
    if call.name in ("t", "transpose", "permute", "swapaxes"):
        order = _permutation(call, len(call.inputs[0]))
        if order is not None and sorted(order) == list(range(len(order))):
            return [(tuple(call.inputs[0][order.index(d)] for d in range(len(order))), 0)]
    return None
