"""Tile graphs that were played, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from triosim.core.units import format_bytes, format_time
from triosim.prediction.result.words import share
from triosim.report.table import Column, TextTable, paragraph
from triosim.tiles.play import TileRun, TileSpan

_WIDTH = 32
"""Characters of the picture."""


def _cycles(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def tile_run(run: TileRun, console: Console) -> None:
    """One run: how long, what bounds it, cores with a picture of their work, and links."""
    least, says = run.least
    seconds = f" ({format_time(run.seconds)})" if run.seconds is not None else ""
    paragraph(console, f"{run.graph.name}: {len(run.spans):,} tiles on {len(run.cores)} cores", "bold")
    for line in (
        f"cycles       {_cycles(run.cycles)}{seconds}",
        f"at least     {_cycles(least)}, {says}",
        f"memory       {format_bytes(run.memory_bytes)} read and written",
    ):
        paragraph(console, line, indent=13)
    console.print()
    table = TextTable((
        Column("core"), Column("tiles", right=True), Column("busy", right=True), Column("used", right=True),
        Column("received", right=True, optional=2), Column("most held", right=True, optional=1), Column(""),
    ))  # fmt: skip
    whole = run.cycles or 1.0
    for core, one in enumerate(run.cores):
        table.add_row(
            one.name, f"{one.tiles:,}", _cycles(one.busy), share(one.busy / whole), format_bytes(one.received),
            format_bytes(one.most_held), _picture([span for span in run.spans if span.core == core], whole),
        )  # fmt: skip
    console.print(table)
    console.print()
    table = TextTable((
        Column("link"), Column("bytes", right=True), Column("busy", right=True), Column("used", right=True),
    ))  # fmt: skip
    for name, size, busy in zip(run.link_names, run.link_bytes, run.link_busy, strict=True):
        if size:
            table.add_row(name, format_bytes(size), _cycles(busy) if busy else "-", share(busy / whole))
    console.print(table)


def _picture(spans: list[TileSpan], whole: float) -> str:
    """How much of each stretch of time a core works."""
    step = whole / _WIDTH
    done = [0.0] * _WIDTH
    for span in spans:
        for at in range(int(span.start / step), min(int(span.end / step) + 1, _WIDTH)):
            done[at] += max(0.0, min(span.end, (at + 1) * step) - max(span.start, at * step))
    return "".join(" ░▒▓█"[min(4, round(4 * part / step))] for part in done).rstrip()


def fusions(runs: Mapping[str, TileRun], console: Console) -> None:
    """Schedules of the same layers side by side."""
    table = TextTable((
        Column("schedule"), Column("tiles", right=True), Column("cycles", right=True), Column("at least", right=True),
        Column("memory", right=True), Column("most held in a core", right=True), Column("cores used", right=True),
    ))  # fmt: skip
    for name, run in runs.items():
        busy = sum(core.busy for core in run.cores)
        table.add_row(
            name, f"{len(run.spans):,}", _cycles(run.cycles), _cycles(run.least[0]), format_bytes(run.memory_bytes),
            format_bytes(max(core.most_held for core in run.cores)), share(busy / (run.cycles or 1.0) / len(run.cores)),
        )  # fmt: skip
    console.print(table)
