"""How much a training step differs with the software: between releases, stacks, and sources of one stack.

    python -m validation.fit.software --data ../shared/data/training/measured.csv [--sources N] [--write]

*Releases.*  NVIDIA's archive repeats the same cell (model, GPU, number of them, type, batch, sequence) over releases of
Megatron-Bridge.  The spread is that of the measurements of a cell about their mean, mixtures of experts and others
apart; no prediction enters.  *Stacks.*  Even rows of all other sources are predicted with their stack and without; the
spread is the 90 % quantile of the logarithm of one over the other, every source counting the same.

*Sources.*  What a source measured over what was predicted of it, the median of its even rows, is one draw of what a
stack's file leaves untold.  Of sources that nobody had looked at (P0201 and on of ``validation/data/published.csv``)
predictions are the first ones, before anything was mended in view of them.  Their middle (``shift``) and the deviation
between them are found together, so that few sources that are far off, of which there are always some, count as a
deviation and a half at most (Huber's proposal 2, with what the intervals of that time said as a variance of each source
beside the common one)::

    sum psi(z) / s = 0    sum psi(z)^2 = n E psi(Z)^2    z = (log - shift) / s    s^2 = between^2 + known^2
    psi(z) = max(-1.5, min(1.5, z))                      Z a standard normal variable

A source that was never met is a draw about a middle that is not known for certain, with a deviation that is not either:
the variances of both estimates, by the jackknife over sources, are added to ``between^2``, which gives ``unseen``.  A
stack's own spread is drawn from that (an inverse chi-square of :data:`PRIOR` degrees of freedom) and from its sources,
those of the table among them, as they are predicted now; a source further off than :data:`FURTHEST` deviations counts
as that far, and no stack has more than ``unseen``, of which its worst sources are part already.  Printed too is how
many sources the interval holds that the others give, each left out in turn.  Written to
``src/triosim/composition/software.json``.

Proposal 2: P. J. Huber, Robust Statistics (1981), chapter 6, as remembered; 1.5 is what it is mostly used with.  The
variance of each source's own is how a consensus of laboratories is found (Paule and Mandel, 1982, as remembered).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from validation.data.training import NEAREST, read
from validation.judge.training import PUBLISHED, predict

from triosim.composition import software
from triosim.core.errors import InputError
from triosim.kernels.estimate import Z90

TARGET = Path(software.__file__).with_name("software.json")
ARCHIVE = "NVIDIA Megatron-Bridge performance summary"
CELL = ("model", "gpu", "n_gpus", "precision", "global_batch", "seq_len")
LEVEL = 0.9
PRIOR, FURTHEST = 2, 3.0
ROUNDS = 30
"""Of an iteration that halves what is left each time: some nine digits."""
SETTLED = 1e-9
BEND = 1.5
"""Deviations from which on a source counts no more."""
HELD = {
    "P0346": {
        "": 0.216, "flash-attention": 0.176, "internevo": 0.176, "lit-gpt": 0.204, "llm-foundry": 0.176,
        "maxtext": 0.152, "megatron": 0.115, "megatron-deepspeed": 0.152, "nanotron": 0.176, "torchtitan": 0.159,
    },
    "P0382": {"": 0.182, "maxtext": 0.115, "nemo": 0.182},
    "P0545": {
        "": 0.182, "flash-attention": 0.163, "internevo": 0.149, "lit-gpt": 0.149, "llm-foundry": 0.149,
        "maxtext": 0.107, "megatron": 0.0974, "megatron-core": 0.169, "megatron-deepspeed": 0.162,
        "nanotron": 0.149, "torch": 0.129, "torchtitan": 0.105,
    },
}  # fmt: skip
"""What sources differ by, of which first intervals held some from a row on, by stack, ``""`` where none of these ran:
this script's figures at that time.  It is no error known besides."""
LONG = ("BigScience",)
"""Sources whose rows take long to predict; a first look at them changes nothing."""


