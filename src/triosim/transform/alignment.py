"""Another recording of the same step, brought row for row beside the first."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.operators import canonical
from triosim.trace.tables import NONE, Kernels, Trace

LEAST = 0.5
"""Part of the measured operators that another recording of the same step has at least."""


def aligned(trace: Trace, other: Trace) -> Trace:
    """The operators of ``other`` in the rows of ``trace``.

    Operators are the same where phase, module and canonical name are, the first with the first, the second with the
    second and so on: libraries choose other implementations on other devices, but the model calls them in the same
    order.  Rows that ``other`` does not have get no time.

    Args:
        trace: a step.
        other: a recording of the same step on another device, perhaps at another batch size.

    Raises:
        InputError: ``other`` has less than half of the operators that launch something: it is another step.
    """
    rows = matching(trace, other)
    there = rows >= 0
    wanted = ~trace.operators.view
    if wanted.any() and there[wanted].mean() < LEAST:
        raise InputError(
            f"{other.meta.workload or 'the other trace'} has {100 * there[wanted].mean():.0f} % of the operators of "
            f"{trace.meta.workload or 'the first'}: give recordings of the same step"
        )
    return _rows(trace, other, rows)


def matching(trace: Trace, other: Trace) -> NDArray[np.int64]:
    """For each operator of ``trace`` the row of ``other`` that it is, or -1."""
    waiting: dict[tuple[Any, ...], deque[int]] = defaultdict(deque)
    for row, key in enumerate(_keys(other)):
        waiting[key].append(row)
    return np.array([waiting[key].popleft() if waiting[key] else NONE for key in _keys(trace)], np.int64)


def _keys(trace: Trace) -> list[tuple[Any, ...]]:
    operators, path = trace.operators, (*trace.modules.path, "")
    names = [canonical(name) for name in operators.name]
    modules = [path[module] for module in operators.module.tolist()]
    return list(zip(operators.phase.tolist(), modules, names, strict=True))


def _rows(trace: Trace, other: Trace, rows: NDArray[np.int64]) -> Trace:
    there = rows >= 0
    at = np.where(there, rows, 0)
    mine, operators = trace.operators, other.operators
    if not len(operators):
        raise InputError(f"{other.meta.workload or 'the other trace'} has no operators: record the step anew")
    columns = {name: getattr(operators, name)[at] for name in ("sync", "flop", "bytes")}
    back = np.full(len(operators), NONE, np.int64)
    back[rows[there]] = np.flatnonzero(there)
    launched = back[other.kernels.operator] if len(other.kernels) else np.zeros(0, np.int64)
    kept = np.flatnonzero(launched >= 0)
    kernels = Kernels(
        launched[kept].astype(np.int32), tuple(other.kernels.name[k] for k in kept.tolist()),
        other.kernels.device_s[kept], other.kernels.stream[kept],
    )  # fmt: skip
    return replace(
        other,
        modules=trace.modules,
        kernels=kernels,
        operators=replace(
            operators, name=mine.name, phase=mine.phase, module=mine.module, forward=mine.forward, view=mine.view,
            args=tuple(operators.args[row] for row in at.tolist()), inputs=operators.inputs.take(at),
            roles=operators.roles.take(at), outputs=operators.outputs.take(at),
            device_s=np.where(there, operators.device_s[at], np.nan),
            host_s=np.where(there, operators.host_s[at], np.nan), **columns,
        ),
    )  # fmt: skip
