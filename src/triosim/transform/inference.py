"""The forward part of a training step: what inference runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.operators import kind
from triosim.trace.tables import NONE, Category, Operators, Phase, Trace, Values


@kept(8)
def forward_only(trace: Trace, loss: bool = False) -> Trace:
    """The forward operators up to the loss, or with it; nothing is kept for a backward.

    A trace that has no backward is returned as it is.

    Args:
        trace: a step.
        loss: whether the loss is wanted too: that of a language model takes the log-probabilities of its labels.
    """
    operators = trace.operators
    if not np.any(operators.phase != Phase.FORWARD):
        return trace
    forward = np.flatnonzero(operators.phase == Phase.FORWARD)
    losses = [] if loss else [row for row in forward.tolist() if kind(operators.name[row]) == "loss"]
    rows = forward[forward < losses[0]] if losses else forward
    while not loss and len(rows) and kind(operators.name[rows[-1]]) in ("softmax", "view", "create"):
        rows = rows[:-1]  # the loss's own softmax, and what it is read through
    chosen = trace.select(rows)
    category = trace.values.category.copy()
    category[category == Category.ACTIVATION] = Category.TEMPORARY
    used = np.isin(category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    category[used] = Category.TEMPORARY  # there are none in inference
    operators, values = _read_alone(
        replace(chosen.operators, forward=np.full(len(rows), NONE, np.int32)), replace(trace.values, category=category)
    )
    return replace(
        chosen,
        operators=operators,
        values=values,
        communications=trace.communications.unplaced(),
        meta=replace(trace.meta, step_time_s=None),
    )


def _read_alone(operators: Operators, values: Values) -> tuple[Operators, Values]:
    """Without the values that no operator reads or writes, but for the first of each storage.

    Others would say how large a storage is when only what is read of it is divided: what a backward reads of a weight.
    """
    wanted = np.zeros(len(values), bool)
    wanted[np.unique(values.storage, return_index=True)[1]] = True
    for table in (operators.inputs, operators.outputs):
        wanted[table.values] = True
    rows = np.flatnonzero(wanted)
    number = np.full(len(values) + 1, NONE, np.int32)
    number[rows] = np.arange(len(rows))
    of = values.of[rows]
    left = Values(
        storage=values.storage[rows],
        version=values.version[rows],
        offset=values.offset[rows],
        shape=values.shape.take(rows),
        dtype=values.dtype[rows],
        category=values.category[rows],
        of=np.where(of >= 0, number[of], NONE).astype(np.int32),
        name=tuple(values.name[row] for row in rows.tolist()),
        symbols=values.symbols.take(rows),
    )
    inputs, outputs = (Ragged(number[t.values], t.offsets) for t in (operators.inputs, operators.outputs))
    return replace(operators, inputs=inputs, outputs=outputs), left
