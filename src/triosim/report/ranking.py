"""The plans of a sweep, the fastest first, and why others fell out."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.units import format_bytes, format_count, format_time
from triosim.report.table import Column, TextTable
from triosim.search.outcome import PlanOutcome

SCHEMA = "triosim/sweep/1"
SHOWN = 20
"""Plans in the table of the terminal."""
_REASONS = 8
TOO_LARGE = "does not fit in memory"
_NUMBER = re.compile(r"\d[\d,.]*")


def ranked(outcomes: Sequence[PlanOutcome]) -> list[PlanOutcome]:
    """Those that are possible, the fastest first; the earlier asked first where they are equally fast.

    Throughput is compared where the global batch differs: ranks follow seconds per sample.
    """
    possible = [(outcome, outcome.figures) for outcome in outcomes if outcome.fits]
    return [
        outcome for outcome, found in sorted(
            ((o, f) for o, f in possible if f is not None),
            key=lambda pair: (_cost(pair[1].iteration_time_s, pair[1].sizes["global_batch_size"]), pair[0].number),
        )
    ]  # fmt: skip


def _cost(seconds: float, batch: int) -> float:
    return seconds / max(batch, 1)


def reasons(outcomes: Sequence[PlanOutcome]) -> list[tuple[int, str]]:
    """Why plans fell out: how many, and a sentence; sentences that differ in numbers alone are one, as first said.

    Of those that memory does not hold the sentence says what the smallest needs.
    """
    count: Counter[str] = Counter()
    said: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.fits:
            continue
        why = TOO_LARGE if outcome.figures else outcome.why
        alike = _NUMBER.sub("0", why)
        count[alike] += 1
        said.setdefault(alike, why)
    if TOO_LARGE in said:
        said[TOO_LARGE] += f": the smallest needs {_least([outcome for outcome in outcomes if not outcome.fits])}"
    return [(number, said[alike]) for alike, number in count.most_common()]


def _least(outcomes: Sequence[PlanOutcome]) -> str:
    """Of plans that memory does not hold what the smallest needs, in words, and which it is."""
    known = [(outcome.figures, outcome.asked) for outcome in outcomes if outcome.figures]
    found, asked = min(known, key=lambda one: one[0].needed_bytes)
    assert found.capacity_bytes is not None  # else it would not be known not to fit
    words = " ".join(f"{name.replace('_', '-')}={_typed(value)}" for name, value in asked.items())
    return f"{format_bytes(found.needed_bytes)} of {format_bytes(found.capacity_bytes)} ({words})"


def to_dict(outcomes: Sequence[PlanOutcome], workload: str, system: str) -> dict[str, Any]:
    """Plain values, ready for JSON: plans in the order in which they were asked for, each with its rank from 1."""
    places = {outcome.number: place for place, outcome in enumerate(ranked(outcomes), 1)}
    return {
        "schema": SCHEMA,
        "workload": workload,
        "system": system,
        "plans": [{"rank": places.get(outcome.number), **outcome.to_dict()} for outcome in outcomes],
        "fell_out": [{"plans": number, "why": why} for number, why in reasons(outcomes)],
    }


def to_csv(outcomes: Sequence[PlanOutcome]) -> str:
    """A table: a line for each plan in the order in which they were asked for."""
    places = {outcome.number: place for place, outcome in enumerate(ranked(outcomes), 1)}
    asked = list(dict.fromkeys(name for outcome in outcomes for name in outcome.asked))
    plain = [outcome.to_dict()["figures"] or {} for outcome in outcomes]
    sizes = list(dict.fromkeys(name for found in plain for name in found.get("sizes", ()) if name not in asked))
    own = [name for name in dict.fromkeys(name for f in plain for name in f) if name not in ("sizes", "warnings")]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", *asked, *sizes, *own, "why"])
    for outcome, found in zip(outcomes, plain, strict=True):
        table.writerow([
            places.get(outcome.number, ""),
            *(_cell(outcome.asked.get(name)) for name in asked),
            *(found.get("sizes", {}).get(name, "") for name in sizes),
            *(_cell(found.get(name)) for name in own),
            outcome.why,
        ])  # fmt: skip
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    return "" if value is None else value


def _typed(value: Any) -> str:
    """A value of an axis as it is typed."""
    return ("on" if value else "off") if isinstance(value, bool) else str(_cell(value))


def show(outcomes: Sequence[PlanOutcome], varied: Sequence[str], console: Console) -> None:
    """Print the fastest plans, and why others fell out.

    Args:
        outcomes: of all plans.
        varied: names of what the sweep changed, a column each.
        console: to print on.
    """
    best = ranked(outcomes)
    if best:
        console.print(_table(best[:SHOWN], varied))
        if len(best) > SHOWN:
            console.print(Text(f"and {len(best) - SHOWN:,} more that are possible (--json or --csv has all)", "dim"))
    fell = reasons(outcomes)
    if fell:
        if best:
            console.print()
        out = sum(number for number, _ in fell)
        console.print(Text(f"{out:,} of {len(outcomes):,} plans fell out:", "bold"))
        rows = TextTable((Column(right=True), Column(flow="wrap")), indent=2)
        for number, why in fell[:_REASONS]:
            rows.add_row(f"{number:,}", why)
        if len(fell) > _REASONS:
            rest = sum(number for number, _ in fell[_REASONS:])
            rows.add_row(f"{rest:,}", "for other reasons")
        console.print(rows)


def _known(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{format_count(value)}{unit}".strip()


def _table(best: Sequence[PlanOutcome], varied: Sequence[str]) -> TextTable:
    heads = [name.replace("_", "-") for name in varied]
    known = [outcome.figures for outcome in best if outcome.figures is not None]
    energy = any(one.energy_j is not None for one in known)
    tokens = any(one.tokens_per_j is not None for one in known)
    table = TextTable([
        Column("", right=True),
        *(Column(head, right=True) for head in heads),
        *([Column("dp", right=True)] if "dp" not in varied else []),
        Column("iteration", right=True),
        Column("samples/s", right=True, optional=2),
        Column("mfu", right=True, optional=3),
        Column("memory", right=True, optional=1),
        *([Column("energy", right=True)] if energy else []),
        *([Column("tokens/J", right=True, optional=4)] if tokens else []),
        Column("what binds"),
    ])  # fmt: skip
    for place, outcome in enumerate(best, 1):
        found = outcome.figures
        assert found is not None
        table.add_row(
            str(place),
            *(_typed(outcome.asked.get(name)) for name in varied),
            *([str(found.sizes["dp"])] if "dp" not in varied else []),
            format_time(found.iteration_time_s),
            "-" if found.samples_per_s is None else f"{found.samples_per_s:.4g}",
            "-" if found.mfu is None else f"{100 * found.mfu:.1f} %",
            format_bytes(found.needed_bytes),
            *([_known(found.energy_j, "J")] if energy else []),
            *([_known(found.tokens_per_j)] if tokens else []),
            found.binds,
        )
    return table
