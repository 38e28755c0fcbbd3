"""A whole job, as lines and a table, and as plain values."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.plain_json import finite
from triosim.core.units import format_bytes, format_count, format_share, format_time
from triosim.job.prediction import TrainingJob
from triosim.report.table import Column, TextTable, paragraph

SCHEMA = "triosim/job/1"
_DAY, _HOUR, _MINUTE = 86_400.0, 3600.0, 60.0
_MOST = 100


def to_dict(found: TrainingJob) -> dict[str, Any]:
    """Plain values, ready for JSON; what is not a number there (no failures) is null."""
    plain = {"schema": SCHEMA, **asdict(found), "device_hours": found.device_hours}
    plain["checkpoint"] |= {
        name: getattr(found.checkpoint, name) for name in ("written_s", "blocking_s", "background_s")
    }
    return finite(plain)


def long_time(seconds: float) -> str:
    """A time in days, hours or minutes from two of them on."""
    for unit, name in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.4g} {name}"
    return format_time(seconds)


def _both(pair: tuple[float, float]) -> str:
    return " and ".join(map(long_time, pair))


def show(found: TrainingJob, console: Console) -> None:
    """Print how long the job takes, where its time goes, and when it is best to write checkpoints."""
    console.print(Text(found.of.name, style="bold"))
    console.print()
    length = "" if found.tokens is None else f", {format_count(found.tokens).strip()} tokens"
    rows = TextTable((Column(), Column(flow="wrap")), indent=2, most=_MOST)
    rows.add_row("Iterations", f"{found.iterations:,} of {format_time(found.of.seconds)}{length}")
    hours = f"{found.device_hours:,.0f}" if found.device_hours >= 100 else f"{found.device_hours:.3g}"
    rows.add_row("Job", f"{long_time(found.total_s)}, {hours} device hours")
    rows.add_row("", f"90 % between {_both(found.total_range_s)} as failures happen to come")
    rows.add_row("", f"90 % between {_both(found.total_interval_s)} as the iteration is not known better")
    if found.of.fits is False:
        rows.add_row("Memory", "does not fit: this job cannot run as it was planned")
    rows.add_row("Effective", f"{format_share(found.effective)} of the time training goes ahead")
    rows.add_row("Failures", _failures(found))
    rows.add_row("Checkpoint", _checkpoint(found))
    rows.add_row("", _interval(found))
    console.print(rows)
    console.print()
    table = TextTable((Column("Where the time goes"), Column("time", right=True), Column("part", right=True)), indent=2)
    for name, seconds in (
        ("training", found.training_s), ("evaluation", found.evaluation_s), ("checkpoints", found.writing_s),
        ("done again after failures", found.lost_s), ("detection, restart, warm-up", found.down_s - found.waiting_s),
        ("waiting for repair", found.waiting_s),
    ):  # fmt: skip
        if seconds > 0:
            table.add_row(name, long_time(seconds), format_share(seconds / found.total_s))
    console.print(table)
    if found.sources:
        console.print()
        paragraph(console, Text("Rests on", style="bold"), indent=2, most=_MOST)
        rests = TextTable((Column(style="dim"), Column(flow="wrap", style="dim")), indent=2, most=_MOST, gap=1)
        for sentence in found.sources:
            rests.add_row("-", sentence)
        console.print(rests)


def _failures(found: TrainingJob) -> str:
    if math.isinf(found.mtbf_s):
        return "none asked for"
    low, high = found.failures_range
    return f"{found.failures:.4g} (90 % {low:.0f} to {high:.0f}), one in {long_time(found.mtbf_s)}"


def _checkpoint(found: TrainingJob) -> str:
    written = f"{format_bytes(found.checkpoint.bytes)}, written in {format_time(found.checkpoint.written_s)}"
    if found.checkpoint.staging is None:
        return written
    return f"{written} beside training, which stops for {format_time(found.checkpoint.blocking_s)}"


def _interval(found: TrainingJob) -> str:
    work = found.every * (found.training_s + found.evaluation_s) / found.iterations
    every = f"every {f'{found.every:,} iterations' if found.every > 1 else 'iteration'}, {long_time(work)}"
    if math.isnan(found.best_s):
        return every
    formulas = f"Young {long_time(found.young_s)}, Daly {long_time(found.daly_s)}"
    best = "the best" if abs(work - found.best_s) <= 0.02 * found.best_s else f"best {long_time(found.best_s)}"
    return f"{every} ({best}; {formulas})"
