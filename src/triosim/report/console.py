"""The terminal: names from files are text there, whatever they contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from triosim.core.errors import printable


class TextConsole(Console):
    """A console on which ``[bold]`` in a name is four letters in brackets, and an escape sequence is seen, not obeyed.

    Names of operators, modules, systems and the like come from files that others wrote.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Text of a string, as wide as it will be seen."""
        return super().render_str(printable(text, keep="\n\t"), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, in pieces: only rich's own pieces control the terminal."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=printable(piece.text, keep="\n"))
