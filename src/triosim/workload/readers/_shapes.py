"""Shapes of an operator's outputs from those of its inputs, where a source shows inputs only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from triosim.workload.operators import canonical
from triosim.workload.readers._step import Row, Shape
from triosim.workload.trace import Phase


def output_shapes(row: Row) -> list[Shape] | None:
    """Shapes of what an operator returns, None where they do not follow from its inputs and arguments.

    Args:
        row: an operator whose ``inputs``, ``roles`` and ``args`` are known.
    """
    by_role = {role: v.shape for v, role in zip(reversed(row.inputs), reversed(row.roles), strict=True)}
    shapes = [v.shape for v in row.inputs]
    if not shapes:
        return None
    name, backward = canonical(row.name)
    if backward:
        return _backward_shapes(row, by_role)
    rule = _RULES.get(row.kind)
    return rule(name, row, by_role, shapes) if rule else None


def _backward_shapes(row: Row, by_role: dict[str, Shape]) -> list[Shape]:
    source = by_role.get("input", by_role.get("self", by_role.get("output")))
    weight = by_role.get("weight")
    if row.kind == "convolution" and source is not None and weight is not None:
        mask = row.args.get("output_mask")
        biased = row.forward is not None and "bias" in row.forward.roles
        wanted = mask if isinstance(mask, list) and len(mask) == 3 else [True, True, biased]
        return [s for s, want in zip((source, weight, (weight[0],)), wanted, strict=True) if want]
    if row.kind == "normalization" and source is not None:
        return [source, *([weight, weight] if weight is not None else [])]
    if row.kind == "embedding" and row.forward is not None and row.forward.inputs:
        return [row.forward.inputs[0].shape]
    if row.kind == "attention":
        return [by_role[role] for role in ("query", "key", "value") if role in by_role]
    return [source if source is not None else row.inputs[0].shape]


_Rule = Callable[[str, Row, dict[str, Shape], list[Shape]], "list[Shape] | None"]


def _linear(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    if name == "linear":
        weight = by_role.get("weight", ())
        return [(*shapes[0][:-1], weight[0])] if weight and shapes[0] else None
    a, b = by_role.get("mat1", by_role.get("self", ())), by_role.get("mat2", ())
    return [(a[0], b[1])] if len(a) == 2 and len(b) == 2 else None


def _matmul(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    a = by_role.get("batch1", by_role.get("self", shapes[0]))
    b = by_role.get("batch2", by_role.get("mat2", by_role.get("other", ())))
    if name == "einsum" or not a or not b:
        return None
    if len(b) == 1:
        return [a[:-1]]
    if len(a) == 1:
        return [(*b[:-2], b[-1])]
    lead = _broadcast([a[:-2], b[:-2]])
    return None if lead is None else [(*lead, a[-2], b[-1])]


def _window(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    """Convolution and pooling, where stride and padding are known."""
    source, weight = shapes[0], by_role.get("weight")
    size = row.args.get("output_size")
    if name.startswith(("adaptive", "_adaptive")):
        return [(*source[:2], *size)] if isinstance(size, list) and len(source) == 2 + len(size) else None
    rank = len(source) - 2
    kernel = list(weight[2:]) if weight else row.args.get("kernel_size")
    if not isinstance(kernel, list) or len(kernel) != rank or row.args.get("transposed") or "transpose" in name:
        return None
    stride, padding = row.args.get("stride"), row.args.get("padding")
    dilation = _listed(row.args.get("dilation"), rank, 1)
    stride = _listed(stride or (None if weight else kernel), rank, 0)
    padding = _listed(padding, rank, -1)
    if 0 in stride or -1 in padding:
        return None
    up = (lambda x, y: -(-x // y)) if row.args.get("ceil_mode") is True else (lambda x, y: x // y)
    space = [up(source[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1, stride[i]) + 1 for i in range(rank)]
    return [(source[0], weight[0] if weight else source[1], *space)] if min(space, default=1) > 0 else None


def _listed(value: object, rank: int, default: int) -> list[int]:
    if isinstance(value, list) and len(value) == rank and all(type(v) is int for v in value):
        return value
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is int:
        return value * rank
    return [default] * rank


def _elementwise(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    shape = _broadcast(shapes)
    return None if shape is None else [shape]


def _copy(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    if name in ("cat", "_cat"):
        dim = row.args.get("dim", 0)
        if type(dim) is not int or len({len(s) for s in shapes}) != 1 or not shapes[0]:
            return None
        first = list(shapes[0])
        first[dim % len(first)] = sum(s[dim % len(first)] for s in shapes)
        return [tuple(first)]
    if name == "stack":
        dim = row.args.get("dim", 0)
        if type(dim) is not int or len(set(shapes)) != 1:
            return None
        at = dim % (len(shapes[0]) + 1)
        return [(*shapes[0][:at], len(shapes), *shapes[0][at:])]
    return [shapes[0]] if name in ("clone", "to", "_to_copy", "contiguous", "flip", "roll", "pin_memory") else None


def _first(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    return [shapes[0]]


def _embedding(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    weight, indices = by_role.get("weight", ()), by_role.get("indices")
    return [(*indices, weight[1])] if len(weight) == 2 and indices is not None and "bag" not in name else None


def _loss(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    return [()]


def _attention(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    query, value = by_role.get("query"), by_role.get("value")
    return [(*query[:-1], value[-1])] if query and value else None


def _reduction(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    if name in ("cumsum", "cumprod"):
        return [shapes[0]]
    if name == "sum" and row.phase == Phase.BACKWARD and "dim" not in row.args and row.forward is not None:
        inputs = zip(row.forward.inputs, row.forward.roles, strict=True)  # the gradient of a bias
        return next(([value.shape] for value, role in inputs if role == "bias"), None)
    dims, keep = row.args.get("dim"), row.args.get("keepdim") is True
    listed = [dims] if type(dims) is int else dims
    if not isinstance(listed, list) or not all(type(d) is int for d in listed) or not shapes[0]:
        return [()] if len(row.arguments) == 1 and not row.args and row.phase == Phase.FORWARD else None
    at = {d % len(shapes[0]) for d in listed} or set(range(len(shapes[0])))
    return [tuple(1 if i in at else d for i, d in enumerate(shapes[0]) if keep or i not in at)]


def _create(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    return [shapes[0]] if name.endswith("_like") else None


def _view(name: str, row: Row, by_role: dict[str, Shape], shapes: list[Shape]) -> list[Shape] | None:
    shape = shapes[0]
    rank = len(shape)
    if name == "t":
        return [shape[::-1]]
    if name in ("detach", "alias", "lift_fresh"):
        return [shape]
    size = row.args.get("size", row.args.get("shape"))
    if name in ("view", "reshape", "_unsafe_view", "expand") and isinstance(size, list):
        if name != "expand" and size.count(-1) == 1:
            rest = -math.prod(size)
            size = [math.prod(shape) // rest if d == -1 and rest else d for d in size]
        return [tuple(size)] if all(type(d) is int and d >= 0 for d in size) else None
    if name == "flatten":
        first, last = row.args.get("start_dim", 0), row.args.get("end_dim", -1)
        if rank and type(first) is int and type(last) is int:
            first, last = first % rank, last % rank
            return [(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])]
    if name == "transpose" and rank:
        a, b = row.args.get("dim0"), row.args.get("dim1")
        if type(a) is int and type(b) is int:
            order = list(shape)
            order[a % rank], order[b % rank] = order[b % rank], order[a % rank]
            return [tuple(order)]
    dims = row.args.get("dims")
    if name == "permute" and isinstance(dims, list) and len(dims) == rank and all(type(d) is int for d in dims):
        return [tuple(shape[d % rank] for d in dims)]
    return None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    rank = max(map(len, shapes), default=0)
    result = []
    for d in range(rank):
        extents = {s[d - rank + len(s)] for s in shapes if d - rank + len(s) >= 0} - {1}
        if len(extents) > 1:
            return None
        result.append(extents.pop() if extents else 1)
    return tuple(result)


_RULES: dict[str, _Rule] = {
    "linear": _linear, "matmul": _matmul, "convolution": _window, "pooling": _window, "elementwise": _elementwise,
    "copy": _copy, "normalization": _first, "softmax": _first, "embedding": _embedding, "loss": _loss,
    "attention": _attention, "reduction": _reduction, "create": _create, "view": _view,
}  # fmt: skip
