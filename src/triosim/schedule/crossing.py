"""Tensors that cross from stage to stage: those that some cut would part from their readers, and those of one cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace

_FLOATING = np.array([name.startswith(("float", "bfloat", "tfloat", "complex", "unknown")) for name in DTYPES])
"""Whether gradients flow through values of each dtype."""


@dataclass(frozen=True)
class Boundary:
    """A value that crosses from the stage that makes it to a stage that reads it.

    Attributes:
        storage: its storage.
        source, target: stages.
        made: forward operator that makes it.
        read: first operator of the target stage that reads it.
        returned: backward operator of the target stage after which its gradient is final, -1 if it has none.
        bytes: its size.
    """

    storage: int
    source: int
    target: int
    made: int
    read: int
    returned: int
    bytes: int


@dataclass(frozen=True)
class CrossingTensor:
    """A tensor that a forward operator writes and later forward operators read."""

    storage: int
    made: int
    reads: tuple[int, ...]
    bytes: int


@kept(48)
def crossing_items(trace: Trace) -> tuple[CrossingTensor, ...]:
    """Forward values that would have to be sent if a cut fell between their making and a use.

    What is made from no weight and no floating-point input (masks, position tables) is cheap to make on each stage and
    is not sent, as nothing flows back through it either.
    """
    operators, values = trace.operators, trace.values
    row, views = operators.inputs.rows(), operators.view
    here = np.flatnonzero(operators.phase[row] == Phase.FORWARD)
    row, value, writer = row[here], operators.inputs.values[here], trace.writer[here]
    category = values.category
    depends = np.zeros(len(operators), bool)  # rows whose outputs depend on weights or floating-point inputs
    given = (category == Category.WEIGHT) | ((category == Category.INPUT) & _FLOATING[values.dtype])
    depends[row[(writer < 0) & given[value]]] = True
    carried = depends.tolist()
    for reader, by in zip(row[writer >= 0].tolist(), writer[writer >= 0].tolist(), strict=True):
        carried[reader] = carried[reader] or (carried[by] and not views[by])
    sent = np.array(carried, bool) & ~views & (operators.phase == Phase.FORWARD)
    kept_back = np.isin(category, [int(c) for c in PERSISTENT])
    of_use = np.flatnonzero((writer >= 0) & sent[writer])
    reads: dict[tuple[int, int], list[int]] = {}
    for by, where, reader in zip(
        writer[of_use].tolist(), values.storage[value[of_use]].tolist(), row[of_use].tolist(), strict=True
    ):
        reads.setdefault((by, where), []).append(reader)
    saved = np.zeros(int(values.storage.max(initial=-1)) + 1, bool)
    saved[values.storage[operators.inputs.values[operators.phase[operators.inputs.rows()] != Phase.FORWARD]]] = True
    size, looks, stays = values.bytes(), views.tolist(), saved.tolist()
    items = []
    for (by, where), rows in reads.items():
        while rows and looks[rows[-1]] and not stays[where]:
            rows.pop()  # nothing reads the view: what it is of need not be there
        if not rows:
            continue
        made = operators.outputs[by]
        written = made[values.storage[made] == where]
        if not kept_back[written[0]]:
            items.append(CrossingTensor(where, by, tuple(rows), int(size[written].max())))
    return tuple(items)


@kept(8)
def floating_storages(trace: Trace) -> frozenset[int]:
    """Storages through whose values gradients flow."""
    return frozenset(trace.values.storage[_FLOATING[trace.values.dtype]].tolist())


@kept(8)
def _last_backward(trace: Trace) -> dict[int, int]:
    """The last operator that differentiates each forward operator."""
    forward = trace.operators.forward
    rows = np.flatnonzero((trace.operators.phase == Phase.BACKWARD) & (forward >= 0))
    return dict(zip(forward[rows].tolist(), rows.tolist(), strict=True))


@kept(8)
def _item_columns(items: Sequence[CrossingTensor]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each read of items: the item, the operator that made it, and the one that reads it."""
    often = [len(item.reads) for item in items]
    made = np.array([item.made for item in items], np.int64)
    item = np.repeat(np.arange(len(items)), often)
    return item, made[item], np.array([row for one in items for row in one.reads], np.int64)


def boundaries_of(trace: Trace, of: NDArray[np.int32], items: Sequence[CrossingTensor]) -> tuple[Boundary, ...]:
    """What crosses, in the order in which it is made.

    Args:
        trace: one rank's step.
        of: stage of each operator, shape ``(operators,)``.
        items: what may cross (:func:`crossing_items`).
    """
    floating, last_backward = floating_storages(trace), _last_backward(trace)
    backward = np.flatnonzero(trace.operators.phase == Phase.BACKWARD)
    last_of_stage = dict(zip(of[backward].tolist(), backward.tolist(), strict=True))
    stage = of.tolist()
    number, made, read = _item_columns(items)
    found = []
    for item in (items[at] for at in distinct(number[of[read] > of[made]]).tolist()):
        source = stage[item.made]
        readers: dict[int, list[int]] = {}
        for row in item.reads:
            if stage[row] > source:
                readers.setdefault(stage[row], []).append(row)
        for target, rows in sorted(readers.items()):
            returned = NONE
            if item.storage in floating and target in last_of_stage:
                linked = [last_backward[r] for r in rows if r in last_backward and stage[last_backward[r]] == target]
                returned = max(linked, default=last_of_stage[target])
            found.append(Boundary(item.storage, source, target, item.made, min(rows), returned, item.bytes))
    return tuple(sorted(found, key=lambda b: (b.made, b.target)))
