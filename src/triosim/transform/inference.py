"""The forward part of a training step: what inference runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.operators import kind
from triosim.trace.tables import NONE, Category, Phase, Trace


@kept(8)
def forward_only(trace: Trace) -> Trace:
    """The forward operators up to the loss; nothing is kept for a backward.

    A trace that has no backward is returned as it is.
    """
    operators = trace.operators
    if not np.any(operators.phase != Phase.FORWARD):
        return trace
    forward = np.flatnonzero(operators.phase == Phase.FORWARD)
    losses = [row for row in forward.tolist() if kind(operators.name[row]) == "loss"]
    rows = forward[forward < losses[0]] if losses else forward
    while len(rows) and kind(operators.name[rows[-1]]) in ("softmax", "view", "create"):
        rows = rows[:-1]  # the loss's own softmax, and what it is read through
    chosen = trace.select(rows)
    category = trace.values.category.copy()
    category[category == Category.ACTIVATION] = Category.TEMPORARY
    used = np.isin(category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    category[used] = Category.TEMPORARY  # there are none in inference
    return replace(
        chosen,
        operators=replace(chosen.operators, forward=np.full(len(rows), NONE, np.int32)),
        values=replace(trace.values, category=category),
        communications=trace.communications.unplaced(),
        meta=replace(trace.meta, step_time_s=None),
    )
