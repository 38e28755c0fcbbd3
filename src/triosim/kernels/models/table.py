"""Operator times interpolated in a table of measured kernels.

A table is a JSON file::

    {"schema": "triosim/kernel-table/1", "name": "cuBLAS 12.4", "device": "A100-SXM4-80GB",
     "tables": [{"kind": "matrix", "dtype": "bfloat16", "axes": {"m": [...], "n": [...], "k": [...]},
                 "seconds": [...]},
                {"kind": "elementwise", "dtype": "float32", "axes": {"bytes": [...]}, "seconds": [...]}],
     "provenance": {...}}

with one entry of every list per measured kernel.  ``kind`` is a class of :data:`triosim.kernels.classes.GROUPS`; axes
are ``m``, ``n``, ``k`` and ``batch`` of matrix products (:mod:`triosim.kernels.work.gemm`), and ``flop`` and ``bytes``
of any operator.  Kernels that a table has no entry for are priced by ``auto``.

Between the points of a grid the logarithm of the time is multilinear in the logarithms of the axes; a hole is filled
first from its neighbours along the axes.  Outside of the grid its nearest face counts, and where the points are no
grid the nearest point.  The half-width of the interval is ``hypot(points, between, d)``: ``points`` is what repetitions
differ by; ``between`` is 0 on a measured point, else the 90 % quantile of what the grid's own points are off by when
they are interpolated from their neighbours along an axis; ``d`` is the sum of the distances to what was measured along
the axes (natural logarithms), as far as the time could have moved with them.
"""

from __future__ import annotations

import functools
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.hardware import catalog
from triosim.kernels import anchoring
from triosim.kernels.classes import GROUPS, classify
from triosim.kernels.estimate import CONFIDENCE, Estimates, Limit, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models.auto import Auto
from triosim.kernels.work import gemm
from triosim.trace.tables import Trace

SCHEMA = "triosim/kernel-table/1"
AXES = ("m", "n", "k", "batch", "flop", "bytes")
_CELLS = 4_000_000
"""Largest grid that is laid out in full."""
_BLOCK = 2_000_000
"""Distances that are held at a time."""


