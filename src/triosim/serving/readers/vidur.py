"""CSV as Vidur takes it: ``arrived_at`` (seconds), ``num_prefill_tokens``, ``num_decode_tokens``."""

from __future__ import annotations

from pathlib import Path

from triosim.core.registry import registered
from triosim.serving.request_files import RequestReader, csv_rows, has_columns, number, session_numbers
from triosim.serving.requests import RequestTable

COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


@registered
class VidurCsv(RequestReader):
    """Other columns are passed over; ``session_id``, where there is one, names the conversation."""

    what = f"CSV with {', '.join(COLUMNS)} (Vidur)"

    def recognises(self, head: str) -> bool:
        """By the header."""
        return has_columns(head, COLUMNS)

    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """See the module's docstring."""
        lines, table, sessions = [], [], []
        for at, row in csv_rows(path, source):
            lines.append(at)
            table.append([number(row[name], f"{path}, line {at}", name) for name in COLUMNS])
            sessions.append(row.get("session_id", ""))
        return RequestTable.of(
            [row[0] for row in table], [row[1] for row in table], [row[2] for row in table],
            session=session_numbers(sessions), place=lambda row: f"{path}, line {lines[row]}", sort=sort,
        )  # fmt: skip
