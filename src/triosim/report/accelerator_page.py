"""One HTML page of designs and mappings that opens offline: energy by level and tensor, loop nests, rooflines, fronts.

A *roofline* (Williams et al., CACM 2009) has computations for each word on its axis, and computations in a cycle as its
height: the units' own roof, and for each store with a bandwidth the slope of its words.  A mapping is a point under
each, all at one height: where a point touches a slope, that store binds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence

from triosim.accelerator.architecture import Architecture, FanOut, Store
from triosim.accelerator.evaluate import Evaluation
from triosim.accelerator.mapper import Search
from triosim.accelerator.mapping import keeps_of
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.outputs import text_output
from triosim.core.units import format_time
from triosim.prediction.result.words import share
from triosim.report.accelerator import cycles_alone, joules
from triosim.report.static_page import cards_of, document, escaped, legend_of, section, table_of

_COLOURS = (
    "var(--weight)", "var(--input)", "var(--activation)", "var(--gradient)", "var(--optimizer-state)", "var(--buffer)",
    "var(--label)", "var(--copy)",
)  # fmt: skip
LEAKAGE, COMPUTE = ("leakage", "var(--temporary)"), ("compute", "var(--host)")
_WIDTH, _HEIGHT, _LEFT, _BELOW, _EDGE = 560, 320, 64, 42, 14


@dataclass(frozen=True)
class PlottedCase:
    """One problem on one design.

    Attributes:
        found: what its mapping costs.
        design, problem: see there.
        search: how the mapping was found; None where it was given.
    """

    found: Evaluation
    design: Architecture
    problem: Problem
    search: Search | None = None


def write(cases: Sequence[PlottedCase], path: str | os.PathLike[str]) -> None:
    """Write the page.

    Raises:
        InputError: the file cannot be written.
    """
    page = render(cases)
    with text_output(path) as out:
        out.write(page)


def render(cases: Sequence[PlottedCase]) -> str:
    """The page as text."""
    first = cases[0]
    names = ", ".join(dict.fromkeys(one.found.problem for one in cases))
    clock = f", {first.design.clock_hz / 1e6:g} MHz" if first.design.clock_hz else ""
    subtitle = f"{first.design.name}: {first.design.compute_instances:,} units{clock}. Timing {first.found.timing}."
    sections = [_cards(cases)]
    if len(cases) > 1:
        sections.append(_layers(cases))
    sections.append(_rooflines(cases))
    for one in cases:
        title = f"{one.found.problem}: " if len(cases) > 1 else ""
        sections.append(_energy(one, title))
        sections.append(_nest(one, title))
        if one.search is not None and len(one.search.front) > 1:
            sections.append(_front(one.search, title))
    assumed = dict.fromkeys(words for one in cases for words in one.found.assumed)
    if assumed:
        rows = "".join(f"<li>{escaped(words)}</li>" for words in assumed)
        sections.append(section("Assumed", "Energies that neither the design nor a table states.", f"<ul>{rows}</ul>"))
    title = f"{names} on {first.design.name}"
    return document("TrioSim accelerator", title, subtitle, sections, "accelerator_page.css")


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _cards(cases: Sequence[PlottedCase]) -> str:
    found = [one.found for one in cases]
    cycles, energy = sum(one.cycles for one in found), sum(one.energy_j for one in found)
    computes, instances = sum(one.computes for one in found), found[0].instances
    seconds = [one.seconds for one in found if one.seconds is not None]
    took = f"{format_time(sum(seconds))}; " if len(seconds) == len(found) else ""
    low, high = (sum(one.interval_j[end] for one in found) for end in (0, 1))
    between = f"{joules(low)} to {joules(high)}; " if any(one.assumed for one in found) else ""
    bound = ", ".join(dict.fromkeys(one.binds for one in found))
    used = computes / (cycles * instances)
    return cards_of(
        [
            ("Cycles", _count(cycles), "", escaped(f"{took}bound by {bound}")),
            (
                "Energy",
                escaped(joules(energy)),
                "",
                escaped(f"{between}{energy / computes / 1e-15:,.0f} fJ a computation"),
            ),
            (
                "Units",
                share(used),
                "of their cycles",
                escaped(f"{_count(computes)} computations on {instances:,} units"),
            ),
        ]
    )


def _layers(cases: Sequence[PlottedCase]) -> str:
    rows = [
        [one.found.problem, _count(one.found.cycles), one.found.binds, share(one.found.utilization),
         joules(one.found.energy_j), f"{one.found.energy_j / one.found.computes / 1e-15:,.0f}"] for one in cases
    ]  # fmt: skip
    head = ["problem", "cycles", "bound by", "units used", "energy", "fJ a computation"]
    return section("Problems", "One after another on the same design.", table_of(head, rows))


# --- energy -----------------------------------------------------------------------------------------------------------


def _energy(one: PlottedCase, title: str) -> str:
    """Bars of the levels, of the tensors in them."""
    found = one.found
    colours = _tensors(one.problem)
    leakage = dict(found.leakage_j)
    rows: list[tuple[str, list[tuple[str, str, float]]]] = []
    for level in found.levels:
        if level == "compute":
            rows.append((level, [(*COMPUTE, found.compute_j)]))
            continue
        parts = [(a.tensor, colours[a.tensor], a.energy_j) for a in found.accesses if a.store == level]
        rows.append((level, [*parts, (*LEAKAGE, leakage.get(level, 0.0))]))
    most, total = max(sum(part[2] for part in parts) for _, parts in rows) or 1.0, found.energy_j or 1.0
    lines = []
    for level, parts in rows:
        value = sum(part[2] for part in parts)
        bars = "".join(
            f'<i style="background:{colour};width:{100 * part / most:.3f}%" '
            f'title="{escaped(f"{name}: {joules(part)}")}"></i>'
            for name, colour, part in parts
            if part > 0
        )
        lines.append(
            f'<div class="bar-row"><div class="who">{escaped(level)}<small>{share(value / total)}</small></div>'
            f'<div class="stack">{bars}</div><div class="sum">{escaped(joules(value))}</div></div>'
        )
    used = [(name, colour) for name, colour in colours.items()]
    used += [LEAKAGE] if any(leakage.values()) else []
    tensors = {name: sum(a.energy_j for a in found.accesses if a.tensor == name) for name in colours}
    beside = "; ".join(f"{name} {joules(value)}" for name, value in tensors.items())
    lead = f"Joules of all instances, by store and tensor. In all stores: {beside}."
    bars = f'<div class="who-wide">{"".join(lines)}</div>'
    return section(f"{title}Energy by level and tensor", lead, legend_of([*used, COMPUTE]), bars, _accesses(found))


def _accesses(found: Evaluation) -> str:
    rows = [
        [a.store, a.tensor, *map(_count, (a.tile, a.instances, a.reads, a.fills, a.updates)), joules(a.energy_j)]
        for a in found.accesses
    ]
    head = ["level", "tensor", "tile, words", "instances", "reads", "fills", "updates", "energy of all"]
    return "<h3>Words that one instance moves</h3>" + table_of(head, rows)


def _tensors(problem: Problem) -> dict[str, str]:
    """Colours of the tensors of a problem."""
    return {tensor.name: _COLOURS[place % len(_COLOURS)] for place, tensor in enumerate(problem.tensors)}


# --- loops ------------------------------------------------------------------------------------------------------------


def _nest(one: PlottedCase, title: str) -> str:
    """Boxes of the stores in each other, with their loops."""
    keeps = keeps_of(one.design, one.problem, one.found.mapping)
    tiles = {(a.store, a.tensor): a.tile for a in one.found.accesses}
    html, open_boxes = [], 0
    for place, node in enumerate(one.design.nodes):
        if isinstance(node, Store):
            held = ", ".join(f"{_count(tiles[node.name, name])} of {name}" for name in keeps[node.name])
            colour = _COLOURS[place % len(_COLOURS)]
            html.append(
                f'<div class="level" style="border-color:{colour}"><b>{escaped(node.name)}</b> '
                f"<small>{escaped(f'words kept: {held}' if held else 'keeps nothing')}</small>"
            )
            open_boxes += 1
        for loop in one.found.mapping.level(node.name).loops:
            if loop.count > 1:
                words = f"for {loop.dimension} in {loop.count}"
                if isinstance(node, FanOut):
                    words = f"parallel {loop.dimension} in {loop.count} along {loop.axis.upper()} of {node.name}"
                kind = "loop parallel" if loop.axis else "loop"
                html.append(f'<div class="{kind}">{escaped(words)}</div>')
    html.append(f'<div class="loop"><b>{escaped(one.design.compute.name)}</b></div>' + "</div>" * open_boxes)
    lead = "From the outside in: what each store keeps, and the loops that bring it, in time or over copies."
    return section(f"{title}Loop nest", lead, f'<div class="nest">{"".join(html)}</div>')


# --- roofline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RooflineSlope:
    """A store's slope and the mappings under it.

    Attributes:
        name: of the store.
        words_per_cycle: that all its used instances move at most, reading or writing; infinite where nobody says.
        points: of each case computations for each word that they move, and its number.
    """

    name: str
    words_per_cycle: float
    points: tuple[tuple[float, int], ...]


def roofs(cases: Sequence[PlottedCase]) -> list[RooflineSlope]:
    """Slopes of the stores whose bandwidth is known, by the port that is busier; of the outermost in any case."""
    found = []
    for place, store in enumerate(cases[0].design.stores):
        points, rates = [], []
        for number, one in enumerate(cases):
            moved = [a for a in one.found.accesses if a.store == store.name]
            if not moved:
                continue
            reads = sum(a.reads for a in moved) * moved[0].instances
            writes = sum(a.fills + a.updates for a in moved) * moved[0].instances
            ports = [
                (words / rate, words, rate * moved[0].instances) for words, rate in
                ((reads, store.read_bandwidth), (writes, store.write_bandwidth)) if rate is not None and words
            ]  # fmt: skip
            if not ports and place == 0 and reads + writes:
                ports = [(0.0, reads + writes, math.inf)]
            if ports:
                _, words, rate = max(ports)
                points.append((one.found.computes / words, number))
                rates.append(rate)
        if points:
            found.append(RooflineSlope(store.name, max(rates), tuple(points)))
    return found


def _rooflines(cases: Sequence[PlottedCase]) -> str:
    """The units' roof, a slope for each store, and the mappings."""
    slopes = roofs(cases)
    peak = float(cases[0].found.instances)
    heights = [one.found.computes / one.found.cycles for one in cases]
    limited = [slope for slope in slopes if slope.words_per_cycle < math.inf]
    xs = [x for slope in slopes for x, _ in slope.points] + [peak / slope.words_per_cycle for slope in limited]
    lead = "Computations in a cycle over those for each word that a store moves; a point on a line is bound by it."
    if not limited:
        lead += " No store of the design has a stated bandwidth: nothing but its units can bind."
    axes = _LogAxes((min(xs) / 3, max(xs) * 3), (min(heights) / 3, peak * 2), ("computations a word", "a cycle"))
    axes.line([(axes.x_span[0], peak), (axes.x_span[1], peak)], "var(--host)", f"{_count(peak)} units")
    for place, slope in enumerate(slopes):
        colour, knee = _COLOURS[place % len(_COLOURS)], peak / slope.words_per_cycle
        if slope in limited:
            words = f"{slope.name}: {slope.words_per_cycle:g} words a cycle"
            low = max(axes.x_span[0], axes.y_span[0] / slope.words_per_cycle)
            axes.line([(low, low * slope.words_per_cycle), (knee, peak)], colour, words)
        for x, number in slope.points:
            axes.point(x, heights[number], colour, f"{cases[number].found.problem} at {slope.name}: {x:.3g} a word")
    legend = legend_of([
        ("units", "var(--host)"), *((slope.name, _COLOURS[p % len(_COLOURS)]) for p, slope in enumerate(slopes)),
    ])  # fmt: skip
    return section("Roofline", lead, legend, f'<div class="two">{axes}{_binding(cases[0].found)}</div>')


