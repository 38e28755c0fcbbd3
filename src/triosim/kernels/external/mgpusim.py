"""``metrics.csv`` of MGPUSim: time that kernels took, by component."""

from __future__ import annotations

from pathlib import Path

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.kernels.external import _csv
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_COLUMNS = {"where", "what", "value"}


@registered
class Mgpusim(ExternalReader):
    """One row for each ``kernel_time``, named after the component that reports it (``Driver``).

    The simulator reports the seconds of all kernels of a run together, so a run should hold one operator.
    """

    title = "MGPUSim metrics (columns where, what, value)"

    def recognises(self, text: str) -> bool:
        return _csv.header(text, _COLUMNS.issubset) >= 0

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a value is no number, or there is no ``kernel_time``.
        """
        start = _csv.header(text, _COLUMNS.issubset)
        rows = [
            ExternalRow(line.cells["where"], _csv.number(path, line, "value"))
            for line in _csv.lines(path, text, start)
            if line.cells["what"] == "kernel_time"
        ]
        if not rows:
            raise InputError(f"{path} has no metric 'kernel_time'; run the benchmark with -timing -report-all")
        return table(f"MGPUSim metrics {path}", Granularity.REGION, rows)
