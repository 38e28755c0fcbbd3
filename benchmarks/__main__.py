"""All tables of how fast TrioSim is, on this machine, now; and what has become slower since they were last made.

    python -m benchmarks [start files engine all-to-all scale] [--runs 5] [--history FILE] [--check]

Each table is made by a script of its own, whose docstring says what is measured; all of it is CPU time of processes,
median of several runs.  "ratio" is how many times faster than a peer in the same run: SimPy where it is installed
(``pip install simpy``), SimGrid where its library and g++ are.

Every run adds a line of JSON to the history (``out/benchmarks.jsonl``) with the machine and the commit.  A figure that
is more than a tenth worse than the median of the last five of the same machine is marked, and with ``--check`` it is an
error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORSE = 1.1
LATEST = 5


@dataclass(frozen=True)
class Figure:
    """One figure of a table.

    Attributes:
        name: what was measured.
        seconds: CPU seconds.
        amount, unit: how much was done in them; 0 and "" where the seconds say it all.
        peak_bytes: most memory, 0 where it was not looked at.
        ratio, peer: how many times faster than which other simulator; 0 and "" without one.
    """

    name: str
    seconds: float
    amount: int = 0
    unit: str = ""
    peak_bytes: int = 0
    ratio: float = 0.0
    peer: str = ""

    @property
    def line(self) -> str:
        """The figure as a line of a table."""
        rate = f"{self.amount / self.seconds:14,.0f} {self.unit}/s" if self.amount else ""
        memory = f"{self.peak_bytes / 1e6:6.0f} MB" if self.peak_bytes else ""
        beside = f"{self.ratio:6.1f} x {self.peer}" if self.peer else ""
        return f"{self.name:64} {self.seconds:9.4f} s {memory:9} {rate:26} {beside}".rstrip()


def _made(script: str, *options: str) -> Any:
    """What a script writes with ``--json FILE``, or prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.json"
        command = [sys.executable, str(HERE / script), *(str(path) if o == "FILE" else o for o in options)]
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, env=plain)
        return json.loads(path.read_text() if path.exists() else done.stdout)


def start(runs: int) -> Iterator[Figure]:
    """Starting, and what users wait for."""
    for name, row in _made("commands.py", "--runs", str(runs), "--json", "FILE")["rows"].items():
        yield Figure(name, row["median_s"])


def files(runs: int) -> Iterator[Figure]:
    """Large files."""
    for name, row in _made("files.py", "--runs", str(runs), "--json", "FILE").items():
        unit = "slices" if "slices" in row else "bytes"
        yield Figure(name, row["cpu_s"], int(row[unit]), unit, int(row["peak_bytes"]))


def engine(runs: int) -> Iterator[Figure]:
    """The engine beside its peers: tasks, flows that share links, rings."""
    rows = _made("engine.py", "--runs", str(runs))["results"]
    peers: dict[str, tuple[str, float]] = {}
    for row in rows:
        name, unit, rate = _rate(row)
        if name.startswith(("simpy", "simgrid")):
            peers[row["case"]] = (name, rate)
    for row in rows:
        name, unit, rate = _rate(row)
        peer, theirs = peers.get(row["case"], ("", 0.0))
        if row["case"].endswith("closed form"):  # stands for flows, and plays none
            yield Figure(f"{row['case']}, {name}", row["cpu_s"])
            continue
        figure = Figure(f"{row['case']}, {name}", row["cpu_s"], row[unit], unit)
        yield replace(figure, ratio=rate / theirs, peer=peer) if peer and name == "native" else figure


def _rate(row: dict[str, Any]) -> tuple[str, str, float]:
    unit = next(key.removesuffix("_per_s") for key in row if key.endswith("_per_s"))
    return row["engine"], unit, row[f"{unit}_per_s"]


def all_to_all(runs: int) -> Iterator[Figure]:
    """Unequal all-to-alls over a fat tree, every flow played among all others."""
    for name, row in _made("all_to_all.py", "--runs", str(runs), "--json").items():
        yield Figure(f"{name} devices", row["cpu_s"], row["transfers"], "flows", row["peak_bytes"])


def scale(runs: int) -> Iterator[Figure]:
    """Whole predictions."""
    for name, row in _made("scale.py", "--runs", str(runs), "--json", "FILE").items():
        yield Figure(f"{name}, first of a process", row["first_call_s"], peak_bytes=row["peak_bytes"])
        yield Figure(f"{name}, another plan", row["call_median_s"])


TABLES: dict[str, Callable[[int], Iterator[Figure]]] = {
    "start": start, "files": files, "engine": engine, "all-to-all": all_to_all, "scale": scale,
}  # fmt: skip


def machine() -> str:
    """What the figures depend on besides the program."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def slower(figures: dict[str, float], earlier: list[dict[str, float]]) -> dict[str, float]:
    """Figures that are worse than those before by more than :data:`WORSE`, and how many times.

    Args:
        figures: CPU seconds by name.
        earlier: the same of earlier runs, oldest first.
    """
    found = {}
    for name, seconds in figures.items():
        before = [run[name] for run in earlier if name in run][-LATEST:]
        usual = statistics.median(before) if before else seconds
        if seconds > WORSE * usual:
            found[name] = seconds / usual
    return found


def runs_of(history: Path, which: str) -> list[dict[str, float]]:
    """Figures of the earlier runs on one machine, oldest first."""
    if not history.exists():
        return []
    lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line["cpu_s"] for line in lines if line["machine"] == which]


def main() -> None:
    """Make the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all of them if left out")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts")
    parser.add_argument("--history", type=Path, default=HERE.parent / "out" / "benchmarks.jsonl")
    parser.add_argument("--check", action="store_true", help="exit with 1 where something has become slower")
    given = parser.parse_args()
    if unknown := sorted(set(given.tables) - set(TABLES)):
        parser.error(f"no table {unknown[0]}: give {', '.join(TABLES)}")
    which = machine()
    print(f"{which}, load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else which)
    seconds: dict[str, float] = {}
    for name in given.tables or TABLES:
        print(f"\n{name}: {TABLES[name].__doc__}")
        for figure in TABLES[name](given.runs):
            seconds[f"{name}: {figure.name}"] = figure.seconds
            print(figure.line, flush=True)
    worse = slower(seconds, runs_of(given.history, which))
    for name, times in worse.items():
        print(f"slower than before, {times:.2f} times: {name}")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    line = {"when": now, "commit": commit.stdout.strip(), "machine": which, "runs": given.runs, "cpu_s": seconds}
    given.history.parent.mkdir(parents=True, exist_ok=True)
    with given.history.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    sys.exit(1 if worse and given.check else 0)


if __name__ == "__main__":
    main()
