"""The summary that a person reads in ten seconds."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from triosim.report.text import module_times, number, plan_words, shorten, title, unsure, verdict
from triosim.result import Peak, Result
from triosim.units import format_bytes, format_time

_PARTS = (  # of an iteration: field of Breakdown, what it is called, colour, glyph, glyph where only ASCII can be shown
    ("compute", "compute", "blue", "█", "#"),
    ("exposed_communication", "exposed communication", "dark_orange", "▓", "="),
    ("host", "host", "magenta", "▒", "+"),
    ("idle", "idle", "bright_black", "░", "."),
)
_MODULES, _COLLECTIVES, _SENTENCES = 5, 4, 4
_NOTABLE = 0.02  # stages that differ by less are called equal


def summary(result: Result, console: Console) -> None:
    """Print what matters most of a prediction, in about thirty lines that also read well without colour."""
    plain = not (console.encoding or "").lower().startswith("utf")
    width = min(console.width, 100)
    _headline(result, console, width)
    _breakdown(result, console, width, plain)
    _collectives(result, console)
    _modules(result, console, width, plain)
    _sentences("Rests on", result.sources, console, width, "-", "dim")
    _sentences("Warnings", result.warnings, console, width, "!", "yellow")


def _headline(result: Result, console: Console, width: int) -> None:
    _line(console, Text(title(result), style="bold"))
    _line(console, Text(plan_words(result.plan), style="dim"))
    console.print()
    low, high = result.interval_s
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(overflow="fold")
    time = Text(format_time(result.iteration_time_s), style="bold")
    between = f"{format_time(low)} and {format_time(high)}"
    time.append(f"   ({result.confidence * 100:.0f} % between {between})", "not bold")
    rows.add_row("Iteration", time)
    if result.uncertainty:
        rows.add_row("", Text(unsure(result.uncertainty[0]), "dim"))
    units = (("samples_per_s", "samples/s"), ("tokens_per_s", "tokens/s"))
    speeds = [(result.throughput.get(key), unit) for key, unit in units]
    if any(speed is not None for speed, _ in speeds):
        rows.add_row("Throughput", ", ".join(f"{number(x)} {unit}" for x, unit in speeds if x is not None))
    memory = result.memory
    colour = {True: "green", False: "bold red", None: ""}[memory.fits]
    rows.add_row("Memory", Text(verdict(memory), style=colour))
    largest = sorted(memory.categories.items(), key=lambda item: -item[1])[:3]
    if largest:
        held = ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)
        rows.add_row("", Text(f"{held}{_at(memory.peak)}", "dim"))
    if memory.host_bytes:
        rows.add_row("", Text(f"{format_bytes(memory.host_bytes)} of each rank in host memory", "dim"))
    if memory.largest_batch is not None:
        per = " per replica" if result.plan.get("dp", 1) > 1 else ""
        rows.add_row("Largest batch", f"{memory.largest_batch}{per}" if memory.largest_batch else "none fits")
    stages = _stages(result)
    if stages:
        rows.add_row("Stages", stages)
    console.print(Padding(rows, (0, 0, 0, 2), expand=False), width=width)


def _at(peak: Peak) -> str:
    """When memory is fullest, as the end of a sentence."""
    if not peak.phase:
        return ""
    return f", at the peak in the {peak.phase}" + (f" of {peak.module}" if peak.module else "")


def _stages(result: Result) -> str:
    """Which stage, or without stages which device, holds up the others; nothing where all are alike."""
    rows = [(f"stage {s.stage}", s.compute_s) for s in result.stages]
    if len(rows) < 2:
        alike = {d.rank: f" and {d.count - 1} like it" if d.count > 1 else "" for d in result.devices}
        rows = [(f"device {d.rank}{alike[d.rank]}", d.busy_s) for d in result.devices]
    if len(rows) < 2:
        return ""
    (most, longest), (least, shortest) = max(rows, key=lambda r: r[1]), min(rows, key=lambda r: r[1])
    if longest - shortest <= _NOTABLE * longest:
        return ""
    return f"{most} computes longest: {format_time(longest)}; {least} only {format_time(shortest)}"


def _breakdown(result: Result, console: Console, width: int, plain: bool) -> None:
    console.print()
    devices = sum(d.count for d in result.devices)
    over = f", mean over {devices} devices" if devices > 1 else ""
    _line(console, Text(f"Where an iteration goes{over}", style="bold"))
    total = result.iteration_time_s or 1.0
    parts = [(getattr(result.breakdown_s, name), label, colour, ascii_ if plain else glyph)
             for name, label, colour, glyph, ascii_ in _PARTS]  # fmt: skip
    cells = _cells([seconds / total for seconds, *_ in parts], width - 4)
    bar = Text()
    for count, (_, _, colour, glyph) in zip(cells, parts, strict=True):
        bar.append(glyph * count, colour)
    console.print(Padding(bar, (0, 0, 0, 2), expand=False))
    legend = Table.grid(padding=(0, 3))
    for seconds, label, colour, glyph in parts:
        if seconds > 0:
            text = Text(glyph, colour)
            text.append(f" {label}", "default")
            share = Text(_share(seconds / total), justify="right")
            legend.add_row(text, Text(format_time(seconds), justify="right"), share)
    console.print(Padding(legend, (0, 0, 0, 2), expand=False))
    b = result.breakdown_s
    if b.communication > 0:
        hidden = _share(max(0.0, 1.0 - b.exposed_communication / b.communication))
        _line(console, Text(f"  {format_time(b.communication)} of communication, {hidden} of it behind compute", "dim"))


def _collectives(result: Result, console: Console) -> None:
    """Calls of one kind along one axis in one row, whatever their sizes."""
    rows: dict[tuple[str, str, int], list[float]] = {}
    how: dict[tuple[str, str, int], dict[tuple[str, str], None]] = {}
    for c in result.collectives:
        key = (c.kind, c.axis, c.group_size)
        entry = rows.setdefault(key, [0, 0, 0.0])
        for i, more in enumerate((c.count, c.count * c.bytes, c.seconds)):
            entry[i] += more
        how.setdefault(key, {})[c.algorithm, c.protocol] = None
    if not rows:
        return
    console.print()
    table = _table("Communication", "over", "calls", "bytes in all", "time in all", "algorithm")
    longest = sorted(rows.items(), key=lambda item: -item[1][2])
    for key, (count, size, seconds) in longest[:_COLLECTIVES]:
        kind, axis, members = key
        algorithms = _ways(list(how[key])) or "-"
        table.add_row(
            kind, f"{axis}, {members} ranks", str(count), format_bytes(size), format_time(seconds), Text(algorithms)
        )
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    _more(console, len(rows) - _COLLECTIVES, "kinds of communication")


def _modules(result: Result, console: Console, width: int, plain: bool) -> None:
    modules = [m for m in module_times(result.layers) if m.compute_s + m.communication_s > 0]
    if not modules:
        return
    console.print()
    total = sum(m.compute_s + m.communication_s for m in modules)
    columns: dict[str, list[float]] = {"forward": [], "backward": [], "other": [], "transfers": []}
    for m in modules[:_MODULES]:
        forward, backward = m.seconds.get("forward", 0.0), m.seconds.get("backward", 0.0)
        other = sum(s for phase, s in m.seconds.items() if phase not in ("forward", "backward"))
        for column, seconds in zip(columns.values(), (forward, backward, other, m.communication_s), strict=True):
            column.append(seconds)
    columns = {name: column for name, column in columns.items() if any(column)}
    table = _table("Modules", *columns, "share")
    for row, m in enumerate(modules[:_MODULES]):
        count = f" ({m.count})" if m.count > 1 else ""
        room = width - 12 - 11 * len(columns) - len(count)
        name = shorten(m.path or "(outside all modules)", room, ".." if plain else "…") + count
        cells = (format_time(column[row]) if column[row] > 0 else "-" for column in columns.values())
        table.add_row(Text(name), *cells, _share((m.compute_s + m.communication_s) / total))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    _more(console, len(modules) - _MODULES, "modules")


def _sentences(head: str, sentences: tuple[str, ...], console: Console, width: int, mark: str, style: str) -> None:
    if not sentences:
        return
    console.print()
    _line(console, Text(head, style="bold"))
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for sentence in sentences[:_SENTENCES]:
        rows.add_row(Text(mark, style), Text(textwrap.shorten(sentence, 2 * (width - 8), placeholder=" ..."), style))
    console.print(Padding(rows, (0, 0, 0, 2), expand=False), width=width)
    _more(console, len(sentences) - _SENTENCES)


def _ways(ways: list[tuple[str, str]]) -> str:
    """``ring/LL128, ring/Simple``; of more than two only the algorithms."""
    named = ["/".join(filter(None, way)) for way in ways]
    if len(named) > 2:
        named = list(dict.fromkeys(algorithm for algorithm, _ in ways))
    return ", ".join(filter(None, named))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, no_wrap=True, justify="left" if name in ("over", "algorithm") else "right")
    return table


def _more(console: Console, count: int, what: str = "") -> None:
    if count > 0:
        _line(console, Text(f"  and {count} more {what}".rstrip() + " (--json, --report)", "dim"))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=False, overflow="fold")


def _share(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def _cells(shares: list[float], width: int) -> list[int]:
    """Whole characters for shares of a bar, at least one for each share above half a percent, ``width`` in all."""
    total = sum(shares) or 1.0
    exact = [share / total * width for share in shares]
    cells = [max(int(x), 1 if share > 0.005 else 0) for x, share in zip(exact, shares, strict=True)]
    while sum(cells) < width:
        cells[max(range(len(cells)), key=lambda i: exact[i] - cells[i])] += 1
    while sum(cells) > width:
        cells[max((i for i, cell in enumerate(cells) if cell > 1), key=lambda i: cells[i] - exact[i])] -= 1
    return cells
