"""What engines leave between the graphs of two steps: the hosts of ``serving/step_times.py``.

    python -m validation.fit.engine_host --data DIR

``DIR`` holds ``silicon/serving_measured.csv``, closed loops of users on H100 (:mod:`validation.judge.serving`).  For
each engine the mean error of TPOT is printed over a grid of hosts, on the rows of even number, and what the best of the
grid and the one that is installed do on those of odd number.  Rows that no step of the engine explains are left out:
GPT-OSS with more than 64 users, and the three of Qwen3-32B in fp8.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from validation.judge.serving import ASYNC_SINCE, GPT_OSS, SERVED, closed_loop_rows, loop_errors

from triosim.serving.step_times import SGLANG, TRTLLM, VLLM_AHEAD, VLLM_WAITING, StepHost

GRIDS = {
    "vllm waiting": (VLLM_WAITING, "step", (0.8e-3, 1.0e-3, 1.2e-3), (30e-6, 37e-6, 40e-6, 45e-6)),
    "vllm ahead": (VLLM_AHEAD, "gap", (0.0, 0.2e-3, 0.3e-3, 0.4e-3), (0.0,)),
    "sglang": (SGLANG, "step", (0.0, 0.2e-3, 0.4e-3), (0.0, 10e-6, 15e-6, 20e-6)),
    "trtllm": (TRTLLM, "gap", (0.0, 0.4e-3, 0.6e-3, 0.7e-3, 0.8e-3), (0.0,)),
}
"""Installed, whether it waits for its host, seconds of a step, seconds of a sequence."""
MOST_USERS = 64


def main() -> None:
    """Print the grids."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with silicon/")
    options = parser.parse_args()
    rows = [row for row in closed_loop_rows(options.data) if _taken(row)]
    for name, (installed, kind, steps, sequences) in GRIDS.items():
        own = [row for row in rows if _engine_of(row) == name]
        halves = [[row for row in own if int(row["place"]) % 2 == odd] for odd in (0, 1)]
        found = {}
        for step, sequence in product(steps, sequences):
            host = StepHost(gap_s=step) if kind == "gap" else StepHost(step, sequence, hidden=False)
            found[host] = _error(halves[0], host)
            print(f"{name:14} {step * 1e3:.1f} ms, {sequence * 1e6:.0f} us a sequence: {found[host]:.2%}")
        best = min(found, key=lambda host: found[host])
        for words, host in (("nothing", StepHost()), ("best", best), ("installed", installed)):
            errors = ", ".join(f"{_error(half, host):.2%} of {len(half)}" for half in halves)
            print(f"{name:14} {words:10} {errors} rows (even, odd)")


def _taken(row: dict[str, str]) -> bool:
    users = int(float(row["concurrency"] or row["batch_size"]))
    return users <= MOST_USERS if row["model_path"] == GPT_OSS else not row["gemm_quant_mode"].startswith("fp8")


def _engine_of(row: dict[str, str]) -> str:
    if row["backend"] != "vllm":
        return row["backend"]
    version = row["backend_version"].split(".")[:2]  # none: one of those that schedule ahead
    return "vllm waiting" if version != [""] and tuple(map(int, version)) < ASYNC_SINCE else "vllm ahead"


def _error(rows: list[dict[str, str]], host: StepHost) -> float:
    """Mean error of TPOT."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["model_path"], row["tp_size"]), []).append(row)
    found = [loop_errors(own, SERVED[model](), host)[:, 1] for (model, _), own in groups.items()]
    return float(np.abs(np.concatenate(found)).mean())


if __name__ == "__main__":
    main()
