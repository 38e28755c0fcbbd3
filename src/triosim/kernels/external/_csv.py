"""What the readers of comma separated files share: finding the header, and numbers as profilers write them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from triosim.core import guarded
from triosim.core.errors import InputError, quoted

HEADER_LINES = 500
"""Lines among which a header is looked for: profilers put their own messages and the program's output before it."""

SECONDS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3, "msecond": 1e-3,
    "milliseconds": 1e-3, "us": 1e-6, "usec": 1e-6, "usecond": 1e-6, "microseconds": 1e-6, "ns": 1e-9, "nsec": 1e-9,
    "nsecond": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
"""Seconds in a unit as tools abbreviate it."""

_UNIT = re.compile(r"^(.*?)\s*\((\w+)\)$")


class CsvLine(NamedTuple):
    """One line of a table: its number in the file, from 1, and its cells by column."""

    number: int
    cells: dict[str, str]


def header(text: str, wanted: Callable[[set[str]], bool]) -> int:
    """Number of the first line, from 0, whose cells are a header that is ``wanted``; -1 where there is none."""
    for number, line in enumerate(text.split("\n", HEADER_LINES)[:HEADER_LINES]):
        if "," in line and wanted(set(cells(line))):
            return number
    return -1


def cells(line: str) -> list[str]:
    """The cells of one line, without space around them."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []


def lines(path: Path, text: str, start: int) -> Iterator[CsvLine]:
    """The lines below the header in line ``start``, up to the first empty one.

    Raises:
        InputError: a line has not as many cells as the header.
    """
    rows = csv.reader(text.split("\n")[start:], skipinitialspace=True)
    with guarded.csv_errors(str(path), lambda: start + rows.line_num):
        columns = [cell.strip() for cell in next(rows)]
        for row in rows:
            if not any(cell.strip() for cell in row):
                return
            number = start + rows.line_num
            if len(row) != len(columns):
                raise InputError(
                    f"{path}, line {number}: {len(row)} cells under a header of {len(columns)}; write the file again "
                    "or complete the line"
                )
            yield CsvLine(number, dict(zip(columns, (cell.strip() for cell in row), strict=True)))


def number(path: Path, line: CsvLine, column: str) -> float:
    """A number of 0 or more, which may have commas between thousands.

    Raises:
        InputError: it is none.
    """
    text = line.cells[column]
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(
            f"{path}, line {line.number}: {quoted(column)} is {quoted(text)}, not a number of 0 or more; correct it"
        )
    return value


def whole(path: Path, line: CsvLine, column: str) -> int:
    """A whole number of 1 or more.

    Raises:
        InputError: it is none.
    """
    value = number(path, line, column)
    if value != int(value) or value < 1:
        raise InputError(
            f"{path}, line {line.number}: {quoted(column)} is {quoted(line.cells[column])}, not a count of 1 or more; "
            "correct it"
        )
    return int(value)


def timed(columns: Sequence[str], *titles: str) -> tuple[str, float] | None:
    """The first column called like one of ``titles`` with a unit behind it, and the seconds in that unit.

    ``("Avg (us)", 1e-6)`` for the title ``"Avg"``.
    """
    for title in titles:
        for column in columns:
            match = _UNIT.match(column)
            if match and match.group(1) == title and match.group(2) in SECONDS:
                return column, SECONDS[match.group(2)]
    return None
