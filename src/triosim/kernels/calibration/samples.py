"""The measured kernels of a trace, as tables of work with their times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.calibration.fitting import MeasuredKernels, different, operator_name
from triosim.kernels.calibration.tiles import menu
from triosim.kernels.classes import OTHER, classify
from triosim.kernels.models.physical import PhysicalBaseModel, beside, works
from triosim.kernels.physical.gemm import Menu
from triosim.kernels.physical.kinds import BY_NAME
from triosim.operators import kind
from triosim.trace.calls import unique_calls
from triosim.trace.tables import Trace

MOST = 500
"""Different kernels of a class that are kept, the ones with the most time first."""
_COUNTED = ("linear", "matmul", "convolution", "attention")
_BESIDE = 0.5
"""Operators of which kernels beside the one that counts take more than this part are left out."""


@dataclass(frozen=True)
class TraceSamples:
    """What a trace has measured.

    Attributes:
        kinds: measured kernels by the name of their kind.
        operators: how many of the trace's operators they stand for.
        left_out: how many measured operators say nothing about one: unknown shapes, too many kernels of other kinds.
    """

    kinds: dict[str, MeasuredKernels]
    operators: int
    left_out: int


def samples(trace: Trace, device: Accelerator) -> TraceSamples:
    """The measured kernels of ``trace``, recorded on ``device``; of equal calls the median.

    Raises:
        InputError: the trace has no measured times.
    """
    seconds = trace.operators.device_s
    if trace.meta.clock == "none" or not (seconds > 0).any():
        raise InputError(
            f"trace {trace.meta.workload!r} holds no measured times: record a step on the device to be calibrated"
        )
    launches = np.ones(len(trace))
    if len(trace.kernels):
        launches = np.maximum(np.bincount(trace.kernels.operator, minlength=len(trace)), 1).astype(np.float64)
    calls, row = unique_calls(trace, launches)
    kernels = np.ones(len(calls))
    kernels[row] = launches
    times = _medians(seconds, row, len(calls))
    before = PhysicalBaseModel().predict(calls, device, kernels.astype(np.int64)).seconds
    classified = classify(calls, device)
    names = _kernel_names(trace, row)
    found: dict[str, MeasuredKernels] = {}
    used = np.zeros(len(calls), bool)
    shapes_known = _shapes_known(calls, classified.group)
    for name, at, work, repeats in works(calls, classified, kernels, (times > 0) & shapes_known):
        of = BY_NAME[name]
        extra = beside(name, kernels[at], repeats)
        good = np.flatnonzero((extra <= _BESIDE * times[at]) & np.isfinite(before[at]))
        good = _longest(good, times[at], of.class_of(work))
        if not good.size:
            continue
        at, work, repeats, extra = at[good], work.take(good), repeats[good], extra[good]
        used[at] = True
        menus = _menus(of.classes, of.class_of(work), [names.get(call, []) for call in at.tolist()])
        operators = tuple(operator_name(calls.operators.name[call]) for call in at.tolist())
        measured = MeasuredKernels(
            work, (times[at] - extra) / repeats, (before[at] - extra) / repeats, menus, operators
        )
        found[name] = different(measured)
    counted = np.flatnonzero(seconds > 0)
    count = int(used[row[counted]].sum())
    return TraceSamples(found, count, len(counted) - count)


def _shapes_known(calls: Trace, group: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Whether what each call does is known: foreign traces may name operators without their shapes."""
    uncounted = np.array([kind(name) in _COUNTED for name in calls.operators.name], bool) & (group == OTHER)
    return (np.nan_to_num(calls.operators.bytes) > 0) & ~uncounted


def _medians(seconds: NDArray[np.float64], row: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Median time of each call, 0 where none was measured."""
    out = np.zeros(count)
    measured = np.flatnonzero(seconds > 0)
    order = measured[np.lexsort((seconds[measured], row[measured]))]
    calls, starts, counts = np.unique(row[order], return_index=True, return_counts=True)
    low, high = seconds[order[starts + (counts - 1) // 2]], seconds[order[starts + counts // 2]]
    out[calls] = (low + high) / 2
    return out


def _longest(rows: NDArray[np.int64], times: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most :data:`MOST` rows of each class, in their order."""
    kept = [of[np.argsort(-times[of], kind="stable")[:MOST]] for code in np.unique(classes[rows])
            if (of := rows[classes[rows] == code]).size]  # fmt: skip
    return np.sort(np.concatenate(kept)) if kept else rows


def _kernel_names(trace: Trace, row: NDArray[np.int64]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for operator, name in zip(trace.kernels.operator.tolist(), trace.kernels.name, strict=True):
        found.setdefault(int(row[operator]), []).append(name)
    return found


def _menus(classes: tuple[str, ...], code: NDArray[np.int64], names: list[list[str]]) -> dict[str, Menu]:
    """Tiles that the kernels of each class of matrix products have in their names."""
    found = {}
    for one in np.unique(code).tolist():
        if classes[one].startswith("matrix/"):
            tiles = menu(name for at in np.flatnonzero(code == one).tolist() for name in names[at])
            if tiles:
                found[classes[one]] = tiles
    return found
