"""Tables of ``nsys stats --format csv``: ``cuda_gpu_kern_sum`` and ``cuda_gpu_trace``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.kernels.external import _csv
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_COPIES = ("[CUDA memcpy", "[CUDA memset")


@registered
class NsightSystems(ExternalReader):
    """One row for each launch of a trace in the order of their starts, or for each kernel of a summary with its mean.

    Copies and memsets of a trace are left out: they are no part of an operator's time.
    """

    title = "Nsight Systems CSV (cuda_gpu_kern_sum or cuda_gpu_trace)"

    def recognises(self, text: str) -> bool:
        return _csv.header(text, _summary) >= 0 or _csv.header(text, _trace) >= 0

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a line is incomplete, or a time is no number.
        """
        start = _csv.header(text, _summary)
        if start >= 0:
            return table(f"Nsight Systems summary {path}", Granularity.KERNEL, _totals(path, text, start))
        launches, copies = _launches(path, text, _csv.header(text, _trace))
        notes = [f"{path}: {copies} copies and memsets left out"] if copies else []
        return table(f"Nsight Systems trace {path}", Granularity.KERNEL, launches, notes)


def _summary(columns: set[str]) -> bool:
    return {"Name", "Instances"} <= columns and _csv.timed(sorted(columns), "Total Time", "Avg", "Average") is not None


def _trace(columns: set[str]) -> bool:
    return "Name" in columns and "CorrId" in columns and _csv.timed(sorted(columns), "Duration") is not None


def _totals(path: Path, text: str, start: int) -> Iterator[ExternalRow]:
    columns = _csv.cells(text.split("\n")[start])
    total, mean = _csv.timed(columns, "Total Time"), _csv.timed(columns, "Avg", "Average")
    for line in _csv.lines(path, text, start):
        count = _csv.whole(path, line, "Instances")
        if total:  # the mean is rounded to a tenth
            seconds = _csv.number(path, line, total[0]) * total[1] / count
        else:
            assert mean is not None
            seconds = _csv.number(path, line, mean[0]) * mean[1]
        yield ExternalRow(line.cells["Name"], seconds, count)


def _launches(path: Path, text: str, start: int) -> tuple[list[ExternalRow], int]:
    """Launches by their start, and the number of copies and memsets."""
    columns = _csv.cells(text.split("\n")[start])
    duration, begin = _csv.timed(columns, "Duration"), _csv.timed(columns, "Start")
    if duration is None or begin is None:
        raise InputError(f"{path} has no column 'Start (ns)'; export the report cuda_gpu_trace again")
    found: list[tuple[float, ExternalRow]] = []
    copies = 0
    for line in _csv.lines(path, text, start):
        if line.cells["Name"].startswith(_COPIES):
            copies += 1
            continue
        row = ExternalRow(line.cells["Name"], _csv.number(path, line, duration[0]) * duration[1])
        found.append((_csv.number(path, line, begin[0]), row))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])], copies
