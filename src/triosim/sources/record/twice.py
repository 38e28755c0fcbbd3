"""Which dimensions follow the batch or the sequence: trace the step again with another one and compare.

The second trace runs under fake tensors, so it costs neither memory nor hardware time.  It is compared operator by
operator with the first: a dimension that grew in proportion follows the batch, one that changed in another
way is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from triosim.sources.record.observer import StepTape
from triosim.trace.tables import BATCH, SEQUENCE, UNDECIDED

Symbols = dict[int, list[int]]


class Extents(NamedTuple):
    """Extents of the inputs that can be varied.

    Attributes:
        batch: samples, None where the inputs do not tell.
        sequence: tokens per sample, None where there are none.
    """

    batch: int | None
    sequence: int | None


def extents(inputs: Sequence[Any], batch: int | None, sequence: int | None) -> Extents:
    """What the inputs say: the first extent of the first tensor, and the second one of token ids [batch, sequence]."""
    tensors = [t for t in tree_leaves(list(inputs)) if isinstance(t, Tensor) and t.dim()]
    if batch is None and tensors:
        batch = tensors[0].shape[0]
    if sequence is None:
        tokens = next((t for t in tensors if t.dtype in (torch.int64, torch.int32) and t.dim() == 2), None)
        if tokens is not None and tokens.shape[1] > 1:
            sequence = tokens.shape[1]
    return Extents(batch, sequence)


def resized(inputs: Sequence[Any], now: Extents, then: Extents) -> list[Any]:
    """New tensors like the inputs with other extents: the batch comes first, the sequence may come later."""

    def resize(thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return thing
        shape = list(thing.shape)
        for place, extent in enumerate(shape):
            if place == 0 and extent == now.batch and now.batch != then.batch:
                shape[place] = then.batch or extent
            elif extent == now.sequence and (place > 0 or len(shape) == 1):
                shape[place] = then.sequence or extent
        return _like(thing, shape).requires_grad_(thing.requires_grad)

    return list(tree_map(resize, list(inputs)))


def _like(thing: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor that lies in memory as ``thing`` does: in the same order, dense or with gaps, expanded or not."""
    strides = thing.stride()
    order = sorted(range(thing.dim()), key=lambda d: (-strides[d], d))
    kept = [1 if strides[d] == 0 and thing.shape[d] > 1 else shape[d] for d in range(thing.dim())]
    gap, dense = 0, 1
    for d in reversed(order):
        if strides[d] and thing.shape[d] > 1:
            gap |= strides[d] != dense
            dense *= thing.shape[d]
    room = torch.empty([kept[d] + gap for d in order], dtype=thing.dtype, device=thing.device)
    part = room[tuple(slice(kept[d]) for d in order)] if gap else room
    return part.permute([order.index(d) for d in range(thing.dim())]).expand(list(shape))


def compare(first: StepTape, second: StepTape, bit: int, before: int, after: int) -> Symbols | None:
    """Symbols of the values of ``first``, given a trace with ``after`` in the place of ``before``.

    None if the two are not the same sequence of operators.
    """
    if [row.name for row in first.rows] != [row.name for row in second.rows]:
        return None
    found: Symbols = {}
    for one, other in zip(first.rows, second.rows, strict=True):
        mine, theirs = (*one.inputs, *one.outputs), (*other.inputs, *other.outputs)
        if len(mine) != len(theirs):
            return None
        for value, twin in zip(mine, theirs, strict=True):
            shape, twin_shape = first.ledger.values[value].shape, second.ledger.values[twin].shape
            if len(shape) != len(twin_shape):
                return None
            marks = found.setdefault(value, [0] * len(shape))
            for place, (a, b) in enumerate(zip(shape, twin_shape, strict=True)):
                if a != b:
                    marks[place] |= bit if a * after == b * before else UNDECIDED
    return found


def find(first: StepTape, again: Callable[[Extents], StepTape], now: Extents) -> tuple[Symbols | None, list[str]]:
    """Symbols of the values of ``first``, and what is to be said about them.

    Args:
        first: the recorded step.
        again: traces the step under fake tensors with other extents.
        now: extents of the recorded step.
    """
    if now.batch is None:
        return None, []
    try:
        found = compare(first, again(Extents(2 * now.batch, now.sequence)), BATCH, now.batch, 2 * now.batch)
    except Exception as error:  # whatever the step does with numbers that fake tensors do not have
        return None, [f"not traced a second time with another batch: {_short(error)}"]
    if found is None:
        return None, ["with another batch the step runs other operators"]
    if now.sequence is None:
        return found, []
    # Shorter, not longer: many models have a longest sequence.
    shorter = now.sequence // 2 if now.sequence % 2 == 0 else now.sequence - 1
    try:
        more = compare(first, again(Extents(now.batch, shorter)), SEQUENCE, now.sequence, shorter)
    except Exception as error:
        return found, [f"not traced with another sequence length: {_short(error)}"]
    if more is None:
        return found, ["with another sequence length the step runs other operators"]
    return {v: [a | b for a, b in zip(marks, more[v], strict=True)] for v, marks in found.items()}, []


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
