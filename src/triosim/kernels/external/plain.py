"""A plain table, for tools without a reader of their own: ``operator``, ``seconds`` and what else is known."""

from __future__ import annotations

from pathlib import Path

from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.kernels.external import _csv
from triosim.kernels.external_times import (
    SIDES,
    ClockRates,
    ExternalReader,
    ExternalRow,
    ExternalTimes,
    Granularity,
    table,
)

_NAMES = {"operator": Granularity.OPERATOR, "kernel": Granularity.KERNEL}
_TIMES = ("seconds", "milliseconds", "microseconds", "nanoseconds")


@registered
class Plain(ExternalReader):
    """Comma separated: ``operator`` or ``kernel``, one of ``seconds``, ``milliseconds``, ``microseconds`` and
    ``nanoseconds`` (of one call), and if wanted ``module``, ``pass`` (forward or backward), ``count`` and ``elements``
    (of the output)."""

    title = "a CSV with the columns operator (or kernel) and seconds"

    def recognises(self, text: str) -> bool:
        return _csv.header(text, _wanted) >= 0

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a number is none, or a pass is neither forward nor backward.
        """
        start = _csv.header(text, _wanted)
        columns = _csv.cells(text.split("\n")[start])
        (named,) = set(columns) & set(_NAMES)
        (timed,) = set(columns) & set(_TIMES)
        rows = [_row(path, line, named, timed) for line in _csv.lines(path, text, start)]
        return table(f"table {path}", _NAMES[named], rows)


def _wanted(columns: set[str]) -> bool:
    return len(columns & set(_NAMES)) == 1 and len(columns & set(_TIMES)) == 1


def _row(path: Path, line: _csv.CsvLine, named: str, timed: str) -> ExternalRow:
    side = line.cells.get("pass", "")
    if side not in SIDES:
        raise InputError(
            f"{path}, line {line.number}: 'pass' is {quoted(side)}; give forward or backward, or leave it empty"
        )
    return ExternalRow(
        line.cells[named],
        _csv.number(path, line, timed) * _csv.SECONDS[timed],
        _csv.whole(path, line, "count") if line.cells.get("count") else 1,
        line.cells.get("module", ""),
        side,
        _csv.whole(path, line, "elements") if line.cells.get("elements") else 0,
    )
