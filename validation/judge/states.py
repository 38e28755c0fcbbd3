"""Served models that keep states of fixed size: a kernel that decodes, and throughput, against published figures.

    python -m validation.judge.states [--json OUT]

Kernels are said by how much the prediction is off the one after it was improved: two constants are those of a line
through every other of them, from the first on.  Throughput is that of a closed loop of users; nothing is fitted to it.
"""

from __future__ import annotations

import numpy as np
from validation import command
from validation.data.states import LOOPS, UPDATES, ServedLoop

import triosim
from triosim.hardware import catalog
from triosim.kernels.physical.kinds import price
from triosim.serving import state_kernels
from triosim.serving.deployment import Deployment, serve
from triosim.serving.model import served_model
from triosim.serving.pool import Pool
from triosim.serving.traffic import traffic

DEVICE, MODEL = "H200-SXM-141GB", "qwen3-next-80b-a3b"
HALVES = 2.0
"""Bytes of an element of a state in 16 bits."""


def main() -> int:
    """Print a line for each row."""
    options = command.parser(__doc__).parse_args()
    kernels = updates()
    print(f"one token of the gated delta rule, {MODEL} on {DEVICE}: us")
    print(f"{'--tp':>5}{'sequences':>11}{'before':>9}{'after':>9}{'predicted':>11}{'off':>8}")
    for (devices, sequences), predicted in kernels.items():
        before, after = UPDATES[devices, sequences]
        off = 100 * (predicted / after - 1)
        print(f"{devices:5}{sequences:11}{before:9.1f}{after:9.1f}{predicted:11.1f}{off:+8.0f} %")
    rates = {}
    print("\noutput tokens a second: measured, predicted")
    for row in LOOPS:
        rates[row] = rate(row)
        off = 100 * (rates[row] / row.rate - 1)
        what = f"{row.model}, {row.devices} x {row.device}, {row.engine}, {row.users} users"
        print(f"{what:66}{row.rate:9.0f}{rates[row]:9.0f}{off:+6.0f} %")
    of_kernels = [predicted / UPDATES[key][1] - 1 for key, predicted in kernels.items()]
    of_rates = [found / row.rate - 1 for row, found in rates.items()]
    figures = {
        "kernel after, mean error": float(np.mean(np.abs(of_kernels))),
        "throughput, mean error": float(np.mean(np.abs(of_rates))),
        "throughput, worst": float(max(of_rates, key=abs)),
    }
    for name, value in figures.items():
        print(f"{name}: {100 * value:.1f} %")
    command.write(options.json, figures)
    return 0


def updates() -> dict[tuple[int, int], float]:
    """Microseconds of the kernel, by devices and sequences."""
    state = served_model(MODEL).state
    assert state is not None
    found = {}
    for devices, sequences in UPDATES:
        _, kernel = state_kernels.update(state, np.array([float(sequences)]), devices, HALVES)
        seconds = price(kernel, catalog.accelerator(DEVICE)).seconds
        found[devices, sequences] = float(state_kernels.updating(state, seconds)[0]) * 1e6
    return found


def rate(row: ServedLoop) -> float:
    """Output tokens a second of a closed loop."""
    system = triosim.system(device=row.device, devices=row.devices)
    own = Pool(row.model, system, engine=row.engine, tensor_parallel=row.devices, weights=row.weights)
    asked = traffic(f"users:{row.users}", f"prompt=fixed:{row.prompt};output=fixed:{row.output}", row.requests)
    found = serve(Deployment((own,)), asked, interval=False)
    return row.requests * row.output / found.metrics.duration_s


if __name__ == "__main__":
    command.run(main)
