"""The fleets of a sweep, the best first, and why others fell out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.units import format_time
from triosim.report.table import Column, TextTable
from triosim.serving.outcome import FleetFigures, FleetOutcome, ranked

SCHEMA = "triosim/serving-sweep/1"
SHOWN = 20
"""Fleets in the table of the terminal."""


def to_dict(outcomes: Sequence[FleetOutcome], goals: Sequence[str], sized: bool) -> dict[str, Any]:
    """Plain values, ready for JSON: fleets in the order in which they were asked for, each with its rank from 1."""
    places = {id(one): place for place, one in enumerate(ranked(outcomes, sized), 1)}
    return {
        "schema": SCHEMA,
        "goals": list(goals),
        "fleets": [{"rank": places.get(id(one)), **one.to_dict()} for one in outcomes],
    }


def show(outcomes: Sequence[FleetOutcome], goals: Sequence[str], sized: bool, console: Console) -> None:
    """Print the best fleets, and why others fell out."""
    best = ranked(outcomes, sized)
    if best:
        console.print(_table(best[:SHOWN], bool(goals)))
        if len(best) > SHOWN:
            console.print(Text(f"and {len(best) - SHOWN:,} more (--json has all)", "dim"))
    if goals and not any(one.figures is not None and one.figures.met for one in best):
        console.print(Text(f"no fleet keeps {', '.join(goals)}", "bold"))
    fell = [one for one in outcomes if one.figures is None]
    if fell:
        if best or goals:
            console.print()
        console.print(Text(f"{len(fell):,} of {len(outcomes):,} fleets cannot be formed:", "bold"))
        rows = TextTable((Column(), Column(flow="wrap")), indent=2)
        for one in fell[:SHOWN]:
            rows.add_row(" ".join(f"{_dashed(name)}={value}" for name, value in one.asked.items()), one.why)
        console.print(rows)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


Measured = tuple[tuple[Column, Callable[[FleetFigures], str]], ...]
"""Columns, and what they say of a fleet."""

OF_TOKENS: Measured = (
    (Column("$ per M tokens", right=True, optional=1), lambda found: _number(found.dollars_per_million_tokens)),
    (Column("J a token", right=True, optional=4),
     lambda found: "-" if found.output_token_j is None else f"{found.output_token_j:.3g}"),
    (Column("TTFT p99", right=True), lambda found: _time(found.ttft_p99)),
    (Column("TPOT p99", right=True), lambda found: _time(found.tpot_p99)),
    (Column("tokens/s", right=True, optional=3), lambda found: f"{found.output_tokens_per_s:,.0f}"),
)  # fmt: skip
OF_IMAGES: Measured = (
    (Column("$ per 1000 images", right=True, optional=1), lambda found: _number(found.dollars_per_thousand)),
    (Column("image mean", right=True, optional=3), lambda found: _time(found.e2e_mean)),
    (Column("image p99", right=True), lambda found: _time(found.e2e_p99)),
    (Column("images/s", right=True, optional=2), lambda found: f"{found.requests_per_s:.4g}"),
)


def _table(best: Sequence[FleetOutcome], goals: bool) -> TextTable:
    varied = list(best[0].asked)
    images = all(one.figures is not None and one.figures.images for one in best)
    measured = OF_IMAGES if images else OF_TOKENS
    rates = any(one.figures is not None and one.figures.rate is not None for one in best)
    table = TextTable([
        Column("", right=True),
        *(Column(_dashed(name), right=True) for name in varied),
        *([Column("replicas", right=True)] if "replicas" not in varied else []),
        Column("devices", right=True, optional=2),
        *([Column("goals")] if goals else []),
        *([Column("highest rate", right=True)] if rates else []),
        Column("$ an hour", right=True),
        *(column for column, _ in measured),
    ])  # fmt: skip
    for place, one in enumerate(best, 1):
        found = one.figures
        assert found is not None
        table.add_row(
            str(place),
            *(str(one.asked[name]) for name in varied),
            *([str(found.replicas)] if "replicas" not in varied else []),
            str(found.devices),
            *(["kept" if found.met else "missed"] if goals else []),
            *([_number(found.rate)] if rates else []),
            _number(found.dollars_per_hour),
            *(of(found) for _, of in measured),
        )
    return table


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
