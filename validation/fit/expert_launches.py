"""What each expert's part of a product or cast costs the host: ``expert_s`` of ``composition/host.json``.

    python -m validation.fit.expert_launches --data ../shared/data/training/measured.csv

Transformer Engine's ``GroupedLinear`` goes through the experts of a rank one by one: each has a tensor, a quantiser and
a kernel of its own for every product and every cast.  The host's time for one of them is what brings iterations of
Megatron-Bridge with experts closest to those published, by the squares of the logarithms, over its rows of even number
whose launches no graph of the whole iteration holds.  Predictions at three values are joined by lines.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
from validation import command
from validation.data.training import Row, read
from validation.judge.training import predict

from triosim.composition import host
from triosim.core.errors import InputError

SOURCE = "NVIDIA Megatron-Bridge performance summary"
VALUES = (25e-6, 45e-6, 65e-6)
"""Seconds at which rows are predicted."""
FINEST = 1e-6


def main() -> int:
    """Print the rows and the value."""
    options = command.parser(__doc__, "table of measured training iterations").parse_args()
    rows = [row for row in read(command.find(options.data, "training/measured.csv")) if _shapes(row)]
    grid = np.arange(VALUES[0], VALUES[-1] + FINEST / 2, FINEST)
    errors, known, used = np.zeros(len(grid)), dict[str, list[float]](), 0
    for row in rows:
        plan = repr((row.plan, row.facts, row.configuration, row.family, row.system))
        try:
            if plan not in known:
                known[plan] = [_seconds(row, value) for value in VALUES]
        except InputError as error:
            print(f"{row.id} is left out: {error}")
            continue
        found = known[plan]
        said = " ".join(f"{second / row.seconds - 1:+.1%}" for second in found)
        print(f"{row.id} measured {row.seconds:.3f} s, off by {said}", flush=True)
        used += 1
        errors += np.log(np.interp(grid, VALUES, found) / row.seconds) ** 2
    best = float(grid[np.argmin(errors)])
    print(f"{used} rows: {best * 1e6:.0f} us for each expert's part of a product or cast")
    return 0


def _shapes(row: Row) -> bool:
    told = row.source == SOURCE and not row.lacks and not row.judges
    return told and "experts" in row.plan.get("parallelism", ()) and row.facts.get("host") != "graph"


def _seconds(row: Row, value: float) -> float:
    with mock.patch.dict(host.constants()["expert_s"], seconds=value):
        return float(predict(row).iteration_time_s)


if __name__ == "__main__":
    command.run(main)
