"""Tables of text as wide as the terminal: columns get what their contents need, and give way in a known order.

Where everything fits, every column is as wide as its widest cell.  Where it does not, in this order:

1. heads of several words break into as many lines, or sentences between words;
2. columns that flow are narrowed, the widest first: sentences break, paths lose their beginning;
3. one blank separates columns;
4. optional columns are left out, which is said below the table;
5. sentences break within words.

A head is never cut and no line ends in blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from triosim.core.dataclass import dataclass
from triosim.core.errors import printable
from triosim.report.text import shorten

_LEAST = 8
"""Narrower no column gets, unless its contents are."""
_PATH = 12
"""A path is cut to no less."""
_WORD = 24
"""Longer words may be broken before anything is left out."""
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTP]?(?:B|FLOP|b)(?:/s)?|[KMGTP]iB|s|ms|us|ns|ps|%)(?:[^\w/]|$))")
"""The blank between a number and its unit."""
_PIECES = re.compile(r"\S+ *|^ +")
_INSIDE = "/._-,:=(+"
"""Within a word too long for its line it is broken after one of these, if there is one."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        head: ``""`` in all columns for a table without heads.
        right: whether cells stand at the right.
        flow: what becomes of a cell too long for the room: it stays ``"whole"``, is ``"wrap"``ped, or is the ``"path"``
            of a module, of which the end tells most.
        optional: columns with the highest number are left out first; 0 for none.
        style: of its cells.
    """

    head: str = ""
    right: bool = False
    flow: Literal["whole", "wrap", "path"] = "whole"
    optional: int = 0
    style: str = ""


@dataclass
class TextTable:
    """Rows of text under heads; printed like any renderable.

    Attributes:
        columns: of the table.
        rows: a text for each column.
        indent: blanks before each line.
        head_style: of the heads.
        most: lines are at most so wide, None for the terminal's width.
        gap: blanks between columns where there is room.
    """

    columns: Sequence[Column]
    rows: list[list[Text]] = field(default_factory=list)
    indent: int = 0
    head_style: str = "bold"
    most: int | None = None
    gap: int = 2

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; what is not shown of names from files becomes visible here, so that widths are right."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells in a table of {len(self.columns)} columns")
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self.rows.append([_visible(text) for text in texts])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        dots = "…" if options.encoding.startswith("utf") else ".."
        yield from self.lines(min(options.max_width, self.most or options.max_width), dots)

    def lines(self, width: int, dots: str = "…") -> Iterator[Text]:
        """The lines of the table.

        Args:
            width: none is longer.
            dots: what stands for the beginning of a path that was cut.
        """
        room = max(width - self.indent, 1)
        shown, widths, gap = self._allocate(room)
        heads = [wrapped(Text(self.columns[i].head, self.head_style), w) for i, w in zip(shown, widths, strict=True)]
        if any(head[0].plain for head in heads):
            tallest = max(map(len, heads))
            lowered = [[Text()] * (tallest - len(head)) + head for head in heads]
            yield from self._assembled(shown, widths, gap, lowered, room)
        for row in self.rows:
            cells = [self._fitted(i, row[i], w, dots) for i, w in zip(shown, widths, strict=True)]
            yield from self._assembled(shown, widths, gap, cells, room)
        left_out = [column.head for i, column in enumerate(self.columns) if i not in shown and column.head]
        if left_out:
            words = Text(f"left out for lack of room: {', '.join(left_out)}", "dim")
            yield from (_indented(line, self.indent) for line in wrapped(words, room))

    def _fitted(self, i: int, cell: Text, width: int, dots: str) -> list[Text]:
        """The lines of a cell."""
        column = self.columns[i]
        if column.flow == "path" and cell_len(cell.plain) > width:
            cell = Text(shorten(cell.plain, width, dots), cell.style)
        if column.style:
            cell = cell.copy()
            cell.stylize_before(column.style)
        return wrapped(cell, width)

    def _assembled(
        self, shown: list[int], widths: list[int], gap: int, cells: list[list[Text]], room: int
    ) -> Iterator[Text]:
        """The lines of a row, from those of its cells."""
        for at in range(max(map(len, cells), default=0)):
            line = Text()
            for i, width, own in zip(shown, widths, cells, strict=True):
                cell = own[at] if at < len(own) else Text()
                blanks = " " * (width - cell_len(cell.plain))
                if i != shown[0]:
                    line.append(" " * gap)
                parts = (blanks, cell) if self.columns[i].right else (cell, blanks)
                for part in parts:
                    line.append_text(Text(part) if isinstance(part, str) else part)
            line.rstrip()
            yield from (_indented(part, self.indent) for part in wrapped(line, room))

    def _allocate(self, room: int) -> tuple[list[int], list[int], int]:
        """Which columns are shown, how wide each of them is, and how many blanks separate them."""
        shown = list(range(len(self.columns)))
        while True:
            natural, uncut, headed, narrow, least = zip(*(self._needs(i) for i in shown), strict=True)
            for gap, widths, lowest in (
                (self.gap, natural, uncut), (self.gap, natural, headed), (self.gap, uncut, narrow), (1, uncut, narrow),
            ):  # fmt: skip
                left = room - gap * (len(shown) - 1)
                if sum(lowest) <= left:
                    return shown, _narrowed(widths, lowest, left), gap
            last = max(shown, key=lambda i: (self.columns[i].optional, i))
            if not self.columns[last].optional:
                return shown, _narrowed(narrow, least, room - (len(shown) - 1)), 1
            shown.remove(last)

    def _needs(self, i: int) -> tuple[int, int, int, int, int]:
        """Widths of a column.

        With all in one line; with its head in several lines; with sentences in several instead; with all in several and
        paths cut; and the least.
        """
        column, cells = self.columns[i], [row[i].plain for row in self.rows]
        widest = max((cell_len(cell) for cell in cells), default=0)
        word = _longest([column.head])
        narrow = {"whole": widest, "wrap": max(min(_longest(cells), _WORD), _LEAST), "path": _PATH}[column.flow]
        narrow = min(widest, narrow)
        least = narrow if column.flow == "whole" else min(narrow, _LEAST)
        head, sentences = cell_len(column.head), narrow if column.flow == "wrap" else widest
        return max(head, widest), max(word, widest), max(head, sentences), max(word, narrow), max(word, least)


def _narrowed(natural: Sequence[int], lowest: Sequence[int], room: int) -> list[int]:
    """Widths that fill the room at most: those above their lowest give way, the widest first."""
    widths = list(natural)
    while sum(widths) > room:
        give = [i for i, width in enumerate(widths) if width > lowest[i]]
        if not give:
            break
        widest = max(widths[i] for i in give)
        top = [i for i in give if widths[i] == widest]
        below = max((widths[i] for i in give if widths[i] < widest), default=0)
        step = max(1, min((sum(widths) - room) // len(top), *(widest - max(below, lowest[i]) for i in top)))
        for i in top:
            if sum(widths) > room:
                widths[i] -= step
    return widths


def _longest(texts: Sequence[str]) -> int:
    """The longest piece that is not broken."""
    return max((cell_len(piece.rstrip()) for text in texts for piece in _pieces(text)), default=0)


def _pieces(text: str) -> list[str]:
    """Words with the blanks behind them; a number and its unit are one."""
    return [piece.replace("\0", " ") for piece in _PIECES.findall(_UNIT.sub("\0", text))]


def paragraph(console: Console, text: str | Text, style: str = "", indent: int = 0, most: int | None = None) -> None:
    """Print a sentence in lines that end without blanks; those after the first are ``indent`` blanks further in."""
    width = min(console.width, most or console.width)
    first, *rest = wrapped(_visible(Text(text, style) if isinstance(text, str) else text), width)
    if rest and indent:
        following = Text(" ").join(rest)
        rest = [_indented(line, indent) for line in wrapped(following, width - indent)]
    console.print(Text("\n").join([first, *rest]))


def wrapped(text: Text, width: int) -> list[Text]:
    """A text in lines of at most ``width`` cells, without blanks at their ends."""
    if cell_len(text.plain) <= width:
        return [text]
    breaks, at, used = [], 0, 0
    for piece in _pieces(text.plain):
        length = cell_len(piece.rstrip())
        if used and used + length > width:
            breaks.append(at)
            used = 0
        start, rest = at, piece
        while cell_len(rest.rstrip()) > width:
            cut = _cut(rest, width)
            start, rest, used = start + cut, rest[cut:], 0
            breaks.append(start)
        at += len(piece)
        used += cell_len(rest)
    lines = list(text.divide(breaks))
    for line in lines:
        line.rstrip()
    return lines


def _cut(word: str, width: int) -> int:
    """How many characters of a word that is longer than its line stay on it."""
    cut = 1
    while cut < len(word) and cell_len(word[: cut + 1]) <= width:
        cut += 1
    inside = max(word.rfind(mark, 0, cut) for mark in _INSIDE) + 1
    return inside if inside > cut // 2 else cut


def _visible(text: Text) -> Text:
    """The same; where it holds what a terminal would obey, that is written out, and styles of parts are lost."""
    plain = printable(text.plain)
    return text if plain == text.plain else Text(plain, text.style)


def _indented(line: Text, indent: int) -> Text:
    return Text.assemble(" " * indent, line) if indent and line.plain else line