def releases(path: Path) -> dict[str, tuple[float, int]]:
    """Spread between releases, and degrees of freedom, of mixtures of experts and of dense models."""
    cells: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            release = re.search(r"release (\d+\.\d+)", line["notes"])
            if line["source"] == ARCHIVE and line["quality"] != "C" and release:
                kind = "experts" if int(line["moe_experts"] or 0) else "dense"
                cell = (kind, *(line[name] for name in CELL))
                cells[cell][release[1]].append(math.log(float(line["iter_time_s"])))
    squares, freedom = {"experts": 0.0, "dense": 0.0}, {"experts": 0, "dense": 0}
    for (kind, *_), found in cells.items():
        means = np.array([np.mean(times) for times in found.values()])
        squares[kind] += float(((means - means.mean()) ** 2).sum())
        freedom[kind] += len(means) - 1
    return {kind: (Z90 * math.sqrt(squares[kind] / freedom[kind]), freedom[kind]) for kind in squares}


@dataclass(frozen=True)
class SourceError:
    """What sources measured over what was predicted of them.

    Attributes:
        stack: the family of the software, ``""`` where none of the stacks is it.
        log: the median of the logarithms.
        known: standard deviation that the intervals said, of a logarithm.
    """

    stack: str
    log: float
    known: float


def unnamed(path: Path, most: int) -> tuple[float, dict[str, float], list[SourceError]]:
    """Spread between a stack and what is assumed without one, each source's mean logarithm, and its error with it.

    Args:
        path: the table.
        most: rows of a source.
    """
    of_source: dict[str, list[float]] = defaultdict(list)
    errors: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in read(path):
        known = not row.lacks and not row.judges and row.source != ARCHIVE and not row.source.startswith(LONG)
        if not known or len(of_source[row.source]) >= most:
            continue
        try:
            with_stack, without = (predict(row, stacked) for stacked in (True, False))
        except InputError:
            continue
        of_source[row.source].append(math.log(without.iteration_time_s / with_stack.iteration_time_s))
        low, high = with_stack.interval_s
        width = math.log(high / low) / 2
        own = math.sqrt(max(width**2 - software.between_sources(row.stack) ** 2, 0.0))
        errors[row.source].append((row.stack, math.log(row.seconds / with_stack.iteration_time_s), own))
    size = np.concatenate([np.abs(found) for found in of_source.values()])
    weight = np.concatenate([np.full(len(found), 1.0 / len(found)) for found in of_source.values()])
    order = np.argsort(size)
    at = int(np.searchsorted(np.cumsum(weight[order]) / weight.sum(), LEVEL))
    means = {s: float(np.mean(found)) for s, found in of_source.items()}
    return float(size[order][min(at, len(size) - 1)]), means, _of_sources(errors)


def first_errors() -> list[SourceError]:
    """Errors of the first predictions of sources that nobody had looked at, even rows."""
    errors: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in read(PUBLISHED):
        if row.first and not row.judges:
            predicted, low, high = row.first
            held = next((spreads for since, spreads in reversed(HELD.items()) if row.id >= since), {"": 0.0})
            of_sources = held.get(software.family(row.stack), held[""])
            width = math.sqrt(max((math.log(high / low) / 2) ** 2 - of_sources**2, 0.0))
            errors[row.source].append((row.stack, math.log(row.seconds / predicted), width))
    return _of_sources(errors)


