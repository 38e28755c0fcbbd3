"""What a trace holds, for a person."""

from __future__ import annotations

import numpy as np
from rich.console import Console

from triosim.core.units import format_bytes, format_count, format_time
from triosim.operators import kind
from triosim.prediction.result.words import share
from triosim.report.table import Column, TextTable, paragraph
from triosim.trace.tables import GUESSES, Category, Phase, Trace


def overview(trace: Trace, console: Console, operators: bool = False) -> None:
    """Print where a trace comes from, its phases, kinds of operator and memory; ``operators`` lists every operator."""
    meta = trace.meta
    head = [
        ("workload", meta.workload),
        ("made by", " ".join(x for x in (meta.made_by, f"({meta.framework})" if meta.framework else "") if x)),
        ("device", meta.device or "not named"),
        ("batch size", _batch(trace)),
        ("tokens per sample", meta.sequence_length),
        ("parameters", f"{int(trace.values.elements()[trace.weights()].sum()):,} in {len(trace.weights())} tensors"),
        (
            "operator times",
            f"{format_time(trace.device_time())} in all ({meta.clock})" if meta.clock != "none" else "none",
        ),
        ("measured step", format_time(meta.step_time_s) if meta.step_time_s else None),
        ("steps in file", f"{', '.join(meta.steps)}; this is {meta.step}" if len(meta.steps) > 1 else None),
        ("identities", meta.identity),
        ("batch dimensions", meta.symbols or "not established yet"),
        ("tensors", _held(trace)),
    ]
    table = TextTable((Column(style="dim"), Column(flow="wrap")))
    for name, value in head:
        if value not in (None, ""):
            table.add_row(name, str(value))
    console.print(table)
    console.print()
    console.print(_phases(trace))
    console.print()
    console.print(_kinds(trace))
    if len(trace.communications):
        total = float(trace.communications.device_s.sum())
        console.print(
            f"\ncommunication kernels, kept apart: {len(trace.communications)}, {format_time(total)}", highlight=False
        )
    for note in meta.notes:
        paragraph(console, f"note: {note}", indent=2)
    if operators:
        console.print()
        console.print(_operators(trace))


def _batch(trace: Trace) -> str:
    """The batch of the step, in how many micro-batches, and whether it is a guess."""
    meta = trace.meta
    if meta.batch_size is None:
        return "unknown" + (f", in {meta.micro_batches} micro-batches" if meta.micro_batches > 1 else "")
    text = f"{meta.batch_size * meta.micro_batches}"
    if meta.micro_batches > 1:
        text += f" in {meta.micro_batches} micro-batches of {meta.batch_size}, of which one is shown"
    return f"{text} (a guess: {GUESSES[meta.batch_guess]})" if meta.batch_guess else text


def _columns(*names: str) -> TextTable:
    """A table in which the first columns matter most."""
    return TextTable([Column(name.lstrip(">"), name.startswith(">"), optional=at) for at, name in enumerate(names)])


def _phases(trace: Trace) -> TextTable:
    table = _columns("phase", ">operators", ">time", ">FLOP")
    for phase in Phase:
        rows = trace.operators.phase == phase
        if rows.any():
            flop = float(np.nansum(trace.operators.flop[rows]))
            seconds = trace.operators.device_s[rows]
            time = format_time(float(np.nansum(seconds))) if np.isfinite(seconds).any() else "-"
            table.add_row(phase.name.lower(), str(int(rows.sum())), time, _count(flop))
    return table


def _held(trace: Trace) -> str:
    """Bytes by category of what the step works on."""
    held = trace.values.storage_bytes()
    category = np.zeros(len(held), np.int8)
    category[trace.values.storage] = trace.values.category
    parts = [(c.name.lower().replace("_", " "), int(held[category == c].sum())) for c in Category]
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)


def _kinds(trace: Trace) -> TextTable:
    table = _columns("kind", ">operators", ">time", ">share", ">FLOP", ">bytes")
    kinds = np.array([kind(name) for name in trace.operators.name])
    seconds = np.nan_to_num(trace.operators.device_s)
    total = seconds.sum()
    order = sorted(set(kinds.tolist()), key=lambda k: -seconds[kinds == k].sum())
    for name in order:
        rows = (kinds == name) & ~trace.operators.view
        if rows.any():
            part = float(seconds[rows].sum())
            table.add_row(
                name,
                str(int(rows.sum())),
                format_time(part) if total else "-",
                share(part / total) if total else "-",
                _count(float(np.nansum(trace.operators.flop[rows]))),
                format_bytes(float(trace.operators.bytes[rows].sum())),
            )
    return table


def _count(flop: float) -> str:
    return format_count(flop).strip() if flop else "-"


def _operators(trace: Trace) -> TextTable:
    table = TextTable(
        (
            Column("row", right=True), Column("phase", optional=3), Column("operator", flow="wrap"),
            Column("module", flow="path"), Column("time", right=True), Column("FLOP", right=True, optional=1),
            Column("bytes", right=True, optional=2),
        )
    )  # fmt: skip
    operators = trace.operators
    for row, name in enumerate(operators.name):
        module = trace.modules.path[operators.module[row]] if operators.module[row] >= 0 else ""
        flop = operators.flop[row]
        table.add_row(
            str(row),
            Phase(operators.phase[row]).name.lower(),
            name,
            module,
            format_time(float(operators.device_s[row])),
            _count(float(np.nan_to_num(flop))),
            format_bytes(float(operators.bytes[row])),
        )
    return table
