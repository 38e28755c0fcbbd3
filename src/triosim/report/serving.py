"""What a fleet did under traffic, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from triosim.core.units import format_time
from triosim.report.table import Column, TextTable, paragraph
from triosim.serving.deployment import ServingResult
from triosim.serving.metrics import QUANTILES
from triosim.serving.words import TITLES, figures_in_words, headings, served_in_words, titles

if TYPE_CHECKING:
    from triosim.serving.fleet_search import FoundClock

_INDENT = 16


def summary(result: ServingResult, console: Console) -> None:
    """Print it: latencies, rates, what was reached of the goals, and what was used."""
    found = result.metrics
    for line in headings(result):
        paragraph(console, line, "bold")
    paragraph(console, served_in_words(result))
    console.print()
    console.print(_latencies(result))
    sketched = [titles(result)[name] for name, one in found.distributions.items() if not one.exact]
    if sketched:
        paragraph(console, f"quantiles of {', '.join(sketched)} are sketched, to 0.1 %", "dim")
    console.print()
    for name, text in figures_in_words(result):
        paragraph(console, f"{name:{_INDENT}}{text}", indent=_INDENT)


def clocks(found: FoundClock, console: Console) -> None:
    """Print the clocks that were looked at, and which of those that keep the goals takes least energy."""
    from triosim.report.terminal import clock_table

    if not found.kept:
        console.print()
        paragraph(console, "no clock keeps the goals", "bold")
        return
    goal = found.result.metrics.goals[0][0]
    rows = [
        (clock / 1e6, format_time(one.metrics.goals[0][1]), one.energy.node_j if one.energy else 0.0,
         all(met for _, _, met in one.metrics.goals)) for clock, one in found.tried.items()
    ]  # fmt: skip
    which = "mean" if goal.quantile is None else f"p{goal.quantile * 100:g}"
    words = (f"{TITLES[goal.metric]} {which}", "missed")
    clock_table(rows, found.clock_hz / 1e6, words, "", console, found.boost_hz)


def _latencies(result: ServingResult) -> TextTable:
    """Distributions, a line each; narrow terminals go without the quantiles between."""
    heads = [Column(f"p{100 * q:g}", right=True, optional=3 if q not in (0.5, 0.99) else 0) for q in QUANTILES]
    interval = [Column("90 % of the mean", right=True, optional=2)] if result.intervals else []
    table = TextTable((Column(), Column("mean", right=True), *interval, *heads, Column("max", right=True, optional=1)))
    for name, one in result.metrics.distributions.items():
        title = titles(result)[name]
        ends = result.intervals.get(f"{name}.mean")
        between = [f"{format_time(ends[0])} to {format_time(ends[1])}" if ends else ""] if interval else []
        table.add_row(title, format_time(one.mean), *between, *map(format_time, (*one.quantiles, one.most)))
    return table
