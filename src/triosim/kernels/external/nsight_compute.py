"""``ncu --csv``: the duration of each launch, from the page ``raw`` or ``details``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.kernels.external import _csv
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_DURATION = "gpu__time_duration.sum"
_METRICS = (_DURATION, "Duration")
_LONG = {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"}
_WIDE = {"ID", "Kernel Name"}
_CURE = f"profile with --metrics {_DURATION} or --section SpeedOfLight"


@registered
class NsightCompute(ExternalReader):
    """One row for each profiled launch, in the order of their numbers.

    Page ``raw`` has one line a launch, under the header a line of units; page ``details`` has one line a metric.
    """

    title = "Nsight Compute CSV (ncu --csv)"

    def recognises(self, text: str) -> bool:
        return _csv.header(text, _WIDE.issubset) >= 0

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: the duration was not profiled, or its unit is not one of time.
        """
        start = _csv.header(text, _WIDE.issubset)
        columns = set(_csv.cells(text.split("\n")[start]))
        rows = list(_details(path, text, start) if columns >= _LONG else _raw(path, text, start))
        if not rows:
            raise InputError(f"{path} holds no duration of a kernel; {_CURE}")
        notes = [f"{path}: Nsight Compute holds the clock at its base frequency unless told --clock-control none"]
        return table(f"Nsight Compute {path}", Granularity.KERNEL, rows, notes)


def _details(path: Path, text: str, start: int) -> Iterator[ExternalRow]:
    seen: set[tuple[str, str]] = set()
    for line in _csv.lines(path, text, start):
        launch = (line.cells.get("Process ID", ""), line.cells["ID"])
        if line.cells["Metric Name"] in _METRICS and launch not in seen:
            seen.add(launch)
            scale = _scale(path, line, line.cells["Metric Unit"])
            yield ExternalRow(line.cells["Kernel Name"], _csv.number(path, line, "Metric Value") * scale)


def _raw(path: Path, text: str, start: int) -> Iterator[ExternalRow]:
    scale = None
    for line in _csv.lines(path, text, start):
        if _DURATION not in line.cells:
            raise InputError(f"{path} has no column {quoted(_DURATION)}; {_CURE}")
        if scale is None:
            scale = _scale(path, line, line.cells[_DURATION])
            if line.cells["ID"]:
                raise InputError(f"{path}, line {line.number}: the line of units is missing; export with --page raw")
            continue
        yield ExternalRow(line.cells["Kernel Name"], _csv.number(path, line, _DURATION) * scale)


def _scale(path: Path, line: _csv.CsvLine, unit: str) -> float:
    if unit not in _csv.SECONDS:
        raise InputError(
            f"{path}, line {line.number}: the duration's unit is {quoted(unit)}, not one of time; export with --page "
            "raw "
            "and its line of units"
        )
    return _csv.SECONDS[unit]
