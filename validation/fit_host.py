"""The constants of ``composition/host.json``: what launching costs, from torch.profiler traces.

    python -m validation.fit_host --data ../shared/data/kineto

Prints, for each step of each trace, the launch delay, the gap between kernels and the host's time for each kernel; and
over the steps of one trace the host's time of each class of operators, medians.  A step whose host was slowed down by
the profiler itself (hundreds of microseconds for each kernel) says nothing about the classes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from validation.kineto_replay import measured

import triosim
from triosim.errors import InputError
from triosim.workload.operators import canonical
from triosim.workload.trace import Phase, Trace

SLOWED = 60e-6
"""Host time for each kernel above which the profiler, not the framework, is what took the time."""
FEWEST = 50


def main() -> int:
    """Print the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of torch.profiler traces")
    options = parser.parse_args()
    print(f"{'trace':24} {'step':>5} {'device':28} {'kernels':>8} {'delay':>8} {'gap':>8} {'host/kernel':>12}")
    calls: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(options.data.glob("*.json*")):
        for step in measured(path):
            try:
                trace = triosim.load(path, step=step)
            except InputError as error:
                print(error, file=sys.stderr)
                continue
            host = float(np.nansum(trace.operators.host_s)) / len(trace.kernels)
            delay, gap = (_us(s) for s in (trace.meta.launch_delay_s, trace.meta.kernel_gap_s))
            print(
                f"{path.name.partition('.')[0][:24]:24} {step:>5} {trace.meta.device or '':28} {len(trace.kernels):8} "
                f"{delay:>8} {gap:>8} {_us(host):>12}"
            )
            if host < SLOWED:
                for key, cost in costs(trace):
                    calls[key].append(cost)
    print(f"\nhost time of calls that launch kernels, at least {FEWEST} of them")
    for (name, phase), found in sorted(calls.items(), key=lambda item: -np.median(item[1])):
        if len(found) >= FEWEST:
            print(f"{name:28} {phase:10} {len(found):5} calls  median {_us(float(np.median(found)))}")
    return 0


def costs(trace: Trace) -> list[tuple[tuple[str, str], float]]:
    """Name and phase of each operator that launches a kernel, and its host time with that of what precedes it."""
    operators = trace.operators
    launches = np.bincount(trace.kernels.operator, minlength=len(trace)) > 0
    found, before = [], 0.0
    for row, cost in enumerate(np.nan_to_num(operators.host_s).tolist()):
        before += cost
        if launches[row]:
            name = canonical(operators.name[row])[0]
            found.append(((name, Phase(operators.phase[row]).name.lower()), before))
            before = 0.0
    return found


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"


if __name__ == "__main__":
    sys.exit(main())
