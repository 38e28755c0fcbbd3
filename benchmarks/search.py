"""What ``triosim search`` costs, and whether one that is killed again and again finds the same.

    python benchmarks/search.py                   GPT-3 175B on 1,024 A100, Mixtral 8x22B on 256 H100, DPO on 16 H100
    python benchmarks/search.py --workers 1,2     with so many processes each: the same plans, wall-clock seconds
    python benchmarks/search.py --kills 10        killed (SIGKILL) at random so often and resumed: the same plans

CPU seconds are those of the process and its workers, memory the most that one of them had; ``--only WORDS`` takes the
searches whose name has these words.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SEARCHES = {
    "GPT-3 175B on 1,024 A100": "gpt3-175b --system dgx-a100 --nodes 128 --under batch=1536",
    "Mixtral 8x22B on 256 H100": "mixtral-8x22b --system dgx-h100 --nodes 32 --under batch=512",
    "DPO of Llama-3-8B on 16 H100": "llama-3-8b --system dgx-h100 --nodes 2 --under batch=64 --seq-len 2048 --post dpo",
}


class Ran(NamedTuple):
    """A run: what it found, CPU and wall-clock seconds, bytes."""

    found: dict[str, Any]
    cpu_s: float
    wall_s: float
    memory: int


def ran(words: str, folder: str, workers: int = 1, kills: int = 0, least_s: float = 0.0, most_s: float = 0.0) -> Ran:
    """Search, killed so often, each time after something between ``least_s`` and ``most_s`` seconds."""
    out = Path(folder) / "plans.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "triosim", "search", *words.split(), "--workers", str(workers), "--json", str(out)]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for number in range(kills + 1):
        process = subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if number < kills:
            try:
                process.wait(random.uniform(least_s, most_s))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
        if process.wait() not in (0, -signal.SIGKILL):
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        if out.exists():
            break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime
    return Ran(json.loads(out.read_text()), cpu, time.monotonic() - begin, spent.ru_maxrss * 1024)


def main() -> None:
    """Search, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1", help="processes, one search for each number")
    parser.add_argument("--kills", type=int, default=0, help="how often it is killed")
    parser.add_argument("--only", default="", help="words of the name of a search")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random.seed(asked.seed)
    print(f"{'search':28} {'workers':>7} {'legal':>7} {'predicted':>9} {'CPU s':>7} {'wall s':>7} {'GB':>5}  same")
    for name, words in SEARCHES.items():
        first: Ran | None = None
        for workers in [int(word) for word in asked.workers.split(",")] if asked.only in name else []:
            with tempfile.TemporaryDirectory() as folder:
                one = ran(words, folder, workers)
                runs = [(name, one)]
                if asked.kills:
                    part = one.wall_s / (asked.kills + 1)
                    killed = ran(words, folder, workers, asked.kills, 0.5 * part, 2 * part)
                    runs.append((f"  killed {asked.kills} times", killed))
            for what, run in runs:
                first = first or run
                same = "yes" if run.found["plans"] == first.found["plans"] else "NO"
                print(
                    f"{what:28} {workers:7} {run.found['legal']:7,} {run.found['predicted']:9} {run.cpu_s:7.1f} "
                    f"{run.wall_s:7.1f} {run.memory / 1e9:5.2f}  {same}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
