"""The summary that a person reads in ten seconds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from triosim.core.units import format_bytes, format_count, format_time
from triosim.prediction.result import Peak, Result
from triosim.prediction.result.words import (
    PARTS,
    joules,
    share,
    speeds,
    subtitle,
    title,
    unsure,
    use,
    varied_by,
    varies,
    verdict,
)  # fmt: skip
from triosim.report.table import Column, TextTable, paragraph
from triosim.report.text import module_times

if TYPE_CHECKING:
    from triosim.search.clock_search import BestClock

_GLYPHS = (("blue", "█", "#"), ("dark_orange", "▓", "="), ("magenta", "▒", "+"), ("bright_black", "░", "."))
"""Colour, glyph and glyph where only ASCII can be shown of the parts of an iteration."""
_MODULES, _COLLECTIVES, _SENTENCES = 5, 4, 4
_MOST = 100
"""Characters of a line: longer ones are hard to read."""
_NOTABLE = 0.02  # stages that differ by less are called equal


def summary(result: Result, console: Console) -> None:
    """Print what matters most of a prediction, in about thirty lines that also read well without colour."""
    plain = not (console.encoding or "").lower().startswith("utf")
    width = min(console.width, _MOST)
    _headline(result, console, width)
    _breakdown(result, console, width, plain)
    _collectives(result, console, width)
    _modules(result, console, width)
    basis = (*result.sources, *(result.energy.sources if result.energy is not None else ()))
    _sentences("Rests on", basis, console, width, "-", "dim")
    _sentences("Warnings", result.warnings, console, width, "!", "yellow")


def _headline(result: Result, console: Console, width: int) -> None:
    _line(console, Text(title(result), style="bold"))
    _line(console, Text(subtitle(result), style="dim"))
    console.print()
    low, high = result.interval_s
    rows = TextTable((Column(style="dim"), Column(flow="wrap")), indent=2, most=width)
    time = Text(format_time(result.iteration_time_s), style="bold")
    between = f"{format_time(low)} and {format_time(high)}"
    time.append(f"   ({result.confidence * 100:.0f} % between {between})", "not bold")
    rows.add_row("Iteration", time)
    if result.uncertainty:
        rows.add_row("", Text(unsure(result.uncertainty[0]), "dim"))
    if result.variation is not None:
        rows.add_row("Varies", varies(result.variation))
        rows.add_row("", Text(varied_by(result.variation), "dim"))
    if speeds(result):
        rows.add_row("Throughput", speeds(result))
    if use(result):
        rows.add_row("Per device", use(result))
    if result.energy is not None:
        rows.add_row("Energy", joules(result))
    memory = result.memory
    colour = {True: "green", False: "bold red", None: ""}[memory.fits]
    rows.add_row("Memory", Text(verdict(memory), style=colour))
    largest = sorted(memory.categories.items(), key=lambda item: -item[1])[:3]
    if largest:
        held = ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)
        rows.add_row("", Text(f"{held}{_at(memory.peak)}", "dim"))
    if memory.host_bytes:
        rows.add_row("", Text(f"{format_bytes(memory.host_bytes)} of each rank in host memory", "dim"))
    if memory.nvme_bytes:
        rows.add_row("", Text(f"{format_bytes(memory.nvme_bytes)} of each rank on NVMe", "dim"))
    if memory.largest_batch is not None:
        per = " per replica" if result.plan.dp > 1 else ""
        rows.add_row("Largest batch", f"{memory.largest_batch:,}{per}" if memory.largest_batch else "none fits")
    longest = _longest(result)
    if longest:
        rows.add_row(*longest)
    console.print(rows)


def clocks(found: BestClock, console: Console) -> None:
    """Print the clocks that were looked at, and which of them takes least energy."""
    quick = found.result.iteration_time_s / (found.full.iteration_time_s or 1.0) - 1
    rows = [
        (point.clock_mhz, format_time(point.iteration_time_s), point.node_j, point.allowed) for point in found.points
    ]
    words = ("iteration", "too slow")
    clock_table(rows, found.clock_hz / 1e6, words, f", and {share(quick)} slower", console, found.boost_hz)


def clock_table(
    rows: Sequence[tuple[float, str, float, bool]], best_mhz: float, words: tuple[str, str], slower: str,
    console: Console, boost_hz: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """Print clocks and which of them takes least energy.

    Args:
        rows: megahertz, what comes of it in words, joules, and whether that is allowed; the highest first.
        best_mhz: the clock that was chosen.
        words: head of the second column, and what is said of a clock that is not allowed.
        slower: end of the first line: what the best clock costs.
        console: to print on.
        boost_hz: boost clocks of the devices by their names; where they differ, a clock is the highest of all of them.
    """
    console.print()
    least, full = next(row[2] for row in rows if row[0] == best_mhz), rows[0][2]
    less = share(1 - least / (full or 1.0))
    _line(console, Text(f"Least energy at {best_mhz:.0f} MHz: {less} less than at the full clock{slower}", "bold"))
    heads = (Column("clock", right=True), Column(words[0], right=True), Column("energy", right=True), Column(""))
    table = TextTable(heads, indent=2, most=_MOST)
    for clock, came, node_j, allowed in rows:
        mark = "least" if clock == best_mhz else "" if allowed else words[1]
        table.add_row(f"{clock:.0f} MHz", came, f"{format_count(node_j)}J", mark)
    console.print(table)
    boosts = boost_hz or {}
    if len(set(boosts.values())) > 1:
        own = ", ".join(f"{name} {clock / 1e6:.0f} MHz" for name, clock in boosts.items())
        paragraph(console, Text(f"  No device goes above its own clock: {own}", "dim"), indent=2, most=_MOST)


def _at(peak: Peak) -> str:
    """When memory is fullest, as the end of a sentence."""
    if not peak.phase:
        return ""
    return f", at the peak in the {peak.phase}" + (f" of {peak.module}" if peak.module else "")


def _longest(result: Result) -> tuple[str, str] | None:
    """Which stage, or without stages which device, holds up the others; nothing where all are alike."""
    what = "Stages"
    rows = [(f"stage {s.stage}", s.compute_s) for s in result.stages]
    if len(rows) < 2:
        what = "Devices"
        alike = {d.rank: f" and {d.count - 1} like it" if d.count > 1 else "" for d in result.devices}
        rows = [(f"device {d.rank}{alike[d.rank]}", d.busy_s) for d in result.devices]
    if len(rows) < 2:
        return None
    (most, longest), (least, shortest) = max(rows, key=lambda r: r[1]), min(rows, key=lambda r: r[1])
    if longest - shortest <= _NOTABLE * longest:
        return None
    return what, f"{most} computes longest: {format_time(longest)}; {least} only {format_time(shortest)}"


def _breakdown(result: Result, console: Console, width: int, plain: bool) -> None:
    console.print()
    devices = sum(d.count for d in result.devices)
    over = f", mean over {devices} devices" if devices > 1 else ""
    _line(console, Text(f"Where an iteration goes{over}", style="bold"))
    total = result.iteration_time_s or 1.0
    parts = [(getattr(result.breakdown_s, name), label, colour, ascii_ if plain else glyph)
             for (name, label), (colour, glyph, ascii_) in zip(PARTS, _GLYPHS, strict=True)]  # fmt: skip
    widths = _cells([seconds / total for seconds, *_ in parts], width - 4)
    bar = Text()
    for count, (_, _, colour, glyph) in zip(widths, parts, strict=True):
        bar.append(glyph * count, colour)
    console.print(Text.assemble("  ", bar))
    legend = TextTable((Column(flow="wrap"), Column(right=True), Column(right=True)), indent=2, most=width)
    for seconds, label, colour, glyph in parts:
        if seconds > 0:
            text = Text(glyph, colour)
            text.append(f" {label}", "default")
            legend.add_row(text, format_time(seconds), share(seconds / total))
    console.print(legend)
    b = result.breakdown_s
    if b.communication > 0:
        hidden = share(max(0.0, 1.0 - b.exposed_communication / b.communication))
        _line(console, Text(f"  {format_time(b.communication)} of communication, {hidden} of it behind compute", "dim"))


def _collectives(result: Result, console: Console, width: int) -> None:
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
    columns = (
        Column("Communication"), Column("over", flow="wrap"), Column("calls", right=True, optional=2),
        Column("bytes in all", right=True, optional=1), Column("time in all", right=True),
        Column("algorithm", flow="wrap", optional=3),
    )  # fmt: skip
    table = TextTable(columns, indent=2, most=width)
    longest = sorted(rows.items(), key=lambda item: -item[1][2])
    for key, (count, size, seconds) in longest[:_COLLECTIVES]:
        kind, axis, members = key
        cells = (str(count), format_bytes(size), format_time(seconds), _algorithms(list(how[key])) or "-")
        table.add_row(kind, f"{axis}, {members} ranks", *cells)
    console.print(table)
    _more(console, len(rows) - _COLLECTIVES, "kinds of communication")


def _modules(result: Result, console: Console, width: int) -> None:
    """Where the time of a device of each stage goes; transfers count as far as it computed nothing meanwhile."""
    modules = [m for m in module_times(result.layers) if m.total_s > 0]
    if not modules:
        return
    console.print()
    total = result.iteration_time_s * max(len(result.stages), 1) or 1.0
    shown = modules[:_MODULES]
    columns: dict[str, list[float]] = {"forward": [], "backward": [], "other": [], "exposed transfers": []}
    for m in shown:
        forward, backward = m.seconds.get("forward", 0.0), m.seconds.get("backward", 0.0)
        other = sum(s for phase, s in m.seconds.items() if phase not in ("forward", "backward"))
        for column, seconds in zip(columns.values(), (forward, backward, other, m.exposed_s), strict=True):
            column.append(seconds)
    columns = {name: column for name, column in columns.items() if any(column)}
    optional = {"other": 3, "backward": 2, "forward": 1}
    rights = (Column(name, right=True, optional=optional.get(name, 0)) for name in (*columns, "share"))
    table = TextTable((Column("Modules", flow="path"), *rights), indent=2, most=width)
    for row, m in enumerate(shown):
        count = f" ({m.count})" if m.count > 1 else ""
        cells = (format_time(column[row]) if column[row] > 0 else "-" for column in columns.values())
        table.add_row((m.path or "(no module)") + count, *cells, share(m.total_s / total))
    console.print(table)
    _more(console, len(modules) - _MODULES, "modules")


def _sentences(head: str, sentences: tuple[str, ...], console: Console, width: int, mark: str, style: str) -> None:
    if not sentences:
        return
    console.print()
    _line(console, Text(head, style="bold"))
    rows = TextTable((Column(style=style), Column(flow="wrap", style=style)), indent=2, most=width, gap=1)
    for sentence in sentences[:_SENTENCES]:
        rows.add_row(mark, textwrap.shorten(sentence, 2 * (width - 8), placeholder=" ..."))
    console.print(rows)
    _more(console, len(sentences) - _SENTENCES)


def _algorithms(used: list[tuple[str, str]]) -> str:
    """``ring/LL128, ring/Simple``; of more than two only the algorithms."""
    named = ["/".join(filter(None, pair)) for pair in used]
    if len(named) > 2:
        named = list(dict.fromkeys(algorithm for algorithm, _ in used))
    return ", ".join(filter(None, named))


def _more(console: Console, count: int, what: str = "") -> None:
    if count > 0:
        _line(console, Text(f"  and {count} more {what}".rstrip() + " (--json, --report)", "dim"))


def _line(console: Console, text: Text) -> None:
    paragraph(console, text, indent=2, most=_MOST)


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
