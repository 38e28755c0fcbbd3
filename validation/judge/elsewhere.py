"""Kernels that others published of devices, or of software, that shaped no constant here.

    python -m validation.judge.elsewhere [--data FILE] [--rows] [--json OUT]

Rows lie in ``validation/data/elsewhere.csv``; :mod:`validation.data.elsewhere` has the address of each source and what
it leaves open.  By source, device and kind of kernel: rows, mean of |predicted - measured| / measured, median, bias
(median of predicted / measured - 1), the worst row, and how many of the intervals of 90 % hold.  Rates that a search
over shapes found are the best of many: predictions of them are to be lower by what a search gains.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from validation import command
from validation.data import elsewhere
from validation.data.elsewhere import Published
from validation.fit.physical_gemm import in_a_burst

from triosim.hardware import catalog
from triosim.kernels.physical import kinds
from triosim.kernels.physical.gemm import load
from triosim.kernels.work.gemm import Gemm


class Found(NamedTuple):
    """A row as measured and as predicted: seconds, and the half-width of its interval (natural logarithm)."""

    row: Published
    seconds: float
    spread: float

    @property
    def off(self) -> float:
        """How much the prediction is above what was measured, as a part of that."""
        return self.seconds / self.row.seconds - 1

    @property
    def holds(self) -> bool:
        """Whether the interval holds the measurement."""
        return abs(float(np.log(self.seconds / self.row.seconds))) <= self.spread


def predicted(row: Published) -> Found:
    """What is predicted of a row, by the constants that come with the program.

    Products of 32 bits on vector units ran a few times on a device that was idle before, as those that their constants
    are fitted to; what the constants of matrix units are fitted to runs in a row.
    """
    device, work = catalog.accelerator(row.device), elsewhere.work(row)
    found = kinds.price(work, device)
    seconds = float(found.seconds[0])
    if row.kind == "product" and row.dtype == "float32":
        assert isinstance(work, Gemm)
        seconds = float(in_a_burst(work, device, load().constants)[0])
    return Found(row, seconds, float(found.spread[0]))


def line(name: str, found: list[Found]) -> str:
    """The figures of some rows."""
    said = command.figures([one.off for one in found], [one.holds for one in found])
    return f"{name:62s}{said}{np.exp(np.median([one.spread for one in found])):7.2f}"


def main() -> int:
    """Print a line for each group of rows."""
    parser = command.parser(__doc__)
    parser.add_argument("--data", type=Path, default=elsewhere.TABLE, help="a table like elsewhere.csv")
    parser.add_argument("--rows", action="store_true", help="print each row too")
    options = parser.parse_args()
    found = [predicted(row) for row in elsewhere.read(options.data)]
    print(f"{'source, device, kernel':62s}{command.HEAD}{'width':>7s}")
    groups: dict[str, list[Found]] = {}
    for one in found:
        row = one.row
        groups.setdefault(f"{row.source}, {row.device}, {row.kind}", []).append(one)
    for name, some in groups.items():
        print(line(name, some))
        for one in some if options.rows else ():
            row = one.row
            print(f"    {row.dtype:15s}{row.shape:34s}{1e6 * row.seconds:12.1f}{1e6 * one.seconds:12.1f} us"
                  f"{100 * one.off:+8.1f} %{'' if one.holds else ' !'}")  # fmt: skip
    for kind in dict.fromkeys(one.row.kind for one in found):
        print(line(f"all: {kind}", [one for one in found if one.row.kind == kind]))
    command.write(options.json, {name: [one.off for one in some] for name, some in groups.items()})
    return 0


if __name__ == "__main__":
    command.run(main)
