"""The terminal: text in its width and, where it can show them, its styles.

Names from files are text there, whatever they contain: an escape sequence is seen, not obeyed.  Starting a library for
this took a twentieth of a short command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from io import StringIO
from typing import Protocol, TextIO

from triosim.core.errors import printable
from triosim.report.styled_text import StyledText, lines_of, wrapped

_COLUMNS = 80
"""Of what does not say how wide it is."""


class Renderable(Protocol):
    """What lays itself out."""

    def lines(self, width: int, dots: str = "…") -> Iterator[StyledText]:
        """Its lines, of at most ``width`` cells; ``dots`` stand for what was cut."""


class TextConsole:
    """Standard output, or a file in its place.

    Heeds ``COLUMNS``, ``TERM``, ``NO_COLOR`` (https://no-color.org) and ``FORCE_COLOR`` (https://force-color.org).

    Args:
        file: what it writes to; None for standard output, whatever that is by then.
        width: cells of a line; None for as many as the terminal has.
        styled: whether styles are shown; None where a terminal shows them.
    """

    def __init__(self, *, file: TextIO | None = None, width: int | None = None, styled: bool | None = None) -> None:
        self._file = file
        self._width = width
        self._styled = _shows_styles(self.file) if styled is None else styled

    @property
    def file(self) -> TextIO:
        """Where it writes; nowhere if standard output was closed before the process began."""
        return self._file or sys.stdout or StringIO()

    @property
    def encoding(self) -> str:
        """Of what it writes to."""
        return (getattr(self.file, "encoding", None) or "utf-8").lower()

    @property
    def width(self) -> int:
        """Cells of a line."""
        if self._width is not None:
            return self._width
        said = os.environ.get("COLUMNS", "")
        if said.isdecimal():
            return int(said)
        if _is_dumb() and self.file.isatty():
            return _COLUMNS
        for number in (0, 1, 2):
            try:
                return os.get_terminal_size(number).columns or _COLUMNS
            except (OSError, ValueError):
                continue
        return _COLUMNS

    def print(
        self, what: str | StyledText | Renderable = "", style: str = "", soft_wrap: bool = False, end: str = "\n"
    ) -> None:
        """Print a text, or what lays itself out.

        Args:
            what: to print; its lines are broken at the width.
            style: of a string.
            soft_wrap: leave long lines to the terminal.
            end: what follows the last line.
        """
        if isinstance(what, str):
            what = StyledText(printable(what, keep="\n\t").expandtabs(), style)
        if isinstance(what, StyledText):
            width = self.width
            lines = [line for own in lines_of(what) for line in ([own] if soft_wrap else wrapped(own, width))]
        else:
            lines = list(what.lines(self.width, "…" if self.encoding.startswith("utf") else ".."))
            if not lines:
                return
        self.file.write("\n".join(map(self._shown, lines)) + end)
        self.file.flush()

    def _shown(self, line: StyledText) -> str:
        """A line as it is written: only styles control the terminal."""
        if printable(line.plain) != line.plain:
            line = StyledText(printable(line.plain), line.style)
        return line.escaped("NO_COLOR" not in os.environ) if self._styled else line.plain


def _is_dumb() -> bool:
    """Whether the terminal obeys nothing."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def _shows_styles(file: TextIO) -> bool:
    """Whether what stands behind a file shows styles."""
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        watched = file.isatty()
    except ValueError:  # closed
        return False
    old = sys.platform == "win32" and not {"WT_SESSION", "TERM", "ANSICON"} & set(os.environ)
    return watched and not _is_dumb() and not old
