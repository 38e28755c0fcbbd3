"""Parts of HTML pages that open offline and need no script: sections, tables, cards, keys of colours.

All look as the page of a prediction (``page.css``).  Words are escaped here; what is called ``html`` is passed on.
"""

from __future__ import annotations

import html as markup
import math
from collections.abc import Iterable, Sequence
from importlib import resources

from triosim.core.errors import printable


def document(brand: str, title: str, subtitle: str, sections: Iterable[str], style: str) -> str:
    """A whole page.

    Args:
        brand, title, subtitle: of its head.
        sections: html, one after another.
        style: name of a style sheet beside ``page.css``.
    """
    folder = resources.files("triosim.report")
    styles = (folder / "page.css").read_text("utf-8") + (folder / style).read_text("utf-8")
    head = f'<p class="brand">{escaped(brand)}</p><h1>{escaped(title)}</h1><p class="subtitle">{escaped(subtitle)}</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="color-scheme" content="light dark"><title>{escaped(title)} - {escaped(brand)}</title>'
        f"<style>{styles}</style></head><body><header>{head}</header><main>{''.join(sections)}</main></body></html>\n"
    )


def escaped(words: str) -> str:
    """Words as html holds them."""
    return markup.escape(printable(words))


def section(title: str, lead: str, *html: str) -> str:
    """A part of a page with its heading and a sentence on what it shows."""
    return f'<section><h2>{escaped(title)}</h2><p class="lead">{escaped(lead)}</p>{"".join(html)}</section>'


def legend_of(entries: Iterable[tuple[str, str]]) -> str:
    """What colours mean: names and CSS colours."""
    items = (f'<span><i style="background:{colour}"></i>{escaped(name)}</span>' for name, colour in entries)
    return f'<div class="legend">{"".join(items)}</div>'


def picture_of(title: str, svg: str) -> str:
    """A wide picture, which narrow screens scroll instead of making its words too small to read.

    Args:
        title: what it shows, for those who cannot see it.
        svg: what is drawn, which begins with its ``<svg``.
    """
    named = svg.replace("<svg ", f'<svg class="wide" role="img" aria-label="{escaped(title)}" ', 1)
    return f'<div class="scroll">{named}</div>'


def round_values(low: float, high: float, about: int = 4) -> list[float]:
    """Values between two at equal steps of 1, 2 or 5 times a power of ten: what an axis is labelled with.

    Args:
        low, high: both ends, which are among the values where they are round.
        about: how many, more or less.
    """
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [at * step for at in range(first, last + 1)]


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    top = "".join(f"<th>{escaped(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>'
        f"{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table></div>"
    )


def cards_of(cards: Iterable[tuple[str, str, str, str]]) -> str:
    """Main results side by side: title, html of the figure, its unit, html of what is said of it."""
    made = (
        f'<div class="card"><h2>{title}</h2><div class="big">{big} <small>{unit}</small></div><p>{words}</p></div>'
        for title, big, unit, words in cards
    )
    return f'<section id="cards" aria-label="Main results">{"".join(made)}</section>'
