"""Standard output and standard error of the command: terminals of few characters or none, full disks, closed pipes."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from triosim.core.outputs import is_standard_output

if TYPE_CHECKING:
    from rich.console import Console

LEAST_COLUMNS = 40
"""Width below which nothing is laid out: a terminal that says less (``COLUMNS=0``) does not know its width."""

_PLAIN = {
    "µ": "u", "μ": "u", "×": "x", "·": ".", "…": ".", "–": "-", "—": "-", "−": "-", "±": "~", "≈": "~", "²": "2",
    "³": "3", "°": "o", "→": ">", "←": "<", "█": "#", "▓": "=", "▒": "-", "░": ".", "─": "-", "━": "-", "│": "|",
    "┃": "|", "‘": "'", "’": "'", "“": '"', "”": '"', "«": '"', "»": '"', "≤": "<", "≥": ">",
}  # fmt: skip
"""Stand-ins for characters that a terminal has not: each a single one, so that tables stay straight."""

_OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)


def rich_console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or standard error."""
    from triosim.report.console import TextConsole

    made = TextConsole(stderr=stderr)
    return made if made.width >= LEAST_COLUMNS else TextConsole(stderr=stderr, width=LEAST_COLUMNS)


def written(what: str, path: str | os.PathLike[str] | None, remark: str = "") -> list[str]:
    """The line that says where an output is; none for what is not asked for, or is seen on standard output."""
    if path is None or is_standard_output(path):
        return []
    return [f"{what:9} {path}{remark}"]


@contextmanager
def standard_output_kept() -> Iterator[None]:
    """Within the block whatever is printed, by other programs too, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def prepare() -> None:
    """Let both streams take any text: what their encoding lacks becomes something like it; a standard error that was
    closed takes it and shows nothing."""
    codecs.register_error("triosim.plain", _plain)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="triosim.plain")


def is_of_a_stream(error: OSError) -> bool:
    """Whether an error says that no more can be written, and names no file."""
    return error.errno in _OUTPUT_FAULTS and error.filename is None


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end
