"""What differs between the operators to be priced and those that were recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.trace.tables import UNDECIDED, Operators, Trace, Values

_FIGURES = (
    "name",
    "vendor",
    "kind",
    "architecture",
    "peak_flops",
    "memory_bandwidth",
    "compute_units",
    "clock_hz",
    "cache_bytes",
)


def same_device(a: Accelerator, b: Accelerator) -> bool:
    """Whether operators take the same time on both: the same name and figures, whatever links they have."""
    return all(getattr(a, name) == getattr(b, name) for name in _FIGURES)


def changed(trace: Trace, recorded: Trace) -> NDArray[np.bool_]:
    """Whether an input or output of each operator has another shape or element type than in the recording.

    Args:
        trace: operators to be priced.
        recorded: the recording, row for row the same operators.

    Raises:
        InputError: the two are not of the same operators.
    """
    new, old = trace.operators, recorded.operators
    if trace is recorded:
        return np.zeros(len(new), bool)
    if new.name is not old.name and new.name != old.name:
        raise InputError(
            f"trace {trace.meta.workload!r} and its recording are not of the same operators "
            f"({len(new)} and {len(old)} rows): record the step anew"
        )
    out = np.zeros(len(new), bool)
    same_table = len(trace.values) == len(recorded.values)
    everything = np.arange(len(trace.values))
    differs = _differs(trace.values, everything, recorded.values, everything) if same_table else None
    for mine, theirs in ((new.inputs, old.inputs), (new.outputs, old.outputs)):
        if not np.array_equal(mine.offsets, theirs.offsets):
            lengths = mine.lengths() != theirs.lengths()
            out |= lengths
            rows = np.flatnonzero(~lengths)
            mine, theirs = mine.take(rows), theirs.take(rows)
        else:
            rows = np.arange(len(new))
        if differs is not None and np.array_equal(mine.values, theirs.values):
            marks = differs[mine.values]
        else:
            marks = _differs(trace.values, mine.values, recorded.values, theirs.values)
        out[rows[mine.rows()[marks]]] = True
    return out


def _differs(a: Values, ids_a: NDArray, b: Values, ids_b: NDArray) -> NDArray[np.bool_]:
    """Pair by pair: whether value ``ids_a[i]`` of ``a`` and ``ids_b[i]`` of ``b`` differ in shape or type."""
    if a is b and np.array_equal(ids_a, ids_b):
        return np.zeros(len(ids_a), bool)
    out = a.dtype[ids_a] != b.dtype[ids_b]
    shape_a, shape_b = _rows(a.shape, ids_a), _rows(b.shape, ids_b)
    ranks = shape_a.lengths() != shape_b.lengths()
    out |= ranks
    same = np.flatnonzero(~ranks)
    if len(same) < len(out):
        shape_a, shape_b = shape_a.take(same), shape_b.take(same)
    unequal = shape_a.values != shape_b.values
    if unequal.any():
        out[same[shape_a.rows()[unequal]]] = True
    return out


def _rows(table: Ragged, ids: NDArray) -> Ragged:
    identity = len(ids) == len(table) and np.array_equal(ids, np.arange(len(table)))
    return table if identity else table.take(ids)


def growth(trace: Trace, recorded: Trace) -> float:
    """By what factor everything that follows the batch and the sequence has grown, 1 where neither changed."""
    factor = 1.0
    for new, old in (
        (trace.meta.batch_size, recorded.meta.batch_size),
        (trace.meta.sequence_length, recorded.meta.sequence_length),
    ):
        if new and old:
            factor *= new / old
    return factor


def undecided(trace: Trace) -> NDArray[np.bool_]:
    """Operators that read or write a value whose dependence on the batch could not be established."""
    out = np.zeros(len(trace), bool)
    bits = trace.values.symbols
    if not trace.meta.symbols or not np.any(bits.values & UNDECIDED):
        return out
    marked = np.zeros(len(trace.values), bool)
    marked[bits.rows()[(bits.values & UNDECIDED) != 0]] = True
    for ids in (trace.operators.inputs, trace.operators.outputs):
        out[ids.rows()[marked[ids.values]]] = True
    return out


def work_ratio(new: Operators, old: Operators) -> NDArray[np.float64]:
    """New over recorded work: FLOP where both are counted, else bytes; 1 where the recording has neither."""
    with np.errstate(divide="ignore", invalid="ignore"):
        by_flop, by_bytes = new.flop / old.flop, new.bytes / old.bytes
    counted = (old.flop > 0) & np.isfinite(new.flop)
    moved = (old.bytes > 0) & np.isfinite(new.bytes)
    return np.where(counted, by_flop, np.where(moved, by_bytes, 1.0))