def _of_sources(errors: Mapping[str, Sequence[tuple[str, float, float]]]) -> list[SourceError]:
    """One of each source and stack."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for source, rows in errors.items():
        for stack, log, width in rows:
            found[source, software.family(stack)].append((log, width))
    return [
        SourceError(
            "" if source in NEAREST else stack,
            float(np.median([log for log, _ in rows])),
            float(np.median([width for _, width in rows])) / Z90,
        )
        for (source, stack), rows in found.items()
    ]


class Between(NamedTuple):
    """What sources differ by, natural logarithms.

    Attributes:
        shift: middle of what they measured over what was predicted.
        deviation: standard deviation between them, less what was known.
    """

    shift: float
    deviation: float


def between(errors: Sequence[SourceError]) -> Between:
    """Middle and deviation of sources (see the module)."""
    log, known = (np.array([getattr(one, name) for one in errors]) for name in ("log", "known"))
    shift, deviation = float(np.median(log)), 0.0
    for _ in range(ROUNDS):
        deviation = _deviation(log - shift, known)
        size = np.hypot(deviation, known)
        weight = np.minimum(1.0, BEND * size / np.maximum(np.abs(log - shift), 1e-12)) / size**2
        before, shift = shift, float((weight * log).sum() / weight.sum())
        if abs(shift - before) < SETTLED:
            break
    return Between(shift, deviation)


def _deviation(log: NDArray[np.float64], known: NDArray[np.float64]) -> float:
    """The deviation beside what is known at which squares, cut at :data:`BEND`, are as large as of normal variables."""
    low, high, usual = 0.0, float(np.abs(log).max()), _cut_square()

    def cut(deviation: float) -> float:
        return float(np.minimum(log**2 / (deviation**2 + known**2), BEND**2).mean())

    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(middle) > usual else (low, middle)
    return low


def _cut_square() -> float:
    """Mean square of a standard normal variable that is cut at :data:`BEND`."""
    inside = math.erf(BEND / math.sqrt(2))
    return inside - 2 * BEND * math.exp(-(BEND**2) / 2) / math.sqrt(2 * math.pi) + BEND**2 * (1 - inside)


def unseen(errors: Sequence[SourceError]) -> Between:
    """Middle and deviation of a source that is none of these, with what is not known of either."""
    found, left = between(errors), np.array(_left_out(errors))
    variance = (len(errors) - 1) / len(errors) * ((left - left.mean(0)) ** 2).sum()
    return Between(found.shift, math.sqrt(found.deviation**2 + float(variance)))


def _left_out(errors: Sequence[SourceError]) -> list[Between]:
    """What sources differ by, each left out in turn."""
    return [between([*errors[:at], *errors[at + 1 :]]) for at in range(len(errors))]


def held(errors: Sequence[SourceError]) -> float:
    """Part of the sources that the interval holds which the others give."""
    inside = []
    for at, one in enumerate(errors):
        of = unseen([*errors[:at], *errors[at + 1 :]])
        inside.append(abs(one.log - of.shift) <= Z90 * math.hypot(of.deviation, one.known))
    return float(np.mean(inside))


def of_stacks(errors: Sequence[SourceError], usual: Between) -> dict[str, tuple[float, int]]:
    """Standard deviation between the sources of each stack, and how many there are.

    Args:
        errors: of sources.
        usual: what sources of any stack differ by.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for one in errors:
        if not one.stack:
            continue
        off = min(abs(one.log - usual.shift), FURTHEST * usual.deviation)
        found[one.stack].append(max(off**2 - one.known**2, 0.0))
    prior = PRIOR * usual.deviation**2
    return {
        stack: (min(math.sqrt((prior + sum(squares)) / (PRIOR + len(squares))), usual.deviation), len(squares))
        for stack, squares in sorted(found.items())
    }


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="table of measured training iterations")
    parser.add_argument("--sources", type=int, default=4, metavar="N", help="rows of each source (default 4)")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    options = parser.parse_args()
    spreads: dict[str, dict[str, Any]] = {}
    for kind, (spread, freedom) in releases(options.data).items():
        print(f"releases, {kind}: 90 % within a factor {math.exp(spread):.2f} ({freedom} degrees of freedom)")
        note = f"times of the same cell in several releases of Megatron-Bridge, {freedom} degrees of freedom"
        spreads[kind] = {"spread": float(f"{spread:.3g}"), "note": note}
    spread, means, errors = unnamed(options.data, options.sources)
    for source, mean in means.items():
        print(f"{source:40} without its stack {math.expm1(mean):+.1%}")
    print(f"no stack named: 90 % within a factor {math.exp(spread):.2f}")
    note = f"predictions without a stack over those with it, even rows of {len(means)} sources"
    spreads["unnamed"] = {"spread": float(f"{spread:.3g}"), "note": note}
    first = first_errors()
    usual = unseen(first)
    print(f"sources of a stack: {math.expm1(usual.shift):+.1%}, and 90 % within a factor "
          f"{math.exp(Z90 * usual.deviation):.2f} of that ({len(first)} sources, of which {held(first):.0%} are within "
          "what the others say)")  # fmt: skip
    note = f"first predictions of {len(first)} sources that nobody had looked at, even rows"
    shift, spread = (float(f"{found:.3g}") for found in (usual.shift, Z90 * usual.deviation))
    spreads["unseen"] = {"spread": spread, "shift": shift, "note": note}
    stacks = {}
    for stack, (deviation, count) in of_stacks([*first, *errors], usual).items():
        print(f"{stack:40} 90 % within a factor {math.exp(Z90 * deviation):.2f} ({count} sources)")
        stacks[stack] = {"spread": float(f"{Z90 * deviation:.3g}"), "sources": count}
    if options.write:
        document = {
            "schema": software.SCHEMA, "script": "validation/fit/software.py", "level": LEVEL, "spreads": spreads,
            "stacks": stacks,
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
