"""Shapes of an operator's outputs from those of its inputs, where a source shows inputs only."""

from __future__ import annotations

from triosim.operators import Call, canonical, results
from triosim.sources.readers._step import OperatorRow, Shape
from triosim.trace.tables import Phase


def output_shapes(row: OperatorRow) -> list[Shape] | None:
    """Shapes of what an operator returns, None where they do not follow from its inputs and arguments.

    Of what is only saved for the backward nothing is said: it is found where the backward reads it.

    Args:
        row: an operator whose ``inputs``, ``roles`` and ``args`` are known.
    """
    if not row.inputs:
        return None
    name, backward = canonical(row.name)
    if backward:
        return _backward_shapes(row)
    if row.kind == "reduction" and row.phase == Phase.BACKWARD and not row.args:
        if name != "sum" or row.forward is None:
            return None
        inputs = zip(row.forward.inputs, row.forward.roles, strict=True)  # the gradient of a bias
        return next(([value.shape] for value, role in inputs if role == "bias"), None)
    shapes = tuple(v.shape for v in row.inputs)
    dtypes = tuple(v.dtype for v in row.inputs)
    found = results(Call(name, False, row.kind, tuple(row.roles), shapes, (), row.args, row.name, dtypes))
    if not found:
        return None
    return [result.shape for result in (found if row.kind == "view" else found[:1])]


def _backward_shapes(row: OperatorRow) -> list[Shape]:
    by_role = {role: v.shape for v, role in zip(reversed(row.inputs), reversed(row.roles), strict=True)}
    source = by_role.get("input", by_role.get("self", by_role.get("output")))
    weight = by_role.get("weight")
    if row.kind == "convolution" and source is not None and weight is not None:
        mask = row.args.get("output_mask")
        biased = row.forward is not None and "bias" in row.forward.roles
        wanted = mask if isinstance(mask, list) and len(mask) == 3 else [True, True, biased]
        return [s for s, want in zip((source, weight, weight[:1]), wanted, strict=True) if want]
    if row.kind == "normalization" and source is not None:
        return [source, *([weight, weight] if weight is not None else [])]
    if row.kind == "embedding" and row.forward is not None and row.forward.inputs:
        return [row.forward.inputs[0].shape]
    if row.kind == "attention":
        return [by_role[role] for role in ("query", "key", "value") if role in by_role]
    return [source if source is not None else row.inputs[0].shape]
