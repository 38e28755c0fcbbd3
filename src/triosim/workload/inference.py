"""The forward part of a training step: what inference runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.workload.operators import kind
from triosim.workload.trace import NONE, Category, Phase, Trace


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
    new_row = np.full(len(operators), NONE, np.int32)
    new_row[rows] = np.arange(len(rows))
    names, args = operators.name, operators.args
    kept = replace(
        operators,
        name=tuple(names[r] for r in rows.tolist()),
        phase=operators.phase[rows],
        module=operators.module[rows],
        inputs=operators.inputs.take(rows),
        roles=operators.roles.take(rows),
        outputs=operators.outputs.take(rows),
        args=tuple(args[r] for r in rows.tolist()),
        forward=np.full(len(rows), NONE, np.int32),
        view=operators.view[rows],
        sync=operators.sync[rows],
        device_s=operators.device_s[rows],
        host_s=operators.host_s[rows],
        flop=operators.flop[rows],
        bytes=operators.bytes[rows],
    )
    category = trace.values.category.copy()
    category[category == Category.ACTIVATION] = Category.TEMPORARY
    at = new_row[trace.kernels.operator] if len(trace.kernels) else trace.kernels.operator
    stay = at >= 0
    kernels = replace(
        trace.kernels,
        operator=at[stay],
        name=tuple(n for n, s in zip(trace.kernels.name, stay.tolist(), strict=True) if s),
        device_s=trace.kernels.device_s[stay],
        stream=trace.kernels.stream[stay],
    )
    used = np.isin(category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    category[used] = Category.TEMPORARY  # there are none in inference
    return replace(
        trace,
        operators=kept,
        values=replace(trace.values, category=category),
        kernels=kernels,
        communications=trace.communications.unplaced(),
        meta=replace(trace.meta, step_time_s=None),
    )
