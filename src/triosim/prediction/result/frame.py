"""Tables of a result as frames of pandas or, where that is not installed, tables of pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError, quoted
from triosim.prediction.result import CollectiveRow, DeviceRow, LayerRow, Result, StageRow
from triosim.schedule.program import STREAMS, Op
from triosim.trace.tables import Phase

if TYPE_CHECKING:
    import pandas
    import pyarrow

Columns = dict[str, Any]
"""Equally long columns by name."""

_TRANSFERS = (Op.COLLECTIVE, Op.SEND, Op.FETCH, Op.STORE)


def to_frame(result: Result, table: str) -> pandas.DataFrame | pyarrow.Table:
    """See :meth:`triosim.prediction.result.Result.to_frame`."""
    if table not in TABLES:
        raise InputError(f"a result has no table {quoted(table)}: its tables are {', '.join(TABLES)}")
    columns = TABLES[table](result)
    try:
        import pandas
    except ImportError:
        import pyarrow

        return pyarrow.table(columns)
    return pandas.DataFrame(columns)


def _rows(name: str, kind: type) -> Callable[[Result], Columns]:
    """A table of a result's own rows, which are of this class."""

    def columns(result: Result) -> Columns:
        return {one.name: [getattr(row, one.name) for row in getattr(result, name)] for one in fields(kind)}

    return columns


def _timeline(result: Result) -> Columns:
    """All that happened, in seconds from the start of the run; a row for each slice."""
    t = result.timeline
    s = t.slices
    return {
        "rank": s.rank,
        "stage": np.array(t.rank_stage)[s.rank],
        "stream": _named((*STREAMS, "receive"), s.stream),
        "kind": _named([op.name.lower() for op in Op], s.op),
        "operator": s.operator,
        "name": _named(t.names, s.name),
        "module": _named((*t.modules, ""), s.module),
        "phase": _named((*(phase.name.lower() for phase in Phase), ""), s.phase),
        "micro_batch": s.micro_batch,
        "iteration": s.iteration,
        "start_s": s.start,
        "begin_s": s.begin,
        "end_s": s.end,
        "bytes": s.bytes,
        "energy_j": s.energy,
    }


def _named(names: Any, rows: NDArray) -> list[str]:
    """The names with these numbers, -1 being the last."""
    return np.array([*names], object)[rows.astype(np.int64)].tolist()


def _operators(result: Result) -> Columns:
    """What the first rank of each stage runs, per iteration: a row for each operator, and for each kind of transfer.

    Seconds are those of the operator itself, waiting left out; ``flop`` is what its ``calls`` count, NaN where the
    operator is not of a kind that is counted.
    """
    t = result.timeline
    s = t.slices
    firsts = [t.rank_stage.index(stage) for stage in sorted(set(t.rank_stage))]
    rows = np.flatnonzero(np.isin(s.rank, firsts) & (s.operator >= 0))
    key = np.stack([s.rank[rows], s.operator[rows], s.name[rows]]).astype(np.int64)  # (3, slices)
    (rank, operator, name), first, row = np.unique(key, axis=1, return_index=True, return_inverse=True)
    row, op, length = row.ravel(), s.op[rows], (s.end - s.begin)[rows]

    def seconds(*ops: Op) -> NDArray[np.float64]:
        return np.bincount(row, length * np.isin(op, ops), minlength=len(first)) / t.iterations

    issues = op == Op.ISSUE
    calls = np.bincount(row, ~issues, minlength=len(first)) / t.iterations
    computes = np.bincount(row, op == Op.COMPUTE, minlength=len(first)) > 0
    return {
        "stage": np.array(t.rank_stage)[rank],
        "rank": rank,
        "operator": operator,
        "name": _named(t.names, name),
        "module": _named((*t.modules, ""), s.module[rows][first]),
        "phase": _named((*(phase.name.lower() for phase in Phase), ""), s.phase[rows][first]),
        "calls": calls,
        "compute_s": seconds(Op.COMPUTE),
        "communication_s": seconds(*_TRANSFERS),
        "host_s": seconds(Op.ISSUE),
        "energy_j": np.bincount(row, s.energy[rows], minlength=len(first)) / t.iterations,
        "flop": np.where(computes, t.flop[operator] * calls, np.nan),
    }


TABLES: dict[str, Callable[[Result], Columns]] = {
    "operators": _operators,
    "layers": _rows("layers", LayerRow),
    "collectives": _rows("collectives", CollectiveRow),
    "devices": _rows("devices", DeviceRow),
    "stages": _rows("stages", StageRow),
    "timeline": _timeline,
}
"""Columns of each table."""
