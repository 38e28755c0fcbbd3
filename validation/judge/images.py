"""Images that others timed, and what is predicted of them: diffusion models that shaped no constant here.

    python -m validation.judge.images [--data FILE] [--rows] [--json OUT]

Rows lie in ``validation/data/images.csv``; :mod:`validation.data.images` has the address of each source.  Each image is
served as ``triosim serve`` would, alone.  By source: rows, mean of |predicted - measured| / measured, median, bias
(median of predicted / measured - 1), the worst row, and how many of the intervals of 90 % hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from validation import command
from validation.data import images
from validation.data.images import Timed

import triosim
from triosim.hardware.system import System
from triosim.serving.denoiser import TYPES
from triosim.serving.deployment import Deployment, serve
from triosim.serving.pool import Pool
from triosim.serving.requests import RequestTable
from triosim.stacks import load

SERVERS = {"H100-SXM5-80GB": "dgx-h100", "A100-SXM4-80GB": "dgx-a100", "H200-SXM-141GB": "dgx-h200"}
"""What joins devices that share an image."""


class Found(NamedTuple):
    """A row, seconds as predicted, and the interval of 90 %."""

    row: Timed
    seconds: float
    interval: tuple[float, float]

    @property
    def off(self) -> float:
        """How much the prediction is above what was measured, as a part of that."""
        return self.seconds / self.row.seconds - 1

    @property
    def holds(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.interval[0] <= self.row.seconds <= self.interval[1]


def predicted(row: Timed) -> Found:
    """What is predicted of a row, by the constants that come with the program."""
    machine = triosim.system(SERVERS[row.device]) if row.devices > 1 else triosim.system(device=row.device)
    return (_image if row.what == "image" else _steps)(row, machine)


def _image(row: Timed, machine: System) -> Found:
    """From the arrival of a request to its image."""
    by_layers = row.shared == "tp"
    pool = Pool(
        row.model, machine, engine="diffusers", weights=row.weights, image_size=row.pixels, stack=row.stack or None,
        tensor_parallel=row.devices if by_layers else 1, context_parallel=1 if by_layers else row.devices,
        **{} if by_layers or row.devices == 1 else {"context_style": row.shared},
    )  # fmt: skip
    alone = RequestTable.of([0.0], [1], [row.steps])
    found = serve(Deployment((pool,), idle_ok=True), alone, interval=True)
    return Found(row, found.metrics.distributions["e2e"].mean, found.intervals["e2e.mean"])


def _steps(row: Timed, machine: System) -> Found:
    """So many forward passes of the denoiser."""
    stack = load(row.stack) if row.stack else None
    more = {} if stack is None else stack.model_options
    trace = triosim.model(row.model, precision=TYPES[row.weights], image_size=row.pixels, training=False, **more)
    sharing = {} if row.devices == 1 else {"tp": row.devices}
    placed = tuple(range(row.devices))
    plan = triosim.Plan(dp=1, training=False, batch_size=1, stack=stack, placement=placed, **sharing)
    step = triosim.simulate(trace, machine, plan, fit=False)
    low, high = step.interval_s
    return Found(row, row.steps * step.iteration_time_s, (row.steps * low, row.steps * high))


def line(name: str, found: list[Found]) -> str:
    """The figures of some rows."""
    off = np.array([one.off for one in found])
    width = np.median([one.interval[1] / one.interval[0] for one in found])
    return (
        f"{name:24s}{len(off):5d}{100 * np.abs(off).mean():8.1f}{100 * np.median(np.abs(off)):8.1f}"
        f"{100 * np.median(off):+8.1f}{100 * off[np.argmax(np.abs(off))]:+8.1f}"
        f"{100 * np.mean([one.holds for one in found]):7.0f}{width:7.2f}"
    )


def main() -> int:
    """Print a line for each source."""
    parser = command.parser(__doc__)
    parser.add_argument("--data", type=Path, default=images.TABLE, help="a table like images.csv")
    parser.add_argument("--rows", action="store_true", help="print each row too")
    options = parser.parse_args()
    found = [predicted(row) for row in images.read(options.data)]
    print(f"{'source':24s}{'rows':>5s}{'mean %':>8s}{'median':>8s}{'bias':>8s}{'worst':>8s}{'holds':>7s}{'hi/lo':>7s}")
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(one.row.source, []).append(one)
    for name, some in groups.items():
        print(line(name, some))
        for one in some if options.rows else ():
            row = one.row
            where = f"{row.devices} x {row.device}" + (f" {row.shared}" if row.shared else "")
            print(f"    {row.model:15s}{where:28s}{row.stack or 'eager':14s}{row.pixels:5d}{row.steps:3d} {row.what:6s}"
                  f"{row.seconds:8.3f}{one.seconds:8.3f} s{100 * one.off:+7.1f} %{'' if one.holds else ' !'}")  # fmt: skip
    print(line("all", found))
    command.write(options.json, {name: [one.off for one in some] for name, some in groups.items()})
    return 0


if __name__ == "__main__":
    command.run(main)
