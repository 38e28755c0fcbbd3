"""Images that others timed, and what is predicted of them: diffusion models that shaped no constant here.

    python -m validation.judge.images [--data FILE] [--rows] [--json OUT]

Rows lie in ``validation/data/images.csv``; :mod:`validation.data.images` has the address of each source.  Each image is
served as ``triosim serve`` would, alone.  By source, and by devices and stack: rows, mean of |predicted - measured| /
measured, median, bias (median of predicted / measured - 1), the worst row, and how many of the intervals of 90 % hold.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from validation import command
from validation.data import images
from validation.data.images import TimedImage

import triosim
from triosim.hardware.system import System
from triosim.serving.denoiser import TYPES
from triosim.serving.deployment import Deployment, serve
from triosim.serving.pool import Pool
from triosim.serving.requests import RequestTable
from triosim.stacks import load

SERVERS = {"H100-SXM5-80GB": "dgx-h100", "A100-SXM4-80GB": "dgx-a100", "H200-SXM-141GB": "dgx-h200"}
"""What joins devices that share an image."""


class PredictedImage(NamedTuple):
    """A row, seconds as predicted, and the interval of 90 %."""

    row: TimedImage
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


def predicted(row: TimedImage) -> PredictedImage:
    """What is predicted of a row, by the constants that come with the program."""
    machine = triosim.system(SERVERS[row.device]) if row.devices > 1 else triosim.system(device=row.device)
    return (_image if row.what == "image" else _steps)(row, machine)


def _image(row: TimedImage, machine: System) -> PredictedImage:
    """From the arrival of a request to its image."""
    pool = Pool(
        row.model, machine, engine="diffusers", weights=row.weights, image_size=row.pixels, stack=row.stack or None
    )
    if row.shared == "tp":
        pool = replace(pool, tensor_parallel=row.devices)
    elif row.shared.startswith("usp"):
        heads = int(row.shared.removeprefix("usp"))
        pool = replace(pool, context_parallel=row.devices, context_style="usp", context_ulysses=heads)
    elif row.shared:
        pool = replace(pool, context_parallel=row.devices, context_style=row.shared)
    alone = RequestTable.of([0.0], [1], [row.steps])
    found = serve(Deployment((pool,), idle_ok=True), alone, interval=True)
    return PredictedImage(row, found.metrics.distributions["e2e"].mean, found.intervals["e2e.mean"])


def _steps(row: TimedImage, machine: System) -> PredictedImage:
    """So many forward passes of the denoiser."""
    stack = load(row.stack) if row.stack else None
    more = {} if stack is None else stack.model_options
    trace = triosim.model(row.model, precision=TYPES[row.weights], image_size=row.pixels, training=False, **more)
    tp = row.devices if row.shared == "tp" else 1
    plan = triosim.Plan(dp=1, tp=tp, training=False, batch_size=1, stack=stack, placement=tuple(range(tp)))
    step = triosim.simulate(trace, machine, plan, fit=False)
    low, high = step.interval_s
    return PredictedImage(row, row.steps * step.iteration_time_s, (row.steps * low, row.steps * high))


def line(name: str, found: list[PredictedImage]) -> str:
    """The figures of some rows."""
    said = command.figures([one.off for one in found], [one.holds for one in found])
    return f"{name:24s}{said}{np.median([one.interval[1] / one.interval[0] for one in found]):7.2f}"


def main() -> int:
    """Print a line for each source."""
    parser = command.parser(__doc__)
    parser.add_argument("--data", type=Path, default=images.TABLE, help="a table like images.csv")
    parser.add_argument("--rows", action="store_true", help="print each row too")
    options = parser.parse_args()
    found = [predicted(row) for row in images.read(options.data)]
    print(f"{'source':24s}{command.HEAD}{'hi/lo':>7s}")
    groups: dict[str, list[PredictedImage]] = {}
    for one in found:
        groups.setdefault(one.row.source, []).append(one)
    for name, some in groups.items():
        print(line(name, some))
        for one in some if options.rows else ():
            row = one.row
            where = f"{row.devices} x {row.device}" + (f" {row.shared}" if row.shared else "")
            ran = f"{row.stack or 'eager':14s}{row.pixels:5d}{row.steps:3d} {row.what:6s}"
            off = f"{100 * one.off:+7.1f} %{'' if one.holds else ' !'}"
            print(f"    {row.model:15s}{where:28s}{ran}{row.seconds:8.3f}{one.seconds:8.3f} s{off}")
    for several in (False, True):
        for stack in dict.fromkeys(one.row.stack for one in found):
            some = [one for one in found if (one.row.devices > 1, one.row.stack) == (several, stack)]
            if some:
                print(line(f"{'several' if several else 'one'}, {stack or 'eager'}", some))
    print(line("all", found))
    command.write(options.json, {name: [one.off for one in some] for name, some in groups.items()})
    return 0


if __name__ == "__main__":
    command.run(main)
