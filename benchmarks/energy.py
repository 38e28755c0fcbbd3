"""What energy adds to a simulation, and what re-costing takes: CPU seconds, medians.

    python benchmarks/energy.py [--runs 21]

The simulation is Llama-3-8B on 8 H100 with its JSON, in a process whose caches are warm; energy and cost are what the
JSON has besides.  Re-costing is ``triosim cost RESULT.json`` as a user starts it, the interpreter included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import triosim
from triosim import Plan

T = TypeVar("T")
AFTERWARDS = ("interval_s", "energy", "cost")
"""What a result reckons when it is asked for, in this order."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    runs = parser.parse_args().runs
    trace = triosim.model("llama-3-8b", sequence_length=4096)
    system = triosim.system("dgx-h100")
    plan = Plan(tp=8, batch_size=1)

    def simulated() -> triosim.Result:
        return triosim.simulate(trace, system, plan)

    simulated().to_json()
    alone, energy, cost, whole = [], [], [], []
    for _ in range(runs):
        result, seconds = _timed(simulated)
        interval, joules, dollars = (_timed(partial(getattr, result, name))[1] for name in AFTERWARDS)
        alone.append(seconds)
        whole.append(seconds + interval)
        energy.append(joules)
        cost.append(dollars)
    extra = median(energy) + median(cost)
    print(f"simulation              {median(alone) * 1e3:8.1f} ms, with its interval {median(whole) * 1e3:.1f} ms")
    print(f"energy                  {median(energy) * 1e3:8.1f} ms   {extra / median(whole):.1%} with cost of both")
    print(f"cost                    {median(cost) * 1e3:8.1f} ms")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        path.write_text(simulated().to_json(), encoding="utf-8")
        command = [sys.executable, "-m", "triosim", "cost", str(path), "--at", "FR", "--price", "2/h"]
        print(f"triosim cost            {median(_process(command) for _ in range(runs)) * 1e3:8.1f} ms")
        print(
            f"triosim --help          {median(_process([*command[:3], '--help']) for _ in range(runs)) * 1e3:8.1f} ms"
        )


def _timed(what: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    found = what()
    return found, time.process_time() - began


def _process(command: list[str]) -> float:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    subprocess.run(command, check=True, capture_output=True)
    return spent() - before


if __name__ == "__main__":
    main()