def _binding(found: Evaluation) -> str:
    """Cycles that the units and each port would take alone, of the first problem."""
    rows = cycles_alone(found)
    most = max(value for _, value in rows) or 1.0
    bars = "".join(
        f'<div class="bar-row"><div class="who">{escaped(name)}</div><div class="stack"><i style="background:'
        f'var(--forward);width:{100 * value / most:.3f}%"></i></div><div class="sum">{_count(value)}</div></div>'
        for name, value in rows
    )
    return f'<div class="who-wide"><h3>Cycles of {escaped(found.problem)} if nothing else took time</h3>{bars}</div>'


def _front(search: Search, title: str) -> str:
    """Mappings that no other beats in both."""
    points = sorted((point.cycles, point.energy_j) for point in search.front)
    spans = [(min(values) / 1.1, max(values) * 1.1) for values in zip(*points, strict=True)]
    axes = _LogAxes(spans[0], spans[1], ("cycles", "energy"), joules)
    steps = [points[0]]
    for x, y in points[1:]:
        steps += [(x, steps[-1][1]), (x, y)]
    axes.line(steps, "var(--accent)", "")
    for x, y in points:
        axes.point(x, y, "var(--accent)", f"{_count(x)} cycles, {joules(y)}")
    lead = f"{len(points)} of {search.evaluated:,} mappings that fit: no other is better in both."
    return section(f"{title}Cycles and energy", lead, f'<div class="two">{axes}</div>')


