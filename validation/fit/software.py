"""How much a training step differs with the software: between releases, and between stacks where none is named.

    python -m validation.fit.software --data ../shared/data/training/measured.csv [--sources N] [--write]

*Releases.*  NVIDIA's archive repeats the same cell (model, GPU, number of them, type, batch, sequence) over releases of
Megatron-Bridge.  The spread is that of the measurements of a cell about their mean, mixtures of experts and others
apart; no prediction enters.  *Stacks.*  Even rows of all other sources are predicted with their stack and without; the
spread is the 90 % quantile of the logarithm of one over the other, every source counting the same.  Written to
``src/triosim/composition/software.json``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from validation.data.training import read
from validation.judge.training import predict

from triosim.composition import software
from triosim.core.errors import InputError
from triosim.kernels.estimate import Z90

TARGET = Path(software.__file__).with_name("software.json")
ARCHIVE = "NVIDIA Megatron-Bridge performance summary"
CELL = ("model", "gpu", "n_gpus", "precision", "global_batch", "seq_len")
LEVEL = 0.9
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


def unnamed(path: Path, most: int) -> tuple[float, dict[str, float]]:
    """Spread between a stack and what is assumed without one, and each source's mean logarithm.

    Args:
        path: the table.
        most: rows of a source.
    """
    of_source: dict[str, list[float]] = defaultdict(list)
    for row in read(path):
        known = not row.lacks and not row.judges and row.source != ARCHIVE and not row.source.startswith(LONG)
        if not known or len(of_source[row.source]) >= most:
            continue
        try:
            with_stack, without = (predict(row, stacked).iteration_time_s for stacked in (True, False))
        except InputError:
            continue
        of_source[row.source].append(math.log(without / with_stack))
    size = np.concatenate([np.abs(found) for found in of_source.values()])
    weight = np.concatenate([np.full(len(found), 1.0 / len(found)) for found in of_source.values()])
    order = np.argsort(size)
    at = int(np.searchsorted(np.cumsum(weight[order]) / weight.sum(), LEVEL))
    return float(size[order][min(at, len(size) - 1)]), {s: float(np.mean(found)) for s, found in of_source.items()}


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
    spread, means = unnamed(options.data, options.sources)
    for source, mean in means.items():
        print(f"{source:40} without its stack {math.expm1(mean):+.1%}")
    print(f"no stack named: 90 % within a factor {math.exp(spread):.2f}")
    note = f"predictions without a stack over those with it, even rows of {len(means)} sources"
    spreads["unnamed"] = {"spread": float(f"{spread:.3g}"), "note": note}
    if options.write:
        document = {
            "schema": software.SCHEMA, "script": "validation/fit/software.py", "level": LEVEL, "spreads": spreads,
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
