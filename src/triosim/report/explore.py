"""What was explored: on the terminal, as JSON, as CSV, and as a picture of costs and their front."""

from __future__ import annotations

import csv
import io
import math
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console

from triosim.core.errors import printable
from triosim.explore.exploration import Exploration, ExplorationResult, Trial
from triosim.explore.surrogate import HeldOut, Surrogate
from triosim.prediction.result.words import share
from triosim.report.accelerator import joules
from triosim.report.table import Column, TextTable, paragraph

UNITS = {"cycles": "", "energy": "J", "units": ""}
"""Of the objectives, in CSV's and pictures' heads."""


def _cost(name: str, value: float) -> str:
    return joules(value) if name == "energy" else f"{value:,.0f}"


def explored(
    found: ExplorationResult, what: Exploration, searcher: str, budget: int, surrogate: Surrogate | None,
    console: Console,
) -> None:  # fmt: skip
    """The front, and how wrong a surrogate is."""
    run = sum(trial.costs is not None for trial in found.trials)
    ended = "" if found.finished else ", interrupted"
    if found.finished and len(found.trials) < min(budget, what.space.size):
        ended = f", and then {searcher} asked for none that is new (another --searcher or --seed may)"
    line = f"explored     {len(found.trials):,} of {what.space.size:,} points by {searcher}, {run:,} can be run{ended}"
    paragraph(console, line, indent=13)
    paragraph(console, f"front        {len(found.front):,} that no other beats", indent=13)
    console.print()
    names = [choice.name for choice in what.space.choices]
    table = TextTable((
        *(Column(name, right=True) for name in what.objectives), *(Column(name, right=True) for name in names)
    ))  # fmt: skip
    for trial in found.front:
        assert trial.costs is not None
        costs = [_cost(name, value) for name, value in zip(what.objectives, trial.costs, strict=True)]
        table.add_row(*costs, *(str(value) for value in what.space.values(trial.point).values()))
    console.print(table)
    if surrogate is not None:
        console.print()
        table = TextTable((
            Column("surrogate"), Column("points", right=True),
            *(Column(f"{name}{word}", right=True) for name in what.objectives for word in ("", ", 9 of 10")),
        ))  # fmt: skip
        for where, held in (("inside the box", surrogate.inside), ("outside", surrogate.outside)):
            if held is not None:
                errors = [one for pair in zip(held.mean, held.most, strict=True) for one in pair]
                table.add_row(where, f"{held.points:,}", *(share(error) for error in errors))
        console.print(table)
        paragraph(
            console, f"mean relative error of a Gaussian process shown {surrogate.shown:,} points, on points it was "
            "not shown; against our own model of the design, not against silicon", "dim",
        )  # fmt: skip


def to_dict(
    found: ExplorationResult, what: Exploration, searcher: str, seed: int, surrogate: Surrogate | None
) -> dict[str, Any]:
    """Everything, as JSON holds it."""
    shown = None
    if surrogate is not None:
        shown = {
            "learned_from": surrogate.shown, "error_is": "against our model, on points held out",
            "inside": _held(surrogate.inside, what), "outside": _held(surrogate.outside, what),
        }  # fmt: skip
    return {
        "schema": "triosim/exploration/1", "searcher": searcher, "seed": seed, "size": what.space.size,
        "objectives": list(what.objectives), "finished": found.finished, "asked": found.asked,
        "choices": {choice.name: list(choice.values) for choice in what.space.choices},
        "front": [_row(trial, what) for trial in found.front], "trials": [_row(trial, what) for trial in found.trials],
        "surrogate": shown,
    }  # fmt: skip


def _held(held: HeldOut | None, what: Exploration) -> dict[str, Any] | None:
    if held is None:
        return None
    errors = {
        name: {"mean": mean, "nine_of_ten": most}
        for name, mean, most in zip(what.objectives, held.mean, held.most, strict=True)
    }
    return {"points": held.points, "relative_error": errors}


def _row(trial: Trial, what: Exploration) -> dict[str, Any]:
    costs = None if trial.costs is None else dict(zip(what.objectives, trial.costs, strict=True))
    return {"values": what.space.values(trial.point), "costs": costs, "why": trial.why}


def front_csv(found: ExplorationResult, what: Exploration) -> str:
    """The front as a table: costs in SI units, then what was chosen."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    heads = [f"{name}_{UNITS[name]}" if UNITS[name] else name for name in what.objectives]
    rows.writerow([*heads, *(choice.name for choice in what.space.choices)])
    for trial in found.front:
        assert trial.costs is not None
        rows.writerow([*(repr(cost) for cost in trial.costs), *what.space.values(trial.point).values()])
    return text.getvalue()


# --- picture ----------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _BELOW, _EDGE = 640, 420, 90, 50, 16


def picture(found: ExplorationResult, what: Exploration) -> str:
    """The first two costs of all points, and the front of those two as a line, on logarithmic axes, as SVG.

    With more than two costs the front is that of the first two among the points of the whole front.
    """
    points = [trial.costs for trial in found.trials if trial.costs is not None]
    best = {trial.costs for trial in found.front if trial.costs is not None}
    spans = [_span([costs[axis] for costs in points]) for axis in (0, 1)]

    def at(costs: tuple[float, ...]) -> tuple[float, float]:
        x, y = ((math.log(costs[a]) - spans[a][0]) / (spans[a][1] - spans[a][0]) for a in (0, 1))
        return _LEFT + x * (_WIDTH - _LEFT - _EDGE), _HEIGHT - _BELOW - y * (_HEIGHT - _BELOW - _EDGE)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13">', f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_LEFT} {_EDGE}V{_HEIGHT - _BELOW}H{_WIDTH - _EDGE}" fill="none" stroke="#444"/>',
    ]  # fmt: skip
    for axis, name in enumerate(what.objectives[:2]):
        for part in (0.0, 0.5, 1.0):
            value = math.exp(spans[axis][0] + part * (spans[axis][1] - spans[axis][0]))
            said = escape(printable(joules(value) if name == "energy" else f"{value:.3g}"))
            if axis == 0:
                x = _LEFT + part * (_WIDTH - _LEFT - _EDGE)
                anchor = ("start", "middle", "end")[round(2 * part)]
                lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BELOW + 18}" text-anchor="{anchor}">{said}</text>')
            else:
                y = _HEIGHT - _BELOW - part * (_HEIGHT - _BELOW - _EDGE)
                lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{said}</text>')
    lines.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{what.objectives[0]}</text>')
    lines.append(f'<text x="14" y="{_HEIGHT / 2}" transform="rotate(-90 14 {_HEIGHT / 2})" '
                 f'text-anchor="middle">{what.objectives[1]}</text>')  # fmt: skip
    for costs in dict.fromkeys(points):
        x, y = at(costs)
        fill = "#c0392b" if costs in best else "#9aa5b1"
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if costs in best else 3}" fill="{fill}"/>')
    steps = []
    lowest = math.inf
    for costs in sorted(best):
        if costs[1] < lowest:
            lowest = costs[1]
            steps.append("{:.1f} {:.1f}".format(*at(costs)))
    lines.append(f'<polyline points="{", ".join(steps)}" fill="none" stroke="#c0392b"/>')
    return "\n".join([*lines, "</svg>", ""])


def _span(values: list[float]) -> tuple[float, float]:
    """Logarithms of the least and the most, apart."""
    low, high = math.log(min(values)), math.log(max(values))
    return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)