class _LogAxes:
    """A picture with logarithmic axes."""

    def __init__(
        self,
        x_span: tuple[float, float],
        y_span: tuple[float, float],
        names: tuple[str, str],
        words: Callable[[float], str] = _count,
    ) -> None:
        self.x_span, self.y_span = x_span, y_span
        self.out = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
        for value in _marks(*x_span):
            x = self.at(value, y_span[0])[0]
            self.out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_EDGE}" y2="{_HEIGHT - _BELOW}"/>')
            said = f"{value:,.4g}" if value < 1e5 else f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
            self.out.append(f'<text class="middle" x="{x:.1f}" y="{_HEIGHT - _BELOW + 16}">{said}</text>')
        for value in _marks(*y_span):
            y = self.at(x_span[0], value)[1]
            self.out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.out.append(f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{escaped(words(value))}</text>')
        self.out.append(f'<text class="end strong" x="{_WIDTH - _EDGE}" y="{_HEIGHT - 6}">{escaped(names[0])}</text>')
        self.out.append(f'<text class="strong" x="4" y="{_EDGE - 2}">{escaped(names[1])}</text>')

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn."""
        parts = [
            (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
            for value, (low, high) in ((x, self.x_span), (y, self.y_span))
        ]
        return _LEFT + parts[0] * (_WIDTH - _LEFT - _EDGE), _HEIGHT - _BELOW - parts[1] * (_HEIGHT - _BELOW - _EDGE)

    def line(self, points: Iterable[tuple[float, float]], colour: str, words: str) -> None:
        """Through points."""
        drawn = " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        title = f"<title>{escaped(words)}</title>"
        self.out.append(f'<polyline class="roof" stroke="{colour}" points="{drawn}">{title}</polyline>')

    def point(self, x: float, y: float, colour: str, words: str) -> None:
        """A disc that says more where one points at it."""
        left, top = self.at(x, y)
        self.out.append(
            f'<circle class="point" cx="{left:.1f}" cy="{top:.1f}" r="5" fill="{colour}">'
            f"<title>{escaped(words)}</title></circle>"
        )

    def __str__(self) -> str:
        return "".join([*self.out, "</svg>"])


def _marks(low: float, high: float) -> list[float]:
    """Round values between two, at most eight; of a span too narrow for two of 1, 2 and 5 evenly spaced ones."""
    decades = math.log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    every = 1 if decades < 8 else math.ceil(decades / 8)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, every)
    found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
    if len(found) > 1:
        return found
    power = math.floor(math.log10((high - low) / 2))
    step = max(one * 10.0**power for one in (1.0, 2.0, 5.0) if one * 10.0**power <= (high - low) / 2)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
