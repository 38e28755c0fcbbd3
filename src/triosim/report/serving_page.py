"""One HTML page of a fleet under traffic that opens offline: latencies, and requests, replicas and caches over time.

It looks as the page of a prediction (``page.css``) and needs no script: figures are drawn as SVG, and say more where
one points at them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.outputs import text_output
from triosim.core.units import format_share, format_time
from triosim.report.over_time import mean_value, most_value, share_of_time
from triosim.report.serving import figures_in_words, requests_in_words, titles
from triosim.report.serving_tracks import KINDS, replica_names
from triosim.report.static_page import (
    cards_of,
    document,
    escaped,
    legend_of,
    picture_of,
    round_values,
    section,
    table_of,
)
from triosim.serving.deployment import ServingResult
from triosim.serving.metrics import QUANTILES
from triosim.serving.request_phases import AWAY, DECODE, PHASES, PREFILL, QUEUED, TRANSFER, phases, standing

BINS = 240
"""Equal parts of the time in a curve."""
REPLICAS = 16
"""Replicas drawn."""
LIVES = 120
"""Requests whose lives are drawn."""
SHORT_LIFE, FEWEST_LIVES = 1 / 30, 24
"""Part of a picture below which a mean life is hardly seen: neighbours are drawn then, those that arrive within thirty
lives, but at least so many."""

_WIDTH, _LEFT, _RIGHT = 1120, 64, 12
_COLOURS = {
    QUEUED: "var(--host)", PREFILL: "var(--tensor-parallel)", TRANSFER: "var(--stage-to-stage)",
    DECODE: "var(--forward)", AWAY: "var(--bad)",
}  # fmt: skip
_STEPS = ("var(--forward)", "var(--tensor-parallel)", "var(--optimizer)")
"""Of steps, in the order of :data:`KINDS`."""

Words = Callable[[float], str]


def write(result: ServingResult, path: str | os.PathLike[str]) -> None:
    """Write the page of a recorded run.

    Raises:
        InputError: the file cannot be written.
    """
    page = render(result)
    with text_output(path) as out:
        out.write(page)


def render(result: ServingResult) -> str:
    """The page as text."""
    assert result.record is not None
    own = result.deployment
    models = ", ".join(dict.fromkeys(pool.model for pool in own.pools))
    subtitle = "; ".join(
        f"{pool.name + ': ' if pool.name else ''}{pool.replicas} x {pool.size} {pool.system.model(pool.first).name}, "
        f"{pool.engine}, {pool.weights} weights" for pool in own.pools
    )  # fmt: skip
    took = format_time(result.metrics.duration_s)
    subtitle += f". {requests_in_words(len(result.served.requests))} in {took}, warm-up and drain included."
    parts = (_cards, _latencies, _standing, _replicas, _caches, _lives, _words)
    return document("TrioSim serving", models, subtitle, [part(result) for part in parts], "serving_page.css")


# --- figures ----------------------------------------------------------------------------------------------------------


def _cards(result: ServingResult) -> str:
    found, figures = result.metrics, result.metrics.figures
    cards = []
    for name in ("ttft", "tpot", "e2e"):
        one = found.distributions[name]
        ends = result.intervals.get(f"{name}.mean")
        unsure = f'<span class="unsure">90 % of the mean: {" to ".join(map(format_time, ends))}</span>' if ends else ""
        if one.count:
            p99 = one.quantiles[QUANTILES.index(0.99)]
            cards.append(
                (titles(result)[name], format_time(one.mean), "mean", f"99 % within {format_time(p99)}{unsure}")
            )
    rate = f"{figures['requests_per_s'] or 0:.4g}"
    if result.deployment.makes_images:
        steps = f"{figures['output_tokens_per_s'] or 0:.4g} denoising steps of an image/s"
        cards.append(("Throughput", rate, "images/s", steps))
    else:
        tokens = f"{figures['output_tokens_per_s'] or 0:,.0f}"
        cards.append(("Throughput", tokens, "output tokens/s", f"{rate} requests/s"))
    if found.goals:
        met = sum(kept for _, _, kept in found.goals)
        words = "; ".join(f"{goal}: {format_time(reached)}" for goal, reached, _ in found.goals)
        colour = "good" if met == len(found.goals) else "bad"
        share = format_share(figures["good_share"] or 0)
        big = f'<span class="{colour}">{met} of {len(found.goals)}</span>'
        cards.append(("Goals", big, "met", f"{escaped(words)}; {share} of the requests keep them"))
    busy = format_share(figures["utilisation"] or 0)
    cards.append(("Devices", busy, "of the time busy", f"{figures['steps']:,} steps"))
    if result.deployment.makes_images:
        if (each := result.dollars_per_request) is not None:
            cards.append(("Cost", f"${1000 * each:.4g}", "a thousand images", "rent of the devices"))
    elif result.dollars_per_million_tokens is not None:
        cards.append(("Cost", f"${result.dollars_per_million_tokens:.4g}", "a million tokens", "prompts and outputs"))
    if (used := result.energy) is not None:
        words = f"an output token, hosts included; a device draws {used.mean_w:.0f} W"
        cards.append(("Energy", f"{used.per_token_j:.3g}", "J", words))
    return cards_of(cards)


def _latencies(result: ServingResult) -> str:
    """A table of all, and how many requests are within a time."""
    found = result.metrics
    head = ["", "mean", *([] if not result.intervals else ["90 % of the mean"]), *(f"p{100 * q:g}" for q in QUANTILES)]
    rows = []
    for name, one in found.distributions.items():
        if not one.count:
            continue
        ends = result.intervals.get(f"{name}.mean")
        between = [] if not result.intervals else [" to ".join(map(format_time, ends)) if ends else ""]
        rows.append(
            [titles(result)[name], format_time(one.mean), *between, *map(format_time, (*one.quantiles, one.most))]
        )
    charts = []
    for name in ("ttft", "tpot", "e2e"):
        values = np.sort(found.seconds(name))
        if len(values):
            goals = [(str(goal), goal.limit_s) for goal, _, _ in found.goals if goal.metric == name]
            charts.append(f"<div><h3>{titles(result)[name]}</h3>{_cumulative(values, goals)}</div>")
    lead = "How long requests took, and which part of them was within a time."
    return section("Latencies", lead, table_of([*head, "max"], rows), f'<div class="three">{"".join(charts)}</div>')


def _words(result: ServingResult) -> str:
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td>{escaped(words)}</td></tr>" for name, words in figures_in_words(result)
    )
    return f'<section><h2>What was used</h2><div class="scroll"><table class="words">{rows}</table></div></section>'


# --- drawn ------------------------------------------------------------------------------------------------------------


def _cumulative(values: NDArray[np.float64], goals: Sequence[tuple[str, float]]) -> str:
    """Part of the requests within a time, up to the longest."""
    width, height, left = 360, 150, 36
    most = max(float(values[-1]), *(limit for _, limit in goals if limit < 1.5 * values[-1]), 0.0) or 1.0
    share = np.linspace(0, 1, min(len(values), 200) + 1)
    at = np.concatenate([values[:1], np.quantile(values, share[1:])]) if len(values) > 1 else np.repeat(values, 2)
    share = share if len(values) > 1 else np.array([0.0, 1.0])

    def x(value: float) -> float:
        return left + value / most * (width - left - 8)

    def y(part: float) -> float:
        return height - 24 - part * (height - 34)

    out = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="part of the requests within a time">']
    for part in (0.0, 0.5, 1.0):
        out.append(f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{y(part):.1f}" y2="{y(part):.1f}"/>')
        out.append(f'<text class="end" x="{left - 5}" y="{y(part) + 4:.1f}">{100 * part:g} %</text>')
    for time in round_values(0.0, most, 4):
        kind = _anchor(time / most)
        out.append(
            f'<text class="{kind}" x="{x(time):.1f}" y="{height - 6}">{format_time(time) if time else "0"}</text>'
        )
    points = " ".join(f"{x(float(a)):.1f},{y(float(b)):.1f}" for a, b in zip(at, share, strict=True))
    out.append(f'<polyline class="curve" stroke="var(--accent)" points="{points}"/>')
    for words, limit in goals:
        if limit <= most:
            out.append(
                f'<line class="goal" x1="{x(limit):.1f}" x2="{x(limit):.1f}" y1="{y(1):.1f}" y2="{y(0):.1f}">'
                f"<title>{escaped(words)}</title></line>"
            )
    return "".join(out) + "</svg>"


def _anchor(place: float) -> str:
    """How words under an axis stand to a part of it: within the picture at its ends."""
    return "end" if place > 0.97 else "middle" if place > 0.03 else ""


class _Axes:
    """A picture over time: its scales, and the lines behind it."""

    def __init__(self, seconds: float, height: int, left: int = _LEFT, since: float = 0.0) -> None:
        self.seconds, self.height, self.left, self.since = seconds, height, left, since
        self.edges = np.linspace(0.0, seconds * 1e12, BINS + 1)
        self.out = [f'<svg viewBox="0 0 {_WIDTH} {height + 22}">']

    def x(self, seconds: float) -> float:
        return self.left + (seconds - self.since) / self.seconds * (_WIDTH - self.left - _RIGHT)

    def time(self) -> None:
        for at in round_values(self.since, self.since + self.seconds, 8):
            kind = _anchor((at - self.since) / self.seconds)
            words = format_time(at) if at else "0"
            self.out.append(
                f'<line class="grid" x1="{self.x(at):.1f}" x2="{self.x(at):.1f}" y1="0" y2="{self.height}"/>'
            )
            self.out.append(f'<text class="{kind}" x="{self.x(at):.1f}" y="{self.height + 16}">{words}</text>')

    def levels(self, most: float, words: Words) -> None:
        for value in round_values(0.0, most, 4):
            y = self.height * (1 - value / most)
            self.out.append(f'<line class="grid" x1="{self.left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.out.append(f'<text class="end" x="{self.left - 6}" y="{max(y, 8) + 4:.1f}">{words(value)}</text>')

    def area(self, low: NDArray[np.float64], high: NDArray[np.float64], most: float, colour: str) -> None:
        """Between two curves of steps."""
        xs = np.repeat([self.x(edge / 1e12) for edge in self.edges], 2)[1:-1]

        def ys(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.repeat(self.height * (1 - values / most), 2)

        there = [f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys(high), strict=True)]
        back = [f"{x:.1f},{y:.1f}" for x, y in zip(xs[::-1], ys(low)[::-1], strict=True)]
        self.out.append(f'<polygon fill="{colour}" points="{" ".join((*there, *back))}"/>')

    def reads(self, words: Sequence[str]) -> None:
        """What each part of the time says when one points at it."""
        wide = (_WIDTH - self.left - _RIGHT) / BINS
        for place, said in enumerate(words):
            self.out.append(
                f'<rect class="reads" x="{self.left + place * wide:.2f}" y="0" width="{wide:.2f}" '
                f'height="{self.height}"><title>{escaped(said)}</title></rect>'
            )

    def when(self, place: int) -> str:
        return f"{format_time(float(self.edges[place]) / 1e12) if place else '0'}: "

    def __str__(self) -> str:
        return "".join(self.out) + "</svg>"


def _standing(result: ServingResult) -> str:
    """Requests in each phase, one upon the other."""
    assert result.record is not None
    axes = _Axes(result.metrics.duration_s, 190)
    first = int(result.served.arrived.min())
    there = standing(result.served, result.record)
    curves = {name: mean_value(time - first, value, axes.edges) for name, (time, value) in there.items()}
    order = [name for name in (PHASES[DECODE], PHASES[TRANSFER], PHASES[PREFILL], PHASES[AWAY], PHASES[QUEUED])
             if name in curves]  # fmt: skip
    most = max(float(sum(curves.values(), np.zeros(BINS)).max()), 1e-9)
    axes.levels(most, lambda value: f"{value:.3g}")
    axes.time()
    low = np.zeros(BINS)
    for name in order:
        axes.area(low, low + curves[name], most, _COLOURS[PHASES.index(name)])
        low = low + curves[name]
    axes.reads([
        axes.when(place) + ", ".join(f"{curves[name][place]:.3g} {name}" for name in order) for place in range(BINS)
    ])  # fmt: skip
    legend = legend_of((name, _COLOURS[PHASES.index(name)]) for name in reversed(order))
    return section(
        "Requests in the system",
        "Requests that are there, by what they are doing.",
        legend,
        picture_of("Requests in the system", str(axes)),
    )


def _left_out(result: ServingResult) -> str:
    count = result.deployment.replicas
    return f" Shown: the first {REPLICAS} of {count} replicas." if count > REPLICAS else ""


def _replicas(result: ServingResult) -> str:
    """A strip for each, of what its steps compute."""
    assert result.record is not None
    steps, first = result.record.steps, int(result.served.arrived.min())
    names = replica_names(result)[:REPLICAS]
    row, gap = 26, 6
    left = 24 + max(map(len, names)) * 7
    axes = _Axes(result.metrics.duration_s, len(names) * (row + gap), left)
    kind = np.where(steps.prompts == 0, 0, np.where(steps.decodes == 0, 1, 2))
    axes.time()
    for replica, name in enumerate(names):
        mine = steps.replica == replica
        stages = int(steps.stage[mine].max(initial=0)) + 1
        shares = np.zeros((len(KINDS), BINS))
        for stage in range(stages):
            for which in range(len(KINDS)):
                at = mine & (kind == which) & (steps.stage == stage)
                shares[which] += share_of_time(steps.begin[at] - first, steps.end[at] - first, axes.edges) / stages
        top = replica * (row + gap)
        wide = (_WIDTH - left - _RIGHT) / BINS
        axes.out.append(
            f'<rect class="row" x="{left}" y="{top}" width="{_WIDTH - left - _RIGHT}" height="{row}" rx="3"/>'
        )
        axes.out.append(f'<text class="end" x="{left - 8}" y="{top + 17}">{escaped(name)}</text>')
        for place in range(BINS):
            base = float(top + row)
            said = ", ".join(f"{format_share(shares[k, place])} {KINDS[k]}" for k in range(3) if shares[k, place] > 0)
            for which in range(len(KINDS)):
                high = float(shares[which, place]) * row
                if high > 0.05:
                    base -= high
                    axes.out.append(
                        f'<rect x="{left + place * wide:.2f}" y="{base:.1f}" width="{wide + 0.3:.2f}" '
                        f'height="{high:.1f}" fill="{_STEPS[which]}"/>'
                    )
            axes.out.append(
                f'<rect class="reads" x="{left + place * wide:.2f}" y="{top}" width="{wide:.2f}" height="{row}">'
                f"<title>{escaped(axes.when(place) + (said or 'idle'))}</title></rect>"
            )
    lead = "Part of the time in which a replica computes, and what its steps hold." + _left_out(result)
    legend = legend_of([*zip(KINDS, _STEPS, strict=True), ("idle", "var(--idle)")])
    return section("Replicas", lead, legend, picture_of("Replicas", str(axes)))


def _caches(result: ServingResult) -> str:
    """Blocks in use, as parts of each replica's cache."""
    assert result.record is not None
    record, first = result.record, int(result.served.arrived.min())
    axes = _Axes(result.metrics.duration_s, 150)
    names = replica_names(result)[:REPLICAS]
    blocks = result.served.blocks
    curves = []
    for replica in range(len(names)):
        at = record.kv_replica == replica
        used = most_value(record.kv_time[at] - first, record.kv_blocks[at], axes.edges)
        curves.append(used / int(blocks[replica]))
    most = max(float(np.max(curves)), 1e-9)
    axes.levels(most, lambda part: f"{100 * part:.3g} %")
    axes.time()
    for used in curves:
        points = []
        for place in range(BINS):
            y = axes.height * (1 - used[place] / most)
            points += [f"{axes.x(edge / 1e12):.1f},{y:.1f}" for edge in axes.edges[place : place + 2].tolist()]
        thin = max(0.35, 1 / len(curves) ** 0.5)
        axes.out.append(
            f'<polyline class="curve" stroke="var(--optimizer)" stroke-opacity="{thin:.2f}" '
            f'points="{" ".join(points)}"/>'
        )
    held = np.array(curves)
    said = [f"{format_share(low)} to {format_share(high)}" if len(curves) > 1 else format_share(high)
            for low, high in zip(held.min(0).tolist(), held.max(0).tolist(), strict=True)]  # fmt: skip
    axes.reads([axes.when(place) + words for place, words in enumerate(said)])
    lead = (
        f"Blocks that requests hold, the most within each part of the time, of {int(blocks.min()):,} a replica"
        f"{'' if blocks.min() == blocks.max() else ' or more'}; one line a replica." + _left_out(result)
    )
    return section("KV cache in use", lead, picture_of("KV cache in use", str(axes)))


