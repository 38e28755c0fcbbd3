"""CSV of BurstGPT: ``Timestamp`` (seconds), ``Request tokens``, ``Response tokens``, in newer files ``Session ID``."""

from __future__ import annotations

from pathlib import Path

from triosim.core.registry import registered
from triosim.serving.request_files import RequestReader, csv_rows, has_columns, number, session_numbers
from triosim.serving.requests import RequestTable

COLUMNS = ("timestamp", "request tokens", "response tokens")


@registered
class BurstGpt(RequestReader):
    """The first request arrives at 0.  Failed requests have no response tokens, and must be left out."""

    what = "CSV with Timestamp, Request tokens, Response tokens (BurstGPT)"

    def recognises(self, head: str) -> bool:
        """By the header."""
        return has_columns(head, COLUMNS)

    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """See the module's docstring."""
        lines, table, sessions = [], [], []
        for at, row in csv_rows(path, source):
            lines.append(at)
            table.append([number(row[name], f"{path}, line {at}", name) for name in COLUMNS])
            sessions.append(row.get("session id", "").strip())
        begin = min((row[0] for row in table), default=0.0) if sort else (table[0][0] if table else 0.0)
        return RequestTable.of(
            [row[0] - begin for row in table], [row[1] for row in table], [row[2] for row in table],
            session=session_numbers(sessions), place=lambda row: f"{path}, line {lines[row]}", sort=sort,
        )  # fmt: skip
