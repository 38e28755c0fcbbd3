"""CSV of the Azure LLM inference traces: ``TIMESTAMP`` (date and time), ``ContextTokens``, ``GeneratedTokens``."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.serving.request_files import RequestReader, csv_rows, has_columns, number
from triosim.serving.requests import RequestTable

COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?([+-]\d\d:?\d\d|Z)?")


@registered
class AzureCsv(RequestReader):
    """The first request arrives at 0."""

    what = "CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure)"

    def recognises(self, head: str) -> bool:
        """By the header."""
        return has_columns(head, COLUMNS)

    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """See the module's docstring."""
        lines, seconds, prompt, output = [], [], [], []
        for at, row in csv_rows(path, source):
            where = f"{path}, line {at}"
            lines.append(at)
            seconds.append(_seconds(row["timestamp"], where))
            prompt.append(number(row["contexttokens"], where, "ContextTokens"))
            output.append(number(row["generatedtokens"], where, "GeneratedTokens"))
        begin = min(seconds, default=0.0) if sort else (seconds or [0.0])[0]
        arrived = [second - begin for second in seconds]
        return RequestTable.of(arrived, prompt, output, place=lambda row: f"{path}, line {lines[row]}", sort=sort)


def _seconds(cell: str, where: str) -> float:
    """Seconds since 1970; fractions of any length."""
    match = _TIME.fullmatch(cell.strip())
    try:
        if match is None:
            raise ValueError
        zone = (match[3] or "+00:00").replace("Z", "+00:00")
        when = datetime.fromisoformat(match[1].replace("T", " "))
        offset = datetime.strptime(zone.replace(":", ""), "%z").utcoffset()
        assert offset is not None
    except ValueError:
        raise InputError(
            f"{where}: TIMESTAMP is {quoted(cell)}: give a date and time, as 2023-11-16 18:15:46.68"
        ) from None
    return (when.replace(tzinfo=timezone.utc) - offset).timestamp() + float(match[2] or 0)
