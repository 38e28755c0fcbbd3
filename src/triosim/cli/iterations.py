"""``triosim calibrate --iterations``: a table of measured iterations becomes a residual of composition.

One line for each iteration, of which those of one job count once, with the median; its columns are
``workload``, ``seconds`` and any options of ``triosim train`` under their own names (``tp``, ``micro-batches``,
``system``, ...); an empty field leaves the option out.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_type_hints

from triosim.cli.arguments import Options
from triosim.cli.command import progress_bar, say, wants_summary
from triosim.cli.fields import typed
from triosim.cli.predict import job
from triosim.core import guarded
from triosim.core.errors import InputError, unknown

if TYPE_CHECKING:
    from triosim.prediction.composition_fit import MeasuredIteration

MEASURED = "seconds"
SHORTEST_S, LONGEST_S = 1e-6, 1e6
"""Seconds of an iteration: launching one kernel takes longer than the first, and nobody waits for the second."""
LEFT_OUT = (
    "json",
    "timeline",
    "report",
    "stats",
    "chakra",
    "composition",
    "iterations",
    "host",
    "operator_times",
    "operator_option",
    "fit",
    "also",
    "find",
    "slowdown",
    "constant",
    "tokens",
    "energy",
    "at",
    "grid",
    "pue",
    "price",
    "pay",
)
"""Options that say nothing of what was measured, or that are what is to be found out."""


def write(table: Path, output: Path) -> None:
    """Fit a residual to the iterations of a table, write it, and tell what was learned.

    Raises:
        InputError: the table cannot be read, or a line of it makes no sense.
    """
    from triosim.cli.streams import rich_console, written
    from triosim.composition.residual import document
    from triosim.core.outputs import text_output
    from triosim.prediction.composition_fit import learn

    with progress_bar() as progress:
        progress("reading")
        found = learn(read(table), table.name, progress=progress)
    with text_output(output) as file:
        file.write(json.dumps(document(found), indent=1) + "\n")
    if not wants_summary(output):
        return
    terms, out = found.terms, rich_console()
    out.print(f"{found.rows} iterations of {table.name}", highlight=False)
    for words, value in (
        ("the host issues an operator in", f"{terms.issue_s * 1e6:.1f} us"),
        ("a transfer between stages in", f"{terms.send_s * 1e6:.0f} us"),
        ("a kernel takes beside its own time", f"{terms.gap_s * 1e6:.1f} us"),
        ("a collective takes more", f"{terms.collective_s * 1e6:.1f} us"),
        ("an iteration costs once", f"{terms.fixed_s * 1e3:.1f} ms"),
        ("operator times are multiplied with", f"{terms.scale:.3f}"),
    ):
        out.print(f"  {words:36}{value:>10}", highlight=False)
    out.print(
        f"iterations that were left out: {found.error:.1%} off in the mean, 90 % within a factor of "
        f"{math.exp(found.spread):.2f}", highlight=False,
    )  # fmt: skip
    print()
    say(written("residual", output, f"  (triosim train WORKLOAD --composition {output})"), output)


def read(table: Path) -> list[MeasuredIteration]:
    """The measured iterations of a table.

    Raises:
        InputError: the table cannot be read, a column is no option, or a line makes no sense; the message says where.
    """
    from triosim.prediction.composition_fit import MeasuredIteration

    reader = guarded.rows(guarded.text(guarded.content(table), str(table)), str(table))
    with guarded.csv_errors(str(table), lambda: reader.line_num):
        lines = list(reader)
    if not lines:
        raise InputError(f"{table} has no lines: give columns workload, seconds and options of triosim train")
    kinds = _columns(table, lines[0])
    workload, measured = (
        next(column for column in lines[0] if column.strip() == name) for name in ("workload", MEASURED)
    )
    found: dict[tuple[str, ...], tuple[MeasuredIteration, list[float]]] = {}
    for number, line in enumerate(lines, start=2):
        if None in line or None in line.values() or not line[workload]:
            raise InputError(f"{table}, line {number}: fewer or more fields than columns, or no workload")
        try:
            options = {
                name: typed(column, line[column], kind) for column, (name, kind) in kinds.items() if line[column]
            }
            seconds = _seconds(line[measured])
            key = tuple(line[column].strip() for column in kinds)
            if key not in found:
                trace, system, plan, fidelity = job(Options(**options), training=True)
                found[key] = MeasuredIteration(trace, system, plan, seconds, fidelity, f"{table}, line {number}"), []
            found[key][1].append(seconds)
        except InputError as error:
            raise InputError(f"{table}, line {number}: {error}") from None
    return [replace(one, seconds=median(runs)) for one, runs in found.values()]


def _columns(table: Path, line: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """For each column but ``seconds`` the option that it is, and its type."""
    hints = get_type_hints(Options)
    known = {f.name: hints[f.name] for f in fields(Options) if f.name not in LEFT_OUT}
    columns = [column for column in line if column is not None]
    for wanted in ("workload", MEASURED):
        if wanted not in map(str.strip, columns):
            raise InputError(
                f"{table} has no column {wanted!r}: it needs workload, seconds and options of triosim train"
            )
    found: dict[str, tuple[str, Any]] = {}
    for column in columns:
        name = column.strip().removeprefix("--").replace("-", "_")
        if name == MEASURED:
            continue
        if name not in known:
            raise InputError(f"{table}: {unknown('column', column, [n.replace('_', '-') for n in known])}")
        if name in (other for other, _ in found.values()):
            raise InputError(f"{table} has two columns {name.replace('_', '-')!r}: leave one of them away")
        found[column] = (name, known[name])
    return found


def _seconds(text: str) -> float:
    from triosim.core.units import parse_time

    seconds = parse_time(text, MEASURED)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise InputError(f"{text!r} is no time that an iteration takes: give seconds, or a unit as in 420 ms")
    return seconds
