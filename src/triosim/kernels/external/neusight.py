"""NeuSight's operator tables (labels and predictions): forward, backward and accumulation of each node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from triosim.core import guarded
from triosim.core.registry import registered
from triosim.kernels.external import _csv
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_COLUMNS = {"Name", "OpName", "fw_latency", "bw_latency"}


@registered
class Neusight(ExternalReader):
    """Two rows a node of the model's graph: its forward and, where it has one, its backward pass.

    Latencies are in milliseconds.  The backward pass is ``bw_latency`` and ``acc_latency``, the accumulation of the
    gradients of weights.  The name of a node is the path of a module with ``_`` for the dots.
    """

    title = "NeuSight operator CSV (columns Name, OpName, fw_latency, bw_latency)"

    def recognises(self, text: str) -> bool:
        return _csv.header(text, _COLUMNS.issubset) >= 0

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a latency is no number.
        """
        start = _csv.header(text, _COLUMNS.issubset)
        rows = [row for line in _csv.lines(path, text, start) for row in _passes(path, line)]
        timed = [row for row in rows if row.seconds > 0]
        less = len(rows) - len(timed)
        notes = [f"{path}: {less} passes of nodes that take no time left out"] if less else []
        return table(f"NeuSight table {path}", Granularity.MODULE, timed, notes)


def _passes(path: Path, line: _csv.CsvLine) -> Iterator[ExternalRow]:
    def milliseconds(column: str) -> float:
        return _csv.number(path, line, column) if line.cells.get(column) else 0.0

    name, elements = line.cells["Name"], _elements(line.cells.get("OutputShape", ""))
    yield ExternalRow(name, milliseconds("fw_latency") / 1e3, side="forward", elements=elements)
    back = milliseconds("bw_latency") + milliseconds("acc_latency")
    yield ExternalRow(name, back / 1e3, side="backward", elements=elements)


def _elements(text: str) -> int:
    """Elements of a shape such as ``(4, 1024)``, 0 where the text is none."""
    try:
        shape = guarded.literal(text)
    except ValueError:
        return 0
    shape = (shape,) if isinstance(shape, int) else shape
    if not isinstance(shape, list | tuple) or not shape or not all(isinstance(size, int) for size in shape):
        return 0
    return max(math.prod(shape), 0)
