"""A validation as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from triosim.report.table import Column, TextTable, paragraph
from triosim.validate.comparison import BUSY, ComparedQuantity, Validation

TITLES = {"cpu_s": "CPU time of a process", "wall_s": "time on the wall"}
SHORT = {"cpu_s": "CPU", "wall_s": "wall"}


def show(found: Validation, console: Console) -> None:
    """Print what was predicted and measured, the medians of each mode, and how busy the machine was."""
    machine = found.machine
    kind = "one thread each" if machine.device == "cpu" else "one GPU each"
    paragraph(console, f"{machine.processes} processes, {kind}, on {machine.name or machine.device}", "bold")
    paragraph(console, _machine(found), "dim")
    console.print()
    order = (machine.judged, next(q for q in TITLES if q != machine.judged))
    console.print(_rows(found, order))
    console.print()
    console.print(_medians(found, order))
    console.print()
    for quantity in order:
        held, rows = found.hits(quantity)
        console.print(f"90 % intervals of {TITLES[quantity]} that held: {held} of {rows}")
    if found.crowded:
        names = ", ".join(f"{name} {found.busy[name]:.1f} x" for name in found.crowded)
        words = (
            f"The machine was busy with other work (a step by itself took more than {BUSY} x its CPU time: {names}): "
            "judge by CPU time; intervals are widened, those of time on the wall by as much."
        )
        paragraph(console, words, "yellow")


def _machine(found: Validation) -> str:
    machine = found.machine
    load = f", load average {machine.load[0]:.1f} before and {machine.load[1]:.1f} after" if machine.load else ""
    return f"{machine.cores} cores{load}, torch {machine.versions['torch']}, {found.spent_s:.0f} s"


def _rows(found: Validation, order: tuple[str, str]) -> TextTable:
    """Milliseconds, which keeps the table within eighty columns."""
    own, other = (f"{SHORT[quantity]} ms" for quantity in order)
    heads = (own, "90 %", "measured", "error", other, "measured", "error")
    columns = (Column("network"), Column("mode"), *(Column(head, right=True) for head in heads))
    table = TextTable(columns, head_style="dim")
    last = ""
    for row in found.rows:
        first, second = (getattr(row, quantity) for quantity in order)
        table.add_row(
            row.network if row.network != last else "",
            row.mode if row.rank is None else f"{row.mode} {row.rank}",
            _ms(first.predicted),
            f"{_ms(first.low)}-{_ms(first.high)}",
            _ms(first.measured),
            _error(first),
            _ms(second.predicted),
            _ms(second.measured),
            _error(second),
        )
        last = row.network
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2}f}"


def _medians(found: Validation, order: tuple[str, str]) -> TextTable:
    columns = (Column("median absolute error"), *(Column(TITLES[quantity], right=True) for quantity in order))
    table = TextTable(columns, head_style="dim")
    for mode in found.modes():
        table.add_row(mode, *(f"{100 * found.median_error(mode, quantity):.1f} %" for quantity in order))
    return table


def _error(compared: ComparedQuantity) -> Text:
    """The error, coloured and marked where the interval did not hold."""
    text = f"{100 * compared.error:+.1f}%"
    return Text(text + " ", "green") if compared.hit else Text(text + "!", "dark_orange")
