"""Tensors that cross from stage to stage: those that some cut would part from their readers, and those of one cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
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
    size, storage, category = values.bytes().tolist(), values.storage.tolist(), values.category.tolist()
    floating = _FLOATING[values.dtype].tolist()
    inputs, outputs, phases = operators.inputs.lists(), operators.outputs.lists(), operators.phase.tolist()
    writers = trace.writers()
    views = operators.view.tolist()
    carried: set[int] = set()  # rows whose outputs depend on weights or floating-point inputs
    reads: dict[tuple[int, int], list[int]] = {}
    for row, read in enumerate(inputs):
        if phases[row] != Phase.FORWARD:
            continue
        depends = False
        for value, writer in zip(read, writers[row], strict=True):
            if writer >= 0:
                depends = depends or writer in carried
                reads.setdefault((writer, storage[value]), []).append(row)
            elif category[value] == Category.WEIGHT or (category[value] == Category.INPUT and floating[value]):
                depends = True
        if depends and not views[row]:
            carried.add(row)
    constant = {int(c) for c in PERSISTENT}
    later = operators.phase[operators.inputs.rows()] != Phase.FORWARD
    saved = set(values.storage[operators.inputs.values[later]].tolist())
    items = []
    for (writer, where), rows in reads.items():
        while rows and views[rows[-1]] and where not in saved:
            rows.pop()  # nothing reads the view: what it is of need not be there
        if not rows:
            continue
        written = [v for v in outputs[writer] if storage[v] == where]
        if writer in carried and phases[writer] == Phase.FORWARD and category[written[0]] not in constant:
            items.append(CrossingTensor(where, writer, tuple(rows), max(size[v] for v in written)))
    return tuple(items)


def floating_storages(trace: Trace) -> set[int]:
    """Storages through whose values gradients flow."""
    return set(trace.values.storage[_FLOATING[trace.values.dtype]].tolist())


def boundaries_of(trace: Trace, of: NDArray[np.int32], items: Sequence[CrossingTensor]) -> tuple[Boundary, ...]:
    """What crosses, in the order in which it is made.

    Args:
        trace: one rank's step.
        of: stage of each operator, shape ``(operators,)``.
        items: what may cross (:func:`crossing_items`).
    """
    operators = trace.operators
    floating = floating_storages(trace)
    last_backward: dict[int, int] = {}  # forward operator -> the last operator that differentiates it
    last_of_stage: dict[int, int] = {}
    stage, forward = of.tolist(), operators.forward.tolist()
    for row in np.flatnonzero(operators.phase == Phase.BACKWARD).tolist():
        if forward[row] >= 0:
            last_backward[forward[row]] = row
        last_of_stage[stage[row]] = row
    found = []
    for item in items:
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
