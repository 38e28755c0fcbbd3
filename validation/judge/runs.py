"""Several runs of ``triosim validate --json FILE`` beside each other: median errors of each mode, and intervals.

python -m validation.judge.runs FIRST.json SECOND.json ...
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from validation import command


def main() -> None:
    """Print one line for each mode."""
    parser = command.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
    print(table(runs))
    quantity = runs[0]["judged"]
    found = {mode: [median(errors(run, mode, quantity)) for run in runs] for mode in runs[0]["median_absolute_error"]}
    command.write(options.json, {"median_absolute_error": found})


def table(runs: list[dict[str, Any]]) -> str:
    """Median absolute errors, a column for each run and one for all of them; then how often intervals held."""
    quantity = runs[0]["judged"]
    modes = list(runs[0]["median_absolute_error"])
    lines = [f"{'mode':<8}" + "".join(f"{f'run {n}':>9}" for n in range(1, len(runs) + 1)) + f"{'all':>9}"]
    for mode in modes:
        each = [errors(run, mode, quantity) for run in runs]
        found = [*(median(one) for one in each), median([e for one in each for e in one])]
        lines.append(f"{mode:<8}" + "".join(f"{100 * error:>7.1f} %" for error in found))
    held = [run["intervals_held"][quantity] for run in runs]
    total = [sum(one[0] for one in held), sum(one[1] for one in held)]
    lines.append(f"{'90 %':<8}" + "".join(f"{f'{a} of {b}':>9}" for a, b in [*held, total]))
    loads = [run["machine"]["load_average"] for run in runs]
    if all(loads):
        lines.append(f"{'load':<8}" + "".join(f"{max(load):>9.1f}" for load in loads))
    return "\n".join(lines)


def errors(run: dict[str, Any], mode: str, quantity: str) -> list[float]:
    """Absolute relative errors of a mode's rows."""
    return [abs(row[quantity]["error"]) for row in run["rows"] if row["mode"] == mode]


if __name__ == "__main__":
    command.run(main)