def _lives(result: ServingResult) -> str:
    """Requests as bars of their phases: evenly chosen among all, or neighbours where lives are short."""
    assert result.record is not None
    served = result.served
    count, first = len(served.arrived), int(served.arrived.min())
    order = np.argsort(served.arrived, kind="stable")
    since, until = 0.0, result.metrics.duration_s
    some = "Every request"
    lives = float((served.finished - served.arrived).mean()) / 1e12 / until
    if count > LIVES and lives < SHORT_LIFE:
        drawn = min(max(round(count * lives / SHORT_LIFE), FEWEST_LIVES), LIVES)
        chosen = order[(count - drawn) // 2 :][:drawn]
        since = int(served.arrived[chosen].min() - first) / 1e12
        until = int(served.finished[chosen].max() - first) / 1e12
        some = f"{drawn} of {count:,} requests, one after the other in the middle of the run"
    else:
        chosen = order[np.linspace(0, count - 1, min(count, LIVES)).round().astype(np.int64)]
        if count > LIVES:
            some = f"{LIVES} of {count:,} requests, evenly chosen"
    life = phases(served, result.record)
    row = 7
    axes = _Axes(until - since, len(chosen) * row, since=since)
    axes.time()
    starts = np.searchsorted(life.row, [chosen, chosen + 1])
    used: set[int] = set()
    for place, request in enumerate(chosen.tolist()):
        bars, words = [], []
        for at in range(int(starts[0][place]), int(starts[1][place])):
            phase, begin, end = int(life.phase[at]), int(life.begin[at]) - first, int(life.end[at]) - first
            left, right = axes.x(begin / 1e12), axes.x(end / 1e12)
            used.add(phase)
            bars.append(
                f'<rect x="{left:.2f}" y="{place * row + 1}" width="{max(right - left, 0.4):.2f}" height="{row - 2}" '
                f'fill="{_COLOURS[phase]}"/>'
            )
            words.append(f"{life.names[phase]} {format_time((end - begin) / 1e12)}")
        table = served.requests
        said = f"request {request}, {table.prompt[request]:,} + {table.output[request]:,} tokens: {', '.join(words)}"
        axes.out.append(f"<g><title>{escaped(said)}</title>{''.join(bars)}</g>")
    legend = legend_of((PHASES[phase], _COLOURS[phase]) for phase in sorted(used))
    return section(
        "Life of requests", f"{some}, in order of arrival.", legend, picture_of("Life of requests", str(axes))
    )
