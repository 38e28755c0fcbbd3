"""Opening foreign files: gzip or not, JSON that real tools write, and one sentence about what a file looks like."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.core.guarded import contains as contains

HEAD_BYTES = 1 << 16
"""How much of a file is looked at before anything is decided."""

_GZIP = b"\x1f\x8b"


def head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first ``size`` bytes, decompressed; empty where nothing can be read.  Never raises."""
    return guarded.head(path, size)


def content(path: Path) -> bytes:
    """All of a file, decompressed.

    Raises:
        InputError: unreadable, empty, too large, or a truncated or damaged gzip file.
    """
    raw = guarded.content(path)
    if not raw.strip():
        raise InputError(f"{path} is empty; record it again")
    return raw


def parse_json(path: Path, parse_float: Callable[[str], Any] | None = None) -> Any:
    """The JSON in a file as profilers write it: NaN, invalid UTF-8, raw control characters and lone backslashes pass.

    Raises:
        InputError: not JSON, with the line and column where it stops being so.
    """
    source = guarded.text(content(path), str(path), errors="replace")
    return guarded.parse_json(source, str(path), parse_float=parse_float, lenient=True)


def files(folder: Path, limit: int = 200) -> list[Path]:
    """The plain files of a folder by name, hidden ones left out, at most ``limit``; empty when it is no folder."""
    try:
        return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))[:limit]
    except OSError:
        return []


_MAGIC = (
    (b"SQLite format 3", "is an SQLite database (an Nsight Systems export?)"),
    (b"\x89HDF", "is an HDF5 file"),
    (b"PAR1", "is a Parquet table"),
    (b"\x80\x02", "is a Python pickle (never read, since it could run code)"),
    (b"\x80\x04", "is a Python pickle (never read, since it could run code)"),
    (b"NVDA", "is an Nsight file"),
    (b"\x7fELF", "is a program"),
)


def describe(path: Path) -> str:
    """What a file looks like, as the middle of a sentence: ``"is empty"``."""
    if path.is_dir():
        names = [p.name for p in files(path)]
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        return f"is a folder with {shown}" if names else "is an empty folder"
    try:
        if not path.is_file():
            return "is not a plain file"
        if path.stat().st_size == 0:
            return "is empty"
        with path.open("rb") as file:
            raw = file.read(len(_GZIP))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    start = head(path)
    if not start:
        return "is a damaged gzip file" if raw == _GZIP else "cannot be read"
    if start.startswith(b"PK"):
        return "is a zip archive without a trace (a model checkpoint?)"
    for magic, text in _MAGIC:
        if start.startswith(magic):
            return text
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if text.startswith("{"):
        keys = re.findall(r'"([^"\\]{1,40})"\s*:', text[:2000])
        if '"triosim/result/' in text[:2000]:
            return "is a result that TrioSim wrote, not a trace"
        return f"is JSON with the keys {', '.join(dict.fromkeys(keys[:6]))}" if keys else "is JSON without keys"
    if text.startswith("["):
        return "is a JSON list"
    line = text.splitlines()[0] if text else ""
    if "\ufffd" in text[:200] or "\0" in text[:200]:
        return "is a binary file"
    return f"is text that starts with {quoted(line[:60])}"
