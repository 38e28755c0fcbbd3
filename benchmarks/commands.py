"""CPU time of starting, and of the commands that a user waits for.

    python benchmarks/commands.py [--runs 5] [--json FILE]

Median, smallest and largest of several runs in processes of their own, user and system time together; wall time is not
looked at, so that a busy machine does not matter much.  A bare Python start from the same run is the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CLI = [sys.executable, "-m", "triosim"]
RING = ["--devices", "8", "--topology", "ring", "--link", "10GB/s"]
CASES: dict[str, list[str]] = {
    "python, bare": [sys.executable, "-c", ""],
    "import triosim": [sys.executable, "-c", "import triosim"],
    "triosim --help": [*CLI, "--help"],
    "train, ResNet-50 trace, dp 8": [*CLI, "train", str(EXAMPLES / "resnet50-cpu.triosim"), *RING],
    "train, GPT trace, dp 8": [*CLI, "train", str(EXAMPLES / "gpt-small-cpu.triosim"), *RING],
    "train, llama-3-8b, dgx-h100, dp 8": [*CLI, "train", "llama-3-8b", "--system", "dgx-h100", "--dp", "8"],
    "train, llama-3-8b, dgx-h100, tp 8": [*CLI, "train", "llama-3-8b", "--system", "dgx-h100", "--tp", "8"],
}


def main() -> None:
    """Time every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    for name, command in CASES.items():
        _cpu_seconds(command)  # warm-up: byte code and file cache
        times = [_cpu_seconds(command) for _ in range(options.runs)]
        rows[name] = {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}
    bare = rows["python, bare"]["median_s"]
    head = f"CPU time, median of {options.runs}"
    print(f"{head:36} {'median':>10} {'smallest':>10} {'largest':>10} {'over bare':>10}")
    for name, row in rows.items():
        columns = (row["median_s"], row["min_s"], row["max_s"], row["median_s"] - bare)
        print(f"{name:36} " + " ".join(f"{1e3 * x:7.0f} ms" for x in columns))
    if options.json:
        facts = {"python": platform.python_version(), "machine": platform.machine(), "load": os.getloadavg()}
        options.json.write_text(json.dumps({**facts, "runs": options.runs, "rows": rows}, indent=1) + "\n")


def _cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # as users start it
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=plain)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
