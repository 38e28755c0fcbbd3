"""Predictions beside each other: what was asked, a waterfall from one time to the other, and what else changed."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.errors import printable
from triosim.core.units import format_bytes, format_count, format_time
from triosim.prediction.comparison import Comparison
from triosim.report.table import Column, TextTable

SCHEMA = "triosim/comparison/1"
_MOST, _BAR = 100, 30
_LISTED = 4
"""Of a longer list, as of where forty chunks begin, so many are said."""
_NOTHING = 1e-4
"""A part that changes by less of the iteration is left out."""
_WORDS = {"tokens/s": "", "samples/s": "", "prompts/s": "", "MFU": "%", "memory": "B", "energy": "J", "dollars": "USD"}


def to_dict(found: Comparison) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    others = range(1, len(found.results))
    return {
        "schema": SCHEMA,
        "per": "sample" if found.per_sample else "iteration",
        "results": [asdict(one) for one in found.results],
        "asked": {name: list(values) for name, values in found.asked.items()},
        "changes_s": [found.changes(other) for other in others],
    }


def show(found: Comparison, console: Console) -> None:
    """Print the comparison of all results with the first."""
    plain = not (console.encoding or "").lower().startswith("utf")
    letters = [chr(ord("A") + at) for at in range(len(found.results))]
    rows = TextTable(
        (Column(), Column(flow="path"), Column(flow="wrap"), Column(right=True), Column(right=True)), most=_MOST
    )
    first = found.results[0]
    for letter, one in zip(letters, found.results, strict=True):
        change = "" if one is first else _relative(one.seconds, first.seconds)
        rows.add_row(Text(letter, "bold"), one.label, Text(one.name, "dim"), format_time(one.seconds), change)
    console.print(rows)
    if found.per_sample:
        console.print(Text("Times are those of a sample."))
    console.print()
    console.print(_asked(found, letters) if found.asked else Text(_alike(found)))
    for other in range(1, len(found.results)):
        console.print()
        console.print(_waterfall(found, other, letters, plain))
        for title, rows_of in (
            (first.detail, found.modules(other)), ("Communication", found.communication(other)),
        ):  # fmt: skip
            if rows_of:
                console.print()
                console.print(_rows(title, rows_of, letters, other))
    console.print()
    console.print(_figures(found, letters))


def _relative(value: float, first: float) -> str:
    change = 100 * (value / first - 1) if first else 0.0
    return f"{change:+.1f} %"


def _alike(found: Comparison) -> str:
    if found.same:
        return "The same was asked of all."
    return "Nothing that the files tell was asked differently."


def _said(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "-"}[value]
    if isinstance(value, (list, tuple)):
        words = [*map(str, value)]
        if len(words) > _LISTED:  # where each of many stages begins
            words[_LISTED - 1 : -1] = ["..."]
            return f"{', '.join(words)} ({len(value)})"
        return ", ".join(words) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _asked(found: Comparison, letters: Sequence[str]) -> TextTable:
    table = TextTable((Column("What was asked"), *(Column(letter, flow="wrap") for letter in letters)), most=_MOST)
    for name, values in found.asked.items():
        table.add_row(name.replace("_", " "), *(printable(_said(value)) for value in values))
    return table


def bars(found: Comparison, other: int) -> list[tuple[str, float, float, float]]:
    """The waterfall: name, change in seconds, and where its bar begins and ends, as parts of the longer time.

    The first and the last row are the two iterations, whose "change" is their time.
    """
    first, then = found.results[0].seconds, found.results[other].seconds
    longest, at = max(first, then), first
    steps = [("A", first, 0.0, first)]
    for part, change in found.changes(other).items():
        if abs(change) > _NOTHING * first:
            steps.append((part, change, min(at, at + change), max(at, at + change)))
            at += change
    rest = then - at
    if abs(rest) > _NOTHING * first:
        steps.append(("other parts", rest, min(at, then), max(at, then)))
    steps.append((chr(ord("A") + other), then, 0.0, then))
    longest = max(longest, *(end for *_, end in steps))
    return [(name, change, begin / longest, end / longest) for name, change, begin, end in steps]


def _waterfall(found: Comparison, other: int, letters: Sequence[str], plain: bool) -> TextTable:
    head = f"From {letters[0]} to {letters[other]}"
    table = TextTable((Column(head), Column("time", right=True), Column("")), most=_MOST)
    full, less, more = ("#", "-", "+") if plain else ("█", "░", "▓")
    steps = bars(found, other)
    for at, (name, change, begin, end) in enumerate(steps):
        whole = at in (0, len(steps) - 1)
        left, right = round(begin * _BAR), max(round(end * _BAR), round(begin * _BAR) + 1)
        glyph = full if whole else less if change < 0 else more
        colour = "" if whole else "green" if change < 0 else "red"
        bar = Text(" " * left + glyph * (right - left), colour)
        table.add_row(name, format_time(change) if whole else _signed(change), bar)
    return table


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_time(abs(seconds))}"


def _rows(title: str, rows: Sequence[tuple[str, float, float]], letters: Sequence[str], other: int) -> TextTable:
    table = TextTable(
        (Column(title, flow="path"), Column(letters[0], right=True), Column(letters[other], right=True),
         Column("change", right=True)), most=_MOST,
    )  # fmt: skip
    for name, before, after in rows:
        table.add_row(printable(name), format_time(before), format_time(after), _signed(after - before))
    return table


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "MFU":
        return f"{100 * value:.1f} %"
    if name == "memory":
        return format_bytes(value)
    return f"{value:.3g}" if name == "dollars" else f"{format_count(value)}{_WORDS[name]}".strip()


def _head(found: Comparison) -> str:
    return "Of a sample" if found.per_sample else "Of an iteration"


def _figures(found: Comparison, letters: Sequence[str]) -> TextTable:
    results = found.results
    table = TextTable((Column(_head(found)), *(Column(letter, right=True) for letter in letters)), most=_MOST)
    for name in results[0].figures:
        values = [one.figures[name] for one in results]
        if any(value is not None for value in values):
            table.add_row(name, *(_figure(name, value) for value in values))
    low = [f"{format_time(one.low)} to {format_time(one.high)}" for one in results]
    table.add_row("90 % between", *low)
    return table


# --- the page ---------------------------------------------------------------------------------------------------------

_ROW, _LEFT, _WIDTH = 26, 190, 620


def page(found: Comparison) -> str:
    """One HTML page that opens offline: the same, with the waterfalls drawn."""
    letters = [chr(ord("A") + at) for at in range(len(found.results))]
    first = found.results[0]
    body = ["<main><h1>Predictions compared</h1>"]
    body.append(_table(
        ("", "result", "of", "sample" if found.per_sample else "iteration", "change"),
        [(letter, one.label, one.name, format_time(one.seconds),
          "" if one is first else _relative(one.seconds, first.seconds))
         for letter, one in zip(letters, found.results, strict=True)],
    ))  # fmt: skip
    if found.asked:
        asked = [(name.replace("_", " "), *map(_said, values)) for name, values in found.asked.items()]
        body += ["<h2>What was asked</h2>", _table(("", *letters), asked)]
    for other in range(1, len(found.results)):
        body += [f"<h2>From A to {letters[other]}</h2>", _drawn(bars(found, other))]
        for title, rows in (
            (first.detail, found.modules(other, 12)),
            ("Communication", found.communication(other, 12)),
        ):
            if rows:
                cells = [(n, format_time(a), format_time(b), _signed(b - a)) for n, a, b in rows]
                body.append(_table((title, "A", letters[other], "change"), cells))
    figures = [
        (name, *(_figure(name, one.figures[name]) for one in found.results))
        for name in first.figures if any(one.figures[name] is not None for one in found.results)
    ]  # fmt: skip
    body += [f"<h2>{_head(found)}</h2>", _table(("", *letters), figures), "</main>"]
    style = (resources.files("triosim.report") / "comparison.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Predictions compared - TrioSim</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{html.escape(printable(cell))}</td>" for cell in row) for row in rows)
    return f"<div><table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"


def _drawn(steps: Sequence[tuple[str, float, float, float]]) -> str:
    """A waterfall as SVG."""
    height = _ROW * len(steps) + 8
    found = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 110} {height}" role="img" aria-label="waterfall">']
    for at, (name, change, begin, end) in enumerate(steps):
        whole, y = at in (0, len(steps) - 1), at * _ROW + 4
        kind = "whole" if whole else "less" if change < 0 else "more"
        left, width = _LEFT + begin * _WIDTH, max((end - begin) * _WIDTH, 1.0)
        said = format_time(change) if whole else _signed(change)
        if at + 1 < len(steps):
            edge = _LEFT + (end if whole or change > 0 else begin) * _WIDTH
            found.append(f'<line x1="{edge:.1f}" y1="{y + 18}" x2="{edge:.1f}" y2="{y + _ROW + 2}"/>')
        found.append(f'<text class="name" x="{_LEFT - 10}" y="{y + 14}">{html.escape(name)}</text>')
        found.append(f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="18" rx="2"/>')
        found.append(f'<text x="{left + width + 6:.1f}" y="{y + 14}">{html.escape(said)}</text>')
    return "".join(found) + "</svg>"
