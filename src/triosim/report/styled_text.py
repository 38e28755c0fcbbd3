"""Text of which parts have styles, how many cells of a terminal it fills, and lines that it is broken into.

A style is words as ``"bold red"`` or ``"not bold"``: attributes, a colour.  Of several that hold for the same letters
the last counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

_ATTRIBUTES = {"bold": "1", "dim": "2"}
_COLOURS = {
    "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "bright_black": "90",
    "dark_orange": "38;5;208", "default": "39",
}  # fmt: skip
"""Codes of ECMA-48's SELECT GRAPHIC RENDITION, and of the 256 colours that terminals number as xterm does."""
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTP]?(?:B|FLOP|b)(?:/s)?|[KMGTP]iB|s|ms|us|ns|ps|%)(?:[^\w/]|$))")
"""The blank between a number and its unit."""
_PIECES = re.compile(r"\S+ *|^ +")
_INSIDE = "/._-,:=(+"
"""Within a word too long for its line it is broken after one of these, if there is one."""


class StyledText:
    """A text with a style, and with styles of parts of it.

    Attributes:
        plain: the letters.
        style: of all of them, ``""`` for none.
        spans: first letter, the one after the last, and style of each part; ascending or not, the later hold first.
    """

    __slots__ = ("plain", "spans", "style")

    def __init__(self, plain: str = "", style: str = "") -> None:
        self.plain = plain
        self.style = style
        self.spans: list[tuple[int, int, str]] = []

    @classmethod
    def joined(cls, parts: Iterable[str | StyledText], between: str = "") -> StyledText:
        """Parts one after the other, each in its style."""
        made = cls()
        for number, part in enumerate(parts):
            made.append(between if number else "")
            made.append(part)
        return made

    def append(self, part: str | StyledText, style: str = "") -> None:
        """Add a part at the end; of a styled one with its own styles."""
        at = len(self.plain)
        plain, style = (part, style) if isinstance(part, str) else (part.plain, part.style)
        self.plain += plain
        if style and plain:
            self.spans.append((at, len(self.plain), style))
        if not isinstance(part, str):
            self.spans += [(at + begin, at + end, own) for begin, end, own in part.spans]

    def below(self, style: str) -> StyledText:
        """The same with a style for all of it that goes before its own, not before those of its parts."""
        made = StyledText(self.plain, self.style)
        made.spans = [(0, len(self.plain), style), *self.spans]
        return made

    def divided(self, breaks: Iterable[int]) -> list[StyledText]:
        """The parts between these letters, ascending, without blanks at their ends."""
        ends = [0, *breaks, len(self.plain)]
        return [self._part(begin, end) for begin, end in pairwise(ends)]

    def stripped(self) -> StyledText:
        """The same without blanks at its end."""
        return self._part(0, len(self.plain))

    def _part(self, begin: int, end: int) -> StyledText:
        made = StyledText(self.plain[begin:end].rstrip(), self.style)
        most = len(made.plain)
        for first, last, style in self.spans:
            within = max(first - begin, 0), min(last - begin, most)
            if within[0] < within[1]:
                made.spans.append((*within, style))
        return made

    def escaped(self, coloured: bool) -> str:
        """The letters with what a terminal is told of their styles.

        Args:
            coloured: whether it is told of colours too, or of attributes alone.

        Raises:
            KeyError: a style has a word that none has.
        """
        ends = sorted({0, len(self.plain), *(end for span in self.spans for end in span[:2])})
        out, last, open_ = [], "", ""
        for begin, end in pairwise(ends):
            code = _code((self.style, *(style for a, b, style in self.spans if a <= begin < b)), coloured)
            if code != last:
                out.append(open_ + (f"\x1b[{code}m" if code else ""))
                last, open_ = code, "\x1b[0m" if code else ""
            out.append(self.plain[begin:end])
        return "".join(out) + open_


def _code(styles: Iterable[str], coloured: bool) -> str:
    """What a terminal is told where these styles hold, the last first."""
    found: dict[str, str] = {}
    for style in styles:
        words = style.split()
        for at, word in enumerate(words):
            if word in _ATTRIBUTES:
                found[word] = "" if words[at - 1 : at] == ["not"] else _ATTRIBUTES[word]
            elif word != "not":
                found["colour"] = _COLOURS[word] if coloured else ""
    return ";".join(code for name in (*_ATTRIBUTES, "colour") if (code := found.get(name)))


def cell_len(text: str) -> int:
    """Cells of a terminal that a text fills: two of a wide letter, none of one that is put onto another."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(letter) in ("Mn", "Me", "Cf") else 2 if east_asian_width(letter) in "WF" else 1
        for letter in text
    )  # fmt: skip


def pieces(text: str) -> list[str]:
    """Words with the blanks behind them; a number and its unit are one."""
    return [piece.replace("\0", " ") for piece in _PIECES.findall(_UNIT.sub("\0", text))]


def wrapped(text: StyledText, width: int) -> list[StyledText]:
    """A text in lines of at most ``width`` cells, without blanks at their ends."""
    if cell_len(text.plain) <= width:
        return [text]
    breaks, at, used = list[int](), 0, 0
    for piece in pieces(text.plain):
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
    return text.divided(breaks)


def _cut(word: str, width: int) -> int:
    """How many characters of a word that is longer than its line stay on it."""
    cut = 1
    while cut < len(word) and cell_len(word[: cut + 1]) <= width:
        cut += 1
    inside = max(word.rfind(mark, 0, cut) for mark in _INSIDE) + 1
    return inside if inside > cut // 2 else cut


def lines_of(text: StyledText) -> Iterator[StyledText]:
    """The lines that a text has by itself, as they are."""
    begin = 0
    for line in text.plain.split("\n"):
        end = begin + len(line)
        part = StyledText(line, text.style)
        part.spans = [
            (max(a, begin) - begin, min(b, end) - begin, style) for a, b, style in text.spans if a < end and b > begin
        ]
        yield part
        begin = end + 1
