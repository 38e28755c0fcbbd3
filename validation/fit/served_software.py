"""How much serving differs with what the name of an engine does not tell.

    python -m validation.fit.served_software [--write]

What a source measured over what was predicted of it, the median of its even rows, is one draw of what an engine's name
leaves untold.  Of sources that nobody had looked at (rows 155 and on of ``validation/data/served.csv``) predictions are
the first ones, before anything was mended in view of them: their median absolute deviation, less what the intervals of
that time said, is the spread of an engine that no source ran.  An engine's own is drawn from that and from its sources,
those before row 155 as they are predicted now, as those of training stacks are (:mod:`validation.fit.software`).

Rows whose requests come at a rate are left out: near saturation their times say how far from it the server was.
What a source's server takes around its engine is by how much first tokens came later than its steps alone made them;
half a normal distribution is taken of it.  The last lines leave each source out of what is found and widen its own
first intervals by the rest, first tokens' upper ends alone by what servers take.  Written to
``src/triosim/serving/data/software.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from validation.data.served import ServedRow, read
from validation.fit.software import Between, SourceError, of_stacks
from validation.judge.served import engine_of, predicted

import triosim.serving
from triosim.core.errors import InputError
from triosim.kernels.estimate import Z90
from triosim.serving.software import SCHEMA

TARGET = Path(triosim.serving.__file__).parent / "data" / "software.json"
KINDS = {"ttft_ms": "first", "tpot_ms": "steps", "itl_ms": "steps", "latency_s": "steps", "rate": "steps"}
"""What each measured figure says."""
LAST = 286
"""The last row whose first interval did not have what is found here."""
NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal variable."""


class Error(NamedTuple):
    """One measured figure of a row.

    Attributes:
        row: whose.
        kind: ``steps`` or ``first``.
        predicted_s: a first token; 0 of what says something of steps.
        log: of how many times as long as predicted.
        known: half-width of the interval of that time, a logarithm; not a number where nobody asked.
    """

    row: ServedRow
    kind: str
    predicted_s: float
    log: float
    known: float


def errors(rows: Iterable[ServedRow]) -> list[Error]:
    """Of first predictions where a row has one, else as it is predicted now."""
    found = []
    for row in rows:
        if row.number > LAST or row.arrivals.startswith("poisson") or (row.first == {} and row.number % 2):
            continue
        try:
            values = row.first or predicted(row)
        except InputError:
            continue
        for name, kind in KINDS.items():
            if name in row.measured:
                value, low, high = values[name]
                log = math.log(row.measured[name] / value) * (-1 if name == "rate" else 1)
                known = math.log(high / low) / 2 if row.first and high == high else math.nan
                found.append(Error(row, kind, value / 1e3 if kind == "first" else 0.0, log, known))
    return found


def of_engines(found: Iterable[Error]) -> dict[str, dict[str, float]]:
    """Half-widths by engine, ``""`` for one that no source ran, from even rows."""
    out: dict[str, dict[str, float]] = defaultdict(dict)
    sources: dict[tuple[str, str], list[Error]] = defaultdict(list)
    for one in found:
        if one.row.number % 2 == 0:
            sources[one.row.source, engine_of(one.row)].append(one)
    known = float(np.nanmedian([one.known for own in sources.values() for one in own if one.kind == "steps"])) / Z90
    for kind, of_source in (("steps", partial(_steps, usual=known)), ("front", _front)):
        every = {key: of_source(key[1], own) for key, own in sources.items()}
        blind = [error for key, error in every.items() if error and all(one.row.first for one in sources[key])]
        usual = _unseen(blind)
        out[""][kind] = Z90 * usual
        for engine, (deviation, _) in of_stacks([one for one in every.values() if one], Between(0.0, usual)).items():
            out[engine][kind] = Z90 * deviation
    return {engine: {**out[""], **spreads} for engine, spreads in sorted(out.items())}


def _unseen(blind: list[SourceError]) -> float:
    """Standard deviation of sources about what is predicted of them, less what was known."""
    whole = float(np.median([abs(one.log) for one in blind])) / NORMAL_MEDIAN
    return math.sqrt(max(whole**2 - float(np.median([one.known for one in blind])) ** 2, 0.0))


def _steps(engine: str, own: list[Error], usual: float) -> SourceError | None:
    """How much longer the steps of a source are than predicted."""
    steps = [one for one in own if one.kind == "steps"]
    if not steps:
        return None
    known = [one.known for one in steps if not math.isnan(one.known)]
    return SourceError(
        engine, float(np.median([one.log for one in steps])), float(np.median(known)) / Z90 if known else usual
    )


def _front(engine: str, own: list[Error]) -> SourceError | None:
    """Seconds that a source's server takes around its engine beyond what is taken of it."""
    first = [one for one in own if one.kind == "first"]
    if not first:
        return None
    steps = [one.log for one in own if one.kind == "steps"]
    longer = math.exp(float(np.median(steps))) if steps else 1.0
    beside = float(np.median([one.predicted_s * (math.exp(one.log) - longer) for one in first]))
    return SourceError(engine, max(beside, 0.0), 0.0)


def covered(found: list[Error]) -> Mapping[str, list[tuple[bool, bool]]]:
    """Whether first intervals hold what was measured, and whether they do when they are widened by the spread that
    other sources tell, by kind."""
    out: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for source in sorted({one.row.source for one in found if not math.isnan(one.known)}):
        engines = of_engines([one for one in found if one.row.source != source])
        for one in found:
            if one.row.source == source and not math.isnan(one.known):
                spread = engines.get(engine_of(one.row), engines[""])
                width = math.hypot(one.known, spread["steps"])
                later = math.log1p(spread["front"] / one.predicted_s) if one.kind == "first" else 0.0
                held = -width <= one.log <= math.hypot(width, later)
                out[one.kind].append((abs(one.log) <= one.known, held))
    return out


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    options = parser.parse_args()
    found = errors(read())
    engines = of_engines(found)
    for engine, spreads in engines.items():
        print(f"{engine or '(no source)':12} 90 % of steps within a factor {math.exp(spreads['steps']):.2f}, ", end="")
        print(f"servers take up to {spreads['front']:.3f} s around an engine beyond what is taken")
    for kind, within in covered(found).items():
        before, after = (np.mean([one[place] for one in within]) for place in (0, 1))
        print(
            f"{kind}: first intervals held {before:.0%} of {len(within)}, with the spread of other sources {after:.0%}"
        )
    if options.write:
        rounded = {engine: {kind: float(f"{s:.3g}") for kind, s in own.items()} for engine, own in engines.items()}
        document = {"schema": SCHEMA, "script": "validation/fit/served_software.py", "level": 0.9, "engines": rounded}
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
