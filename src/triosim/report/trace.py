"""What a trace holds, for a person."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from triosim.units import format_bytes, format_count, format_time
from triosim.workload.operators import kind
from triosim.workload.trace import Category, Phase, Trace


def overview(trace: Trace, console: Console, operators: bool = False) -> None:
    """Print where a trace comes from, its phases, kinds of operator and memory; ``operators`` lists every operator."""
    meta = trace.meta
    head = [
        ("workload", meta.workload),
        ("made by", " ".join(x for x in (meta.made_by, f"({meta.framework})" if meta.framework else "") if x)),
        ("device", meta.device or "not named"),
        ("batch size", meta.batch_size or "unknown"),
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
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in head:
        if value not in (None, ""):
            table.add_row(name, str(value))
    console.print(table, highlight=False)
    console.print()
    console.print(_phases(trace), highlight=False)
    console.print()
    console.print(_kinds(trace), highlight=False)
    if len(trace.communications):
        total = float(trace.communications.device_s.sum())
        console.print(
            f"\ncommunication kernels, kept apart: {len(trace.communications)}, {format_time(total)}", highlight=False
        )
    for note in meta.notes:
        console.print(f"note: {note}", highlight=False)
    if operators:
        console.print()
        console.print(_operators(trace), highlight=False)


def _columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return table


def _phases(trace: Trace) -> Table:
    table = _columns("phase", ">operators", ">time", ">GFLOP")
    for phase in Phase:
        rows = trace.operators.phase == phase
        if rows.any():
            flop = float(np.nansum(trace.operators.flop[rows]))
            seconds = trace.operators.device_s[rows]
            time = format_time(float(np.nansum(seconds))) if np.isfinite(seconds).any() else "-"
            table.add_row(phase.name.lower(), str(int(rows.sum())), time, f"{flop / 1e9:,.1f}" if flop else "-")
    return table


def _held(trace: Trace) -> str:
    """Bytes by category of what the step works on."""
    held = trace.values.storage_bytes()
    category = np.zeros(len(held), np.int8)
    category[trace.values.storage] = trace.values.category
    parts = [(c.name.lower().replace("_", " "), int(held[category == c].sum())) for c in Category]
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)


def _kinds(trace: Trace) -> Table:
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
                f"{part / total:.1%}" if total else "-",
                _count(float(np.nansum(trace.operators.flop[rows]))),
                format_bytes(float(trace.operators.bytes[rows].sum())),
            )
    return table


def _count(flop: float) -> str:
    return format_count(flop).strip() if flop else "-"


def _operators(trace: Trace) -> Table:
    table = _columns(">row", "phase", "operator", "module", ">time", ">FLOP", ">bytes")
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
