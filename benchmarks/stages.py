"""What one prediction of each kind costs, stage by stage.

    python benchmarks/stages.py [--runs 5] [--only WORDS] [--json FILE] [--before FILE]

CPU milliseconds after import, with the model and the system at hand: ``first`` of a process, which fills all caches,
and ``call``, the median of several in which what was written, lowered and played before is forgotten, as for another
plan of a known model on a known machine.  Each case runs in a process of its own.  The stages:

dividing   the workload as the plan runs it, one rank's share of it (:func:`triosim.prediction.partitioning.divided`)
pricing    operator times
cutting    into pipeline stages, and what launching costs
writing    the programs of all rank classes, the host's part put in
memory     what occupies it, and the allocator
meeting    who meets whom: routes, collectives, folding of ranks
lowering   from programs to tasks
playing    the engine, once or several times
settling   what interference adds between plays
adding up  the result
rest       all else of the call
interval   how sure the time is, which is found when somebody asks (not part of ``total``)
layers     rows by module, the same

``--before`` prints a line of an earlier ``--json`` under each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "GPT-3 175B, tp8 pp8, 1,024 A100": {
        "model": "gpt3-175b", "machine": ("dgx-a100", 128), "plan": {"tp": 8, "pp": 8, "micro_batches": 96},
    },
    "the same, ZeRO-1, selective recompute": {
        "model": "gpt3-175b", "machine": ("dgx-a100", 128),
        "plan": {"tp": 8, "pp": 8, "micro_batches": 96, "zero": 1, "recompute": "selective"},
    },
    "GPT-3 175B, tp8 pp16, 16,384 H100": {
        "model": "gpt3-175b", "machine": ("dgx-h100", 2048), "plan": {"tp": 8, "pp": 16, "micro_batches": 64},
    },
    "GPT-3 175B, tp8 pp16, 131,072 H100": {
        "model": "gpt3-175b", "machine": ("dgx-h100", 16384), "plan": {"tp": 8, "pp": 16, "micro_batches": 64},
    },
    "Llama 3 8B, ZeRO-3, 64 H100": {
        "model": "llama-3-8b", "machine": ("dgx-h100", 8), "plan": {"zero": 3, "batch_size": 2},
    },
    "Mixtral 8x7B, tp2 ep8, 64 H100": {
        "model": "mixtral-8x7b", "machine": ("dgx-h100", 8),
        "plan": {"tp": 2, "parallelism": ("experts",), "parallelism_options": {"ep": 8}, "batch_size": 4},
    },
    "Llama 3 8B, inference, tp8": {
        "model": "llama-3-8b", "machine": ("dgx-h100", 1), "plan": {"tp": 8, "training": False},
    },
    "GPT-2, one H100": {"model": "gpt2", "machine": ("dgx-h100", 1), "plan": {"dp": 1, "idle_ok": True}},
}  # fmt: skip

WHERE = {
    "dividing": [("prediction.priced_job", "divided")],
    "pricing": [("prediction.priced_job", "priced")],
    "cutting": [("prediction.staged_job", "split"), ("prediction.launching", "host")],
    "writing": [("prediction.prepare", "_programs")],
    "memory": [("prediction.prepare", "footprint"), ("schedule.job", "liveness")],
    "meeting": [("network.lowering", "_meeting")],
    "lowering": [("prediction.playing", "lower")],
    "playing": [("prediction.playing", "play")],
    "settling": [("prediction.playing", "settled")],
    "adding up": [("prediction.summary.Summary", "result")],
}
"""Functions of each stage; what is called within one and belongs to another counts there."""
AFTER = {"interval": lambda result: result.interval_s, "layers": lambda result: result.layers}
COLUMNS = ("total", *WHERE, "rest", *AFTER)


class Clock:
    """CPU seconds by stage; a stage within another stops the other's clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running: list[str] = []
        self.since = 0.0

    def _turn(self) -> None:
        now = time.process_time()
        if self.running:
            self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted."""

        def call(*args: Any, **options: Any) -> Any:
            self._turn()
            self.running.append(stage)
            try:
                return function(*args, **options)
            finally:
                self._turn()
                self.running.pop()

        return call

    def taken(self) -> dict[str, float]:
        """Milliseconds since this was asked for the last time."""
        found = {stage: 1e3 * seconds for stage, seconds in self.seconds.items()}
        self.seconds.clear()
        return found


def _one(case: dict[str, Any], runs: int) -> dict[str, Any]:
    """Milliseconds of the first call, and medians of the next."""
    import resource

    import triosim

    clock = Clock()
    for stage, places in WHERE.items():
        for place, name in places:
            owner = resolve_name(f"triosim.{place}")
            setattr(owner, name, clock.timed(stage, getattr(owner, name)))
    machine, nodes = case["machine"]
    workload, system = triosim.model(case["model"]), triosim.system(machine, nodes=nodes)
    plan = triosim.Plan().replaced(**case["plan"])
    playing = import_module("triosim.prediction.playing")
    prepare = import_module("triosim.prediction.prepare")

    def run() -> dict[str, float]:
        for kept in (prepare._WRITTEN, playing._LOWERED, playing._PLAYED, playing._SHORT):
            kept.forget()
        clock.taken()
        result = clock.timed("rest", triosim.simulate)(workload, system, plan)
        found = clock.taken()
        found["total"] = sum(found.values())
        for name, ask in AFTER.items():
            clock.timed(name, ask)(result)
            found[name] = sum(clock.taken().values())
        return {name: found.get(name, 0.0) for name in COLUMNS}

    first, more = run(), [run() for _ in range(runs)]
    return {
        "first": first,
        "call": {name: statistics.median(one[name] for one in more) for name in COLUMNS},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _line(title: str, row: dict[str, float]) -> None:
    print(f"  {title:14}" + "".join(f"{row[name]:10,.1f}" for name in COLUMNS), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names hold these words")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_one(CASES[options.case], options.runs)))
        return
    before = json.loads(options.before.read_text()) if options.before else {}
    rows = {}
    print(f"{'CPU ms':16}" + "".join(f"{name:>10}" for name in COLUMNS))
    for name in CASES:
        if options.only not in name:
            continue
        command = [sys.executable, __file__, "--case", name, "--runs", str(options.runs)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", flush=True)
            continue
        row = rows[name] = json.loads(done.stdout.splitlines()[-1])
        old = before.get(name)
        print(f"{name} ({row['peak_bytes'] / 1e6:,.0f} MB{', before %.0f' % (old['peak_bytes'] / 1e6) if old else ''})")
        for kind in ("first", "call"):
            _line(kind, row[kind])
            if old:
                _line(f"{kind} before", old[kind])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
