"""What a calibration learned, for a person."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console

from triosim.core.units import format_bandwidth, format_count, format_time
from triosim.report.table import Column, TextTable, paragraph

if TYPE_CHECKING:
    from triosim.kernels.calibration.fitting import ClassFit
    from triosim.kernels.calibration.pack import CalibrationPack, RecordedHost


_LEGEND = (
    "compute, memory, launch: factors over what the datasheet suggests, of rates and of launch times",
    "before, after: mean error without calibration, and with one that was not shown the kernel",
    "interval: factor that holds 90 % of the kernels; - where they are too few to say",
)


def overview(pack: CalibrationPack, console: Console) -> None:
    """Print the device, what was learned of each class of kernels, and how well it predicts what it was not shown."""
    device = pack.calibration.device
    kernels = sum(len(one.anchors) for one in pack.calibration.learned.values())
    peaks = ", ".join(f"{dtype} {format_count(peak)}FLOP/s" for dtype, peak in device.peak_flops.items())
    measured = " (the best that was measured)" if device.confidence == "measured" else ""
    head = [
        ("device", device.name),
        ("memory", f"{format_bandwidth(device.memory_bandwidth)}{measured}"),
        ("peaks", f"{peaks}{measured}") if measured else ("", ""),
        ("kernels", f"{kernels} different ones{_of(pack)}"),
        ("host", _host(pack.host) if pack.host else ""),
        ("drift", f"{100 * pack.calibration.drift:.1f} % while measuring" if pack.calibration.drift else ""),
        ("made", pack.date),
        ("versions", ", ".join(f"{name} {version}" for name, version in pack.versions.items())),
    ]
    table = TextTable((Column(style="dim"), Column(flow="wrap")))
    for name, value in head:
        if value:
            table.add_row(name, value)
    console.print(table)
    console.print()
    console.print(_classes(pack))
    console.print()
    for line in _LEGEND:
        paragraph(console, line, "dim", indent=2)
    for sentence in _remarks(pack):
        paragraph(console, f"note: {sentence}", indent=2)


def _of(pack: CalibrationPack) -> str:
    operators, left_out = (pack.provenance.get(name, 0) for name in ("operators", "left_out"))
    if not operators:
        return ""
    said = f", of {operators:,} measured operators"
    return said + (f"; {left_out:,} more said too little" if left_out else "")


def _host(host: RecordedHost) -> str:
    said = [f"{format_time(host.issue_s)} per launch (median of {host.launches})"]
    said += [f"{format_time(host.delay_s)} until a kernel starts"] if host.delay_s is not None else []
    said += [f"{format_time(host.gap_s)} between kernels"] if host.gap_s is not None else []
    return ", ".join(said)


def _classes(pack: CalibrationPack) -> TextTable:
    heads = ("class", "kernels", "compute", "memory", "launch", "before", "after", "interval")
    learned = ("compute", "memory", "launch")
    table = TextTable([Column(name, name != "class", optional=int(name in learned)) for name in heads])
    for one in sorted(pack.calibration.learned.values(), key=lambda one: -len(one.anchors)):
        factors = one.factors
        table.add_row(
            one.name, str(len(one.anchors)), _factor(factors.compute), _factor(factors.bandwidth),
            _factor(factors.launch), _percent(one.before),
            "-" if one.after is None else _percent(one.after), _interval(one),
        )  # fmt: skip
    return table


def _factor(x: float) -> str:
    return f"x{x:.2f}" if x < 10 else f"x{x:.0f}"


def _percent(x: float) -> str:
    return f"{100 * x:.1f} %" if x < 1 else f"x{1 + x:.1f}"


def _interval(one: ClassFit) -> str:
    return f"x{math.exp(one.spread):.2f}" if one.spread is not None else "-"


def _remarks(pack: CalibrationPack) -> list[str]:
    said = []
    few = [one.name for one in pack.calibration.learned.values() if one.spread is None]
    if few:
        said.append(f"fewer than 20 different kernels of {', '.join(few)}: their intervals stay as shipped")
    for one in pack.calibration.learned.values():
        if one.menu:
            tiles = ", ".join(f"{rows}x{columns}" for rows, columns in one.menu)
            said.append(f"tiles of the library for {one.name}, from kernel names: {tiles}")
    if pack.calibration.drift > 0.1:
        said.append(
            f"the same kernel differed by {100 * pack.calibration.drift:.0f} % while measuring: the device was busy or "
            "got warm, and every interval is that much wider"
        )
    return said
