"""A validation as a picture: predicted over measured, one point for each job."""

from __future__ import annotations

import math
import os
from html import escape
from pathlib import Path

from triosim.core.errors import InputError
from triosim.core.outputs import is_standard_output, text_output
from triosim.core.units import format_time
from triosim.validate.comparison import ComparedQuantity, ComparisonRow, Validation
from triosim.validate.terminal import TITLES

SIDE, MARGIN, LEGEND = 420, 80, 100
COLOURS = {"ddp": "#4269d0", "fsdp2": "#ff725c", "tp": "#3ca951", "gpipe": "#a463f2", "1f1b": "#c98500"}
WITHIN = 0.1
"""Half-width of the band about the diagonal: a tenth more, and as far below."""


def write(found: Validation, path: str | os.PathLike[str]) -> None:
    """Write the picture as ``.svg`` (so also to standard output), or as a page of its own as ``.html``.

    Raises:
        InputError: another ending, or the file cannot be written there.
    """
    ending = ".svg" if is_standard_output(path) else Path(path).suffix.lower()
    if ending not in (".svg", ".html"):
        raise InputError(f"{path}: the picture is written as .svg or .html; give a name that ends so")
    picture = svg(found)
    if ending == ".html":
        picture = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>triosim validate</title>\n{picture}'
    with text_output(path) as file:
        file.write(picture)


def svg(found: Validation) -> str:
    """Both quantities side by side, logarithmic; each point with its interval, and its numbers as a tooltip."""
    order = (found.machine.judged, next(q for q in TITLES if q != found.machine.judged))
    width, height = 2 * (SIDE + MARGIN) + LEGEND, SIDE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, quantity in enumerate(order):
        parts.append(f'<g transform="translate({MARGIN + number * (SIDE + MARGIN)}, {MARGIN})">')
        parts += _panel(found, quantity)
        parts.append("</g>")
    for number, mode in enumerate(found.modes()):
        x, y = 2 * (SIDE + MARGIN) + 24, MARGIN + 20 * number + 10
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{COLOURS[mode]}"/>')
        parts.append(f'<text x="{x + 12}" y="{y}">{escape(mode)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(found: Validation, quantity: str) -> list[str]:
    pairs = [(row, getattr(row, quantity)) for row in found.rows]
    ends = [x for _, one in pairs for x in (one.predicted, one.measured)]
    low, high = math.log10(min(ends) / 1.3), math.log10(max(ends) * 1.3)

    def at(seconds: float) -> float:
        return round((math.log10(max(seconds, 1e-12)) - low) / (high - low) * SIDE, 1)

    parts = [
        f'<clipPath id="{quantity}"><rect width="{SIDE}" height="{SIDE}"/></clipPath>',
        f'<rect width="{SIDE}" height="{SIDE}" fill="#f7f7f7" stroke="#cccccc"/>',
        f'<text x="{SIDE / 2}" y="-12" text-anchor="middle" font-weight="600">{escape(TITLES[quantity])}</text>',
        f'<text x="{SIDE / 2}" y="{SIDE + 44}" text-anchor="middle">measured</text>',
        f'<text transform="translate(-62, {SIDE / 2}) rotate(-90)" text-anchor="middle">predicted</text>',
    ]
    for seconds in _ticks(10**low, 10**high):
        x, y, label = at(seconds), SIDE - at(seconds), format_time(seconds)
        parts.append(f'<line x1="{x}" y1="{SIDE}" x2="{x}" y2="{SIDE + 5}" stroke="#666666"/>')
        parts.append(f'<text x="{x}" y="{SIDE + 20}" text-anchor="middle" fill="#555555">{label}</text>')
        parts.append(f'<line x1="-5" y1="{y}" x2="0" y2="{y}" stroke="#666666"/>')
        parts.append(f'<text x="-8" y="{y + 4}" text-anchor="end" fill="#555555">{label}</text>')
    parts.append(f'<g clip-path="url(#{quantity})">')
    offset = round(math.log10(1 + WITHIN) / (high - low) * SIDE, 1)
    corners = f"0,{SIDE - offset} {SIDE},{-offset} {SIDE},{offset} 0,{SIDE + offset}"
    parts.append(f'<polygon points="{corners}" fill="#4269d0" opacity="0.10"/>')
    parts.append(f'<line x1="0" y1="{SIDE}" x2="{SIDE}" y2="0" stroke="#888888" stroke-dasharray="4 3"/>')
    for row, one in pairs:
        x, colour = at(one.measured), COLOURS[row.mode]
        parts.append(
            f"<g><title>{escape(_words(row, one))}</title>"
            f'<line x1="{x}" y1="{SIDE - at(one.low)}" x2="{x}" y2="{SIDE - at(one.high)}" stroke="{colour}" '
            f'stroke-width="1.5" opacity="0.6"/>'
            f'<circle cx="{x}" cy="{SIDE - at(one.predicted)}" r="4.5" fill="{colour}"/></g>'
        )
    return [*parts, "</g>"]


def _ticks(low: float, high: float) -> list[float]:
    """One, two and five times powers of ten between two times."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [t for p in powers for m in (1, 2, 5) if low <= (t := m * 10.0**p) <= high]


def _words(row: ComparisonRow, one: ComparedQuantity) -> str:
    rank = "" if row.rank is None else f", stage {row.rank}"
    return (
        f"{row.network}, {row.mode}{rank}: predicted {format_time(one.predicted)} ({format_time(one.low)} to "
        f"{format_time(one.high)}), measured {format_time(one.measured)}, {100 * one.error:+.1f} %"
    )