@dataclass(frozen=True)
class MeasurementGrid:
    """Measured points in ``d`` dimensions.

    Attributes:
        points: logarithms of the axes, shape ``(n, d)``.
        log_seconds: logarithm of the time at each point, shape ``(n,)``.
        axes: the values of each axis that occur, sorted.
        cells: logarithm of the time on the full grid of ``axes``, NaN where it is not known; None where such a grid
            would be too large.
        between: 90 % of the errors (logarithm) of interpolation between the points of the grid.
    """

    points: NDArray[np.float64]
    log_seconds: NDArray[np.float64]
    axes: tuple[NDArray[np.float64], ...]
    cells: NDArray[np.float64] | None
    between: float

    def at(self, queries: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds at ``queries`` (logarithms, shape ``(q, d)``) and the spread of each without that of a point."""
        inside = np.clip(queries, [axis[0] for axis in self.axes], [axis[-1] for axis in self.axes])
        found = np.full(len(queries), np.nan)
        if self.cells is not None:
            found = _multilinear(self.cells, self.axes, inside)
        distance = np.abs(queries - inside).sum(1)
        rest = np.flatnonzero(np.isnan(found))
        if rest.size:
            nearest, distance[rest] = self._nearest(queries[rest])
            found[rest] = self.log_seconds[nearest]
        return np.exp(found), np.where(self._measured(inside), distance, np.hypot(distance, self.between))

    def _measured(self, queries: NDArray[np.float64]) -> NDArray[np.bool_]:
        both = np.concatenate([self.points, queries])
        _, group = np.unique(both, axis=0, return_inverse=True)
        return np.isin(group.ravel()[len(self.points) :], group.ravel()[: len(self.points)])

    def _nearest(self, queries: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        nearest, distance = np.empty(len(queries), np.int64), np.empty(len(queries))
        step = max(_BLOCK // len(self.points), 1)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            apart = sum(np.abs(block[:, d, None] - self.points[None, :, d]) for d in range(block.shape[1]))
            nearest[start : start + step] = np.argmin(apart, 1)
            distance[start : start + step] = np.min(apart, 1)
        return nearest, distance


def grid(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> MeasurementGrid:
    """A grid of measured points.

    Args:
        columns: positive values of the axes, shape ``(n, d)``; of a point that occurs several times the median counts.
        seconds: positive, shape ``(n,)``.
    """
    unique, group = np.unique(np.log(columns), axis=0, return_inverse=True)
    log_seconds = _medians(np.log(seconds), group.ravel(), len(unique))
    axes, at = zip(*(np.unique(column, return_inverse=True) for column in unique.T), strict=True)
    shape = tuple(len(axis) for axis in axes)
    cells, between = None, 0.0
    if math.prod(shape) <= min(_CELLS, 64 * len(unique)):
        cells = np.full(shape, np.nan)
        cells[tuple(index.ravel() for index in at)] = log_seconds
        guesses = [_between(cells, axis, d) for d, axis in enumerate(axes)]
        errors = np.concatenate([np.abs(guess - cells).ravel() for guess in guesses])
        errors = errors[np.isfinite(errors)]
        between = float(np.quantile(errors, CONFIDENCE)) if errors.size else 0.0
        count = sum(np.isfinite(guess).astype(int) for guess in guesses)
        total = sum(np.nan_to_num(guess) for guess in guesses)
        cells = np.where(np.isnan(cells) & (count > 0), total / np.maximum(count, 1), cells)
    return MeasurementGrid(unique, log_seconds, tuple(axes), cells, between)


def _between(cells: NDArray[np.float64], axis: NDArray[np.float64], d: int) -> NDArray[np.float64]:
    """Every cell interpolated from the nearest known ones before and after it along dimension ``d``, else NaN."""
    lines = np.moveaxis(cells, d, -1)
    known, length = np.isfinite(lines), len(axis)
    at = np.arange(length)
    before = np.maximum.accumulate(np.where(known, at, -1), axis=-1)
    before = np.concatenate([np.full((*lines.shape[:-1], 1), -1), before[..., :-1]], -1)
    after = np.minimum.accumulate(np.where(known, at, length)[..., ::-1], axis=-1)[..., ::-1]
    after = np.concatenate([after[..., 1:], np.full((*lines.shape[:-1], 1), length)], -1)
    enclosed = (before >= 0) & (after < length)
    low, high = np.maximum(before, 0), np.minimum(after, length - 1)
    part = (axis[at] - axis[low]) / np.where(enclosed, axis[high] - axis[low], 1.0)
    first, last = (np.take_along_axis(lines, index, -1) for index in (low, high))
    return np.moveaxis(np.where(enclosed, first + part * (last - first), np.nan), -1, d)


def _medians(values: NDArray[np.float64], group: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    order = np.lexsort((values, group))
    ends = np.cumsum(np.bincount(group, minlength=count))
    starts = np.r_[0, ends[:-1]]
    return np.asarray((values[order[(starts + ends - 1) // 2]] + values[order[(starts + ends) // 2]]) / 2)


def _multilinear(
    cells: NDArray[np.float64], axes: tuple[NDArray[np.float64], ...], queries: NDArray[np.float64]
) -> NDArray[np.float64]:
    """NaN where a corner that counts was not measured."""
    low, part = [], []
    for axis, column in zip(axes, queries.T, strict=True):
        index = np.clip(np.searchsorted(axis, column, side="right") - 1, 0, max(len(axis) - 2, 0))
        above = np.minimum(index + 1, len(axis) - 1)
        width = np.where(above > index, axis[above] - axis[index], 1.0)
        low.append(index)
        part.append((column - axis[index]) / width)
    out = np.zeros(len(queries))
    for corner in product((0, 1), repeat=len(axes)):
        weight = np.ones(len(queries))
        for side, fraction in zip(corner, part, strict=True):
            weight = weight * (fraction if side else 1 - fraction)
        at = tuple(np.minimum(i + s, len(a) - 1) for i, s, a in zip(low, corner, axes, strict=True))
        out += np.where(weight > 0, weight * cells[at], 0.0)
    return out


@dataclass(frozen=True)
class TableEntry:
    """The measured kernels of one class and element type; ``dtype`` -1 for any."""

    group: int
    dtype: int
    names: tuple[str, ...]
    grid: MeasurementGrid


@dataclass(frozen=True)
class KernelTables:
    """What a file holds."""

    name: str
    device: str
    entries: tuple[TableEntry, ...]


@functools.lru_cache(maxsize=8)
def load(path: str) -> KernelTables:
    """The tables of a file.

    Raises:
        InputError: the file cannot be read, or is not a table of kernels.
    """
    where = f"kernel table {path}"
    document = guarded.values(Path(path), ".json")
    if not is_table(document):
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{where}: schema is {quoted(found)}, this version reads {SCHEMA!r}")
    listed = document.get("tables")
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{where}: 'tables' is missing or empty")
    device = document.get("device")
    if not isinstance(device, str):
        raise InputError(f"{where}: 'device' is missing: say which device the kernels were measured on")
    entries = tuple(_entry(one, f"{where}: table {at}") for at, one in enumerate(listed))
    return KernelTables(str(document.get("name", path)), _catalog_name(device), entries)


def _catalog_name(device: str) -> str:
    try:
        return catalog.accelerator(device).name
    except InputError:
        return device  # one that the user describes


def is_table_file(path: str) -> bool:
    """Whether a file is a table of kernels; what cannot be read is not."""
    return guarded.schema(Path(path)) == SCHEMA


def is_table(document: Any) -> bool:
    """Whether a JSON document says that it is a table of kernels."""
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def _entry(one: Any, where: str) -> TableEntry:
    if not isinstance(one, dict) or one.get("kind") not in GROUPS[1:]:
        raise InputError(f"{where}: 'kind' must be one of {', '.join(GROUPS[1:])}")
    axes = one.get("axes")
    if not isinstance(axes, dict) or not axes or not set(axes) <= set(AXES):
        raise InputError(f"{where}: 'axes' must be some of {', '.join(AXES)}")
    if one["kind"] != "matrix" and set(axes) & set(AXES[:4]):
        raise InputError(f"{where}: only kind 'matrix' has the axes m, n, k and batch")
    dtype = one.get("dtype")
    if dtype is not None and (not isinstance(dtype, str) or dtype not in DTYPE_CODE):
        raise InputError(f"{where}: 'dtype' {quoted(dtype)} is none of {', '.join(DTYPE_CODE)}")
    seconds = _positive(one.get("seconds"), f"{where}: 'seconds'")
    columns = [_positive(column, f"{where}: axis {quoted(name)}") for name, column in axes.items()]
    for name, column in zip(axes, columns, strict=True):
        if len(column) != len(seconds):
            raise InputError(f"{where}: axis {quoted(name)} has {len(column)} entries and 'seconds' {len(seconds)}")
    code = -1 if dtype is None else DTYPE_CODE[dtype]
    return TableEntry(GROUPS.index(one["kind"]), code, tuple(axes), grid(np.stack(columns, 1), seconds))


def _positive(values: Any, what: str) -> NDArray[np.float64]:
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 1 or not found.size or not np.all(np.isfinite(found) & (found > 0)):
        raise InputError(f"{what} must be a list of positive numbers")
    return found


@registered
class TableModel(OperatorModel):
    """Measured kernels where a table has them, ``auto`` elsewhere.

    Args:
        path: of the table.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path

    def price(self, job: PricingJob) -> Estimates:
        """See the module's docstring.

        Raises:
            InputError: no table was given, it cannot be read or is of another device, none of its kernels is in the
                trace, or the rest cannot be priced.
        """
        if self.path is None:
            raise InputError("operator times 'table' need a file: give its path, as --operator-times kernels.json")
        tables = load(self.path)
        if job.device.name != tables.device:
            here = job.device.name or "a device without a name"
            raise InputError(
                f"kernel table {self.path} is of {tables.device}, not of {here}: give --device, or a table of "
                "that device"
            )
        base = Auto().price(job)
        seconds, spread, source = base.seconds.copy(), base.spread.copy(), base.source.copy()
        limit = base.limit.copy()
        known = anchoring.load().recorded_spread
        for entry in tables.entries:
            rows = _rows(job, entry, base.seconds)
            columns = _columns(job.trace, entry.names, rows)
            usable = np.all(columns > 0, axis=1)
            rows, columns = rows[usable], columns[usable]
            if rows.size:
                seconds[rows], off = entry.grid.at(np.log(columns))
                spread[rows] = np.hypot(known, off)
                source[rows], limit[rows] = Source.TABLE, Limit.UNKNOWN
        if not (source == Source.TABLE).any():
            raise InputError(
                f"kernel table {self.path}: none of its kernels is in the trace, which has "
                f"{_present(job)}: give a table of those, or use --operator-times auto"
            )
        return Estimates(seconds, spread, source, limit)


def _rows(job: PricingJob, entry: TableEntry, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Operators that an entry is for; those that take no time are left alone."""
    classified = classify(job.trace, job.device)
    chosen = (classified.group == entry.group) & (seconds > 0)
    if entry.dtype >= 0:
        operators, values = job.trace.operators, job.trace.values
        first = np.full(len(operators), -1, np.int64)
        outputs = operators.outputs
        has = outputs.lengths() > 0
        first[has] = values.dtype[outputs.values[outputs.offsets[:-1][has]]]
        chosen &= np.where(classified.dtype >= 0, classified.dtype, first) == entry.dtype
    return np.flatnonzero(chosen)


def _columns(trace: Trace, names: tuple[str, ...], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The axes of the operators ``rows``, NaN where they have none."""
    operators = trace.operators
    columns = {"flop": operators.flop[rows], "bytes": operators.bytes[rows]}
    if set(names) & set(AXES[:4]):
        work, times = gemm.of(trace, rows, np.full(len(rows), DTYPE_CODE["float32"], np.int8))
        one = times == 1  # a backward operator of several products is not one kernel of the table
        for name in AXES[:4]:
            columns[name] = np.where(one, getattr(work, name), np.nan)
    return np.stack([columns[name] for name in names], 1)


def _present(job: PricingJob) -> str:
    groups = classify(job.trace, job.device).group
    return ", ".join(GROUPS[code] for code in np.unique(groups).tolist() if code) or "no kernels"
