"""ASTRA-sim's collectives played here: messages per CPU second; prints JSON.

    python benchmarks/astra.py [--npus 64 256] [--repeat N]

One ring all-reduce of 1 MiB in four chunks on a ring of NPUs: 2 (N - 1) x N x 4 messages, each of them played, plus an
end for each chunk and rank.  ``astra_sim_cpu_s`` is what ASTRA-sim's congestion-aware back end took for the same on a
2-core machine (our own measurement; -O3).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from validation.data.astra_cases import collective, golden_network, job, system

from triosim.interop.astra.job import lower
from triosim.interop.astra.play import model

ASTRA_SIM_CPU_S = {64: 0.04, 256: 0.76, 1024: 26.77}
SOLVERS = ("max-min", "store-and-forward", "uncontended")


def main() -> None:
    """Print the figures as JSON."""
    from triosim.engine.play import play

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npus", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for npus in options.npus:
        for solver in SOLVERS:
            work = job(golden_network("ring", npus), system("ring"), lambda rank: collective("all_reduce", 1 << 20),
                       stagger_ps=int(solver == "store-and-forward"))  # fmt: skip
            prepared, seconds = [], []
            for _ in range(options.repeat + 1):  # the first one warms up
                began = time.process_time()
                lowered = lower(work)
                between = time.process_time()
                played = play(lowered.graph, lowered.wires, model(solver))
                prepared.append(between - began)
                seconds.append(time.process_time() - between)
            spent = statistics.median(seconds[1:])
            rows.append(
                {"npus": npus, "solver": solver, "engine": played.engine, "messages": played.flows,
                 "prepare_cpu_s": statistics.median(prepared[1:]), "play_cpu_s": spent,
                 "messages_per_cpu_s": played.flows / spent, "astra_sim_cpu_s": ASTRA_SIM_CPU_S.get(npus)}
            )  # fmt: skip
    print(json.dumps({"benchmark": "astra", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
