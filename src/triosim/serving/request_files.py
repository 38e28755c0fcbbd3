"""Reading files of requests: recognised by content, whatever the file is called, gzipped or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.core.registry import Registry
from triosim.serving.requests import RequestTable

_HEAD = 1 << 16


class RequestReader(ABC):
    """Reads one format.  One subclass a file in ``serving/readers``.

    Attributes:
        what: the format, in the words of an error message.
    """

    what: ClassVar[str]

    @abstractmethod
    def recognises(self, head: str) -> bool:
        """Whether a file that begins so is of this format; cheap, never raises."""

    @abstractmethod
    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """The requests of a file.

        Args:
            path: the file, for messages.
            source: its content.
            sort: put requests in order of arrival.

        Raises:
            InputError: the content is broken.
        """


READERS = Registry("triosim.serving.readers", "triosim.serving.readers", "reader of requests", RequestReader)
"""Readers of request files by name."""


def load_requests(path: str | PathLike[str], sort: bool = False) -> RequestTable:
    """The requests in a file of any known format: CSV of Vidur, of the Azure traces and of BurstGPT, JSONL of Mooncake,
    and our own; gzipped or not.

    Args:
        path: of the file.
        sort: put them in order of arrival; otherwise those that are not are refused.

    Raises:
        InputError: nothing reads it, or it is broken.
    """
    path = Path(path)
    raw = guarded.content(path)
    head = raw[: max(_HEAD, raw.find(b"\n"))].decode("utf-8-sig", "replace")  # a whole line at least
    readers = [READERS.get(name)() for name in READERS.names()]
    found = [reader for reader in readers if reader.recognises(head)]
    if not found and head.lstrip().startswith("{"):
        guarded.parse_json(head.lstrip().split("\n", 1)[0], f"{path}, line 1")  # says where it is broken
    if len(found) != 1:
        known = "; ".join(reader.what for reader in found or readers)
        raise InputError(
            f"{path} is {'more than one kind' if found else 'no kind'} of request file that is known: {known}"
        )
    with guarded.reading(path):
        return found[0].read(path, guarded.text(raw, str(path)), sort)


# --- what readers share -----------------------------------------------------------------------------------------------


def has_columns(head: str, names: Sequence[str]) -> bool:
    """Whether the first line is the header of a CSV file with these columns, however they are written."""
    first = {cell.strip().strip('"').lower() for cell in head.split("\n", 1)[0].split(",")}
    return all(name.lower() in first for name in names)


def csv_rows(path: Path, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells of a CSV file, by the names of its columns in lower case.

    Raises:
        InputError: a line has more or fewer cells than the header.
    """
    reader = guarded.rows(source, str(path))
    with guarded.csv_errors(str(path), lambda: reader.line_num):
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{path}, line {reader.line_num}: has not as many cells as the header: export it again"
                )
            yield reader.line_num, {name.strip().lower(): cell for name, cell in row.items()}


def number(value: Any, where: str, name: str) -> float:
    """A cell or a JSON value as a number.

    Raises:
        InputError: it is none.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: {name} is {quoted(value)}: give a number") from None


def session_numbers(names: Sequence[str]) -> list[int]:
    """Numbers of conversations by their names, in order; -1 where the name is empty."""
    numbers = {name: place for place, name in enumerate(dict.fromkeys(name for name in names if name))}
    return [numbers.get(name, -1) for name in names]


def json_lines(path: Path, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of a JSONL file; empty lines are passed over.

    Raises:
        InputError: a line is no JSON object.
    """
    for at, line in enumerate(source.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {at}"
            found = guarded.parse_json(line, where)
            if not isinstance(found, dict):
                raise InputError(f"{where}: must be a JSON object with one request")
            yield at, found


def first_object(head: str) -> dict[str, Any]:
    """The JSON object in the first line; empty where it is none.  Never raises."""
    line = head.lstrip().split("\n", 1)[0]
    if not line.startswith("{"):
        return {}
    try:
        found = guarded.parse_json(line, "")
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}
