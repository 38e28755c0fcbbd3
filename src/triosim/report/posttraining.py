"""A step of post-training, as a table of its phases, and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.result_file import OF_STEPS
from triosim.core.units import format_bytes, format_count, format_share, format_time
from triosim.kernels.estimate import CONFIDENCE
from triosim.posttraining.prediction import PhaseRow, PostTrainingStep
from triosim.report.table import Column, TextTable, paragraph

_MOST = 100


def to_dict(found: PostTrainingStep) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    plain = asdict(found)
    seconds, low, high = (plain.pop(name) for name in ("seconds", "low_s", "high_s"))
    return {
        "schema": OF_STEPS,
        "iteration_time_s": seconds,
        "interval_s": [low, high],
        "confidence": CONFIDENCE,
        "throughput": {
            "prompts_per_s": found.prompts / seconds,
            "samples_per_s": found.samples / seconds,
            "tokens_per_s": None if found.tokens is None else found.tokens / seconds,
        },
        **plain,
    }


def show(found: PostTrainingStep, console: Console) -> None:
    """Print what a step takes, phase by phase, and what its models hold."""
    own = next(model.workload for model in found.models)
    console.print(Text(f"{own} on {found.system}, {found.recipe}", style="bold"))
    console.print()
    rows = TextTable((Column(style="dim"), Column(flow="wrap")), indent=2, most=_MOST)
    between = f"{CONFIDENCE * 100:.0f} % between {format_time(found.low_s)} and {format_time(found.high_s)}"
    rows.add_row("Step", f"{format_time(found.seconds)}   ({between})")
    tokens = "" if found.tokens is None else f", {format_count(found.tokens / found.seconds).strip()} tokens/s"
    answers = "" if found.samples == found.prompts else f", {found.samples:,} answers"
    prompts = "1 prompt" if found.prompts == 1 else f"{found.prompts:,} prompts"
    rows.add_row("Batch", f"{prompts}{answers}: {found.prompts / found.seconds:.3g} prompts/s{tokens}")
    rows.add_row("Memory", _memory(found))
    console.print(rows)
    console.print()
    table = TextTable(
        (
            Column("Phase"), Column("what"), Column("runs", right=True), Column("each", right=True),
            Column("time", right=True), Column("part", right=True), Column("compute", right=True, optional=2),
            Column("exposed", right=True, optional=3), Column("memory", right=True, optional=1),
        ),
        indent=2, most=_MOST,
    )  # fmt: skip
    for row in found.phases:
        table.add_row(*_cells(row, found.seconds))
    console.print(table)
    console.print()
    models = TextTable(
        (Column("Model"), Column("of", flow="wrap"), Column("parameters", right=True), Column("holds", right=True)),
        indent=2, most=_MOST,
    )  # fmt: skip
    for model in found.models:
        held = format_bytes(model.held_bytes) if model.held_bytes else "nothing of its own"
        models.add_row(model.name, model.workload, format_count(model.parameters).strip(), held)
    console.print(models)
    for head, sentences, mark, style in (
        ("Rests on", found.sources, "-", "dim"), ("Warnings", found.warnings, "!", "yellow")
    ):  # fmt: skip
        if sentences:
            console.print()
            paragraph(console, Text(head, style="bold"), indent=2, most=_MOST)
            rests = TextTable((Column(style=style), Column(flow="wrap", style=style)), indent=2, most=_MOST, gap=1)
            for sentence in sentences:
                rests.add_row(mark, sentence)
            console.print(rests)


def _cells(row: PhaseRow, whole: float) -> tuple[str, ...]:
    spent = ("", "")
    if row.breakdown is not None and row.each_s:
        spent = (
            format_share(row.breakdown.compute / row.each_s),
            format_share(row.breakdown.exposed_communication / row.each_s),
        )
    memory = "" if row.reserved_bytes is None else format_bytes(row.reserved_bytes)
    return (
        row.name, row.does, str(row.count), format_time(row.each_s), format_time(row.seconds),
        format_share(row.seconds / whole), *spent, memory,
    )  # fmt: skip


def _memory(found: PostTrainingStep) -> str:
    memory = found.memory
    words = f"{format_bytes(memory.reserved_bytes)} on the fullest device, in the {memory.phase}"
    if memory.capacity_bytes is None:
        return words
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    beside = f" beside {format_bytes(memory.context_bytes)} of context" if memory.context_bytes else ""
    return f"{words}: {verdict} in {format_bytes(memory.capacity_bytes)}{beside}"
