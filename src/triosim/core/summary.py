"""What ``print`` and notebooks show of a result: its title, and a line for each thing that is said of it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from triosim.core.errors import printable

Rows = Sequence[tuple[str, str]]
"""Names, and what is said of them."""


def text(heads: Sequence[str], rows: Rows) -> str:
    """Lines of text, the names of the rows in a column of their own."""
    width = max((len(name) for name, _ in rows), default=0) + 1
    return "\n".join(printable(line) for line in (*heads, *(f"{name:<{width}} {words}" for name, words in rows)))


def table(title: str, subtitle: str, rows: Rows, warnings: Sequence[str] = ()) -> str:
    """The same as a small table of HTML; what files name is text there."""

    def escaped(words: str) -> str:
        return html.escape(printable(words))

    left = ' style="text-align: left; vertical-align: top"'
    body = "".join(f"<tr><th{left}>{escaped(a)}</th><td{left}>{escaped(b)}</td></tr>" for a, b in rows)
    warned = "".join(f"<li>{escaped(sentence)}</li>" for sentence in warnings)
    return (
        f"<div><strong>{escaped(title)}</strong><br>{escaped(subtitle)}"
        f"<table>{body}</table>" + (f"<ul>{warned}</ul>" if warned else "") + "</div>"
    )
