"""Jobs that share a network, as a table, and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from triosim.core.plain_json import finite
from triosim.core.units import format_time
from triosim.prediction.together import JobSpan
from triosim.report.table import Column, TextTable

SCHEMA = "triosim/together/1"


def to_dict(found: Sequence[JobSpan]) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return {
        "schema": SCHEMA,
        "jobs": [
            {
                "name": stay.name, "devices": list(stay.devices), "begins_s": stay.begins_s, "leaves_s": stay.leaves_s,
                "iteration_times_s": list(stay.iteration_times_s),
                "alone_s": stay.alone_s, "slowdown": stay.slowdown,
                "result": finite(stay.result.to_dict()),
            }
            for stay in found
        ],
    }  # fmt: skip


def show(found: Sequence[JobSpan], console: Console) -> None:
    """Print when each job is there, and what it is slowed down by the others."""
    heads = ("devices", "begins", "leaves", "iterations", "each", "longest", "alone", "slower")
    table = TextTable((Column("Job"), *(Column(head, right=True) for head in heads)), indent=2)
    for stay in found:
        times = stay.iteration_times_s
        table.add_row(
            stay.name, _devices(stay.devices), format_time(stay.begins_s), format_time(stay.leaves_s),
            f"{len(times):,}", format_time(stay.result.iteration_time_s), format_time(max(times)),
            format_time(stay.alone_s), f"{stay.slowdown - 1:.1%}",
        )  # fmt: skip
    console.print(table)


def _devices(devices: Sequence[int]) -> str:
    """Numbers of devices, neighbours as a range."""
    ordered, found = sorted(devices), list[str]()
    first = last = ordered[0]
    for device in (*ordered[1:], -1):
        if device == last + 1:
            last = device
            continue
        found.append(str(first) if first == last else f"{first}-{last}")
        first = last = device
    return ",".join(found)
