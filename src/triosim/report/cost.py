"""What a job costs, as a table and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.units import format_count, format_time
from triosim.energy.cost import SECONDS_PER_HOUR, Cost, CostRow
from triosim.report.table import Column, TextTable, paragraph

SCHEMA = "triosim/cost/1"
_MOST = 100


def to_dict(found: Cost) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return {"schema": SCHEMA, **asdict(found)}


def show(found: Cost, console: Console, sources: bool = True) -> None:
    """Print a row for each unit of work, what money goes to, and what it rests on.

    Args:
        found: the cost.
        console: where to.
        sources: whether each constant is named.
    """
    columns = (
        Column("Cost of"), Column("time", right=True), Column("device hours", right=True, optional=3),
        Column("energy", right=True), Column("USD", right=True), Column("CO2e there", right=True),
        Column("as bought", right=True, optional=2), Column("embodied", right=True, optional=1),
        Column("water", right=True, optional=4),
    )  # fmt: skip
    table = TextTable(columns, indent=2, most=_MOST)
    for row in found.rows:
        table.add_row(*_cells(row))
    console.print(table)
    sides = ((words, _sides(found.rows[0], name)) for name, words in _UNSURE if name in found.rows[0].interval)
    unsure = [f"{words} {low:+.0f} to {high:+.0f} %" for words, (low, high) in sides if max(-low, high) >= 0.5]
    if unsure:
        paragraph(console, Text(f"  90 %: {', '.join(unsure)}", style="dim"), indent=2, most=_MOST)
    money = next((row for row in found.rows if row.unit == "job"), found.rows[0])
    if money.usd and len(money.usd_parts) > 1:
        shares = (f"{name} {100 * part / money.usd:.0f} %" for name, part in money.usd_parts.items())
        paragraph(console, Text(f"  Money: {', '.join(shares)}", style="dim"), indent=2, most=_MOST)
    paid = found.mode if found.price_per_hour is None else f"{found.price_per_hour:g} USD/h"
    paragraph(console, Text(f"  {paid}, {found.place}, PUE {found.pue:g}", style="dim"), indent=2, most=_MOST)
    if sources:
        console.print()
        paragraph(console, Text("Rests on", style="bold"), indent=2, most=_MOST)
        rows = TextTable((Column(style="dim"), Column(flow="wrap", style="dim")), indent=2, most=_MOST, gap=1)
        for sentence in found.sources:
            rows.add_row("-", sentence)
        console.print(rows)


_UNSURE = (
    ("facility_kwh", "energy"), ("usd", "USD"), ("location_kg", "CO2e there"), ("embodied_kg", "embodied"),
    ("water_l", "water"),
)  # fmt: skip


def _sides(row: CostRow, name: str) -> tuple[float, float]:
    """How far below and above an interval goes, in per cent."""
    value, (low, high) = getattr(row, name), row.interval[name]
    return 100 * (low / value - 1), 100 * (high / value - 1)


def _cells(row: CostRow) -> tuple[str, ...]:
    usd = "-" if row.usd is None else dollars(row.usd)
    return (
        row.unit, hours(row.hours), device_hours(row.device_hours), amount(row.facility_kwh * 1000, "Wh"), usd,
        grams(row.location_kg), grams(row.market_kg), grams(row.embodied_kg), amount(row.water_l, "L"),
    )  # fmt: skip


def hours(value: float) -> str:
    """A time, in hours from one on."""
    return format_time(value * SECONDS_PER_HOUR) if value < 1 else device_hours(value)


def device_hours(value: float) -> str:
    """Hours with three digits, whole from a hundred on."""
    return f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def dollars(value: float) -> str:
    """Dollars with three digits, whole above a thousand."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def grams(kilograms: float) -> str:
    """A mass in tonnes, kilograms, grams or below."""
    if kilograms >= 1000:
        return f"{format_count(kilograms / 1000)}t"
    return f"{kilograms:.4g} kg" if kilograms >= 1 else amount(kilograms * 1000, "g")


def amount(value: float, unit: str) -> str:
    """A count with its unit, in thousandths and millionths too."""
    for factor, prefix in ((1, ""), (1e3, "m"), (1e6, "u"), (1e9, "n")):
        if value * factor >= 1 or value == 0:
            return f"{format_count(value * factor)}{prefix}{unit}"
    return f"{value:.3g} {unit}"
