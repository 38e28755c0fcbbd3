"""How long whole predictions take, from a ResNet on 32 GPUs to a 175 B-parameter model on 131,072.

    python benchmarks/scale.py [--runs 5] [--json FILE] [--data ../shared/data]

Each case runs in a process of its own.  CPU seconds are those of the whole call to ``triosim.simulate`` after import,
with the model and the system at hand, and of the engine alone; the least and the median of several calls.  Three kinds
of call are listed: ``first`` of a process, which fills all caches; ``call``, where what was written and played before
is forgotten, as for another plan of a known model on a known machine; and ``again``, the same call once more.
``every rank`` plays all of them instead of folding what is
alike.  The released TrioSim takes 33 CPU seconds for ResNet-50 on 32 GPUs and about 240 on 64
(measured on a machine of this class).  Playing every rank of the 2,048 takes most memory, up to three quarters of the
machine's here; where that is not enough its row says how much it would be.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

GPT, LLAMA = "model:gpt3-175b", "model:llama-3-8b"
CASES: dict[str, dict] = {
    "ResNet-50 DDP, 32 GPUs, every rank": {"workload": "resnet50", "devices": 32, "fold": False},
    "ResNet-50 DDP, 64 GPUs, every rank": {"workload": "resnet50", "devices": 64, "fold": False},
    "ResNet-50 DDP, 1,024 GPUs, every rank": {"workload": "resnet50", "devices": 1024, "fold": False},
    "ResNet-50 DDP, 1,024 GPUs": {"workload": "resnet50", "devices": 1024},
    "GPT-3 175B, 1,024 A100": {"workload": GPT, "nodes": 128, "pp": 8, "dp": 16, "machine": "dgx-a100", "parts": 96},
    "GPT-3 175B, 1,024 A100, TP 4": {
        "workload": GPT,
        "nodes": 128,
        "machine": "dgx-a100",
        "plan": {"tp": 4, "pp": 8, "micro_batches": 96},
    },
    "GPT-3 175B, 4,096 A100, TP 4": {
        "workload": GPT,
        "nodes": 512,
        "machine": "dgx-a100",
        "plan": {"tp": 4, "pp": 8, "micro_batches": 96},
    },
    "Llama-3-8B DDP, 1,024 H100": {"workload": LLAMA, "nodes": 128, "plan": {}},
    "Llama-3-8B DDP, 8,192 H100": {"workload": LLAMA, "nodes": 1024, "plan": {}},
    "Llama-3-8B DDP, 131,072 H100": {"workload": LLAMA, "nodes": 16384, "plan": {}},
    "Llama-3-8B TP 8, 4,096 H100, one slow": {"workload": LLAMA, "nodes": 512, "plan": {"tp": 8}, "slow": {5: 1.25}},
    "Llama-3-8B TP 8 PP 8, 4,096, one slow": {
        "workload": LLAMA,
        "nodes": 512,
        "plan": {"tp": 8, "pp": 8, "micro_batches": 8},
        "slow": {5: 1.25},
    },
    "Llama-3-8B DDP, 4,096 H100, one slow": {"workload": LLAMA, "nodes": 512, "plan": {}, "slow": {5: 1.25}},
    "Llama-3-8B TP 8, 512 H100, placed at random": {"workload": LLAMA, "nodes": 64, "plan": {"tp": 8}, "seed": 0},
    "GPT-3 175B, 2,048 GPUs": {"workload": GPT, "nodes": 256, "dp": 16},
    "GPT-3 175B, 2,048 GPUs, every rank": {"workload": GPT, "nodes": 256, "dp": 16, "fold": False, "runs": 1},
    "GPT-3 175B, 16,384 GPUs": {"workload": GPT, "nodes": 2048, "dp": 128},
    "GPT-3 175B, 131,072 GPUs": {"workload": GPT, "nodes": 16384, "dp": 1024},
}
"""Tensor parallel 8, pipeline 16 (on A100 8), 1F1B with 64 micro-batches (96) for GPT-3 unless the case says otherwise;
data parallel alone for Llama; a ring of 25 GB/s links for ResNet-50."""


def _one(case: dict, runs: int, data: Path) -> dict:
    """Run a case in this process."""
    import resource
    import time

    import triosim
    from triosim.engine.graph import GraphRun
    from triosim.engine.play import play
    from triosim.hardware.stragglers import slowed
    from triosim.prediction import playing, prefixed_run, prepare

    if case["workload"].startswith("model:"):
        trace = triosim.model(case["workload"].removeprefix("model:"))
        system = slowed(triosim.system(case.get("machine", "dgx-h100"), nodes=case["nodes"]), case.get("slow", {}))
        sizes = {"tp": 8, "pp": case.get("pp", 16), "dp": case.get("dp"), "micro_batches": case.get("parts", 64)}
        plan = triosim.Plan(**case.get("plan", sizes))
        if "seed" in case:
            devices = list(range(system.devices))
            random.Random(case["seed"]).shuffle(devices)
            plan = replace(plan, placement=tuple(devices))
    else:
        folder = data / "triosim-h100" / case["workload"]
        trace = triosim.load(folder if folder.exists() else Path("examples/resnet50-cpu.triosim"))
        system = triosim.system(devices=case["devices"], topology="ring", link="25GB/s", latency="1us")
        plan = triosim.Plan()
    models = triosim.Fidelity(fold=case.get("fold", True))
    plays: list[tuple[int, float]] = []

    def timed(*given: Any) -> GraphRun:
        began = time.process_time()
        played = play(*given)
        plays.append((len(given[0]), time.process_time() - began))
        return played

    for module in (playing, prefixed_run):
        mock.patch.object(module, "play", timed).start()
    calls: list[float] = []
    again: list[float] = []
    result: Any = None
    for _ in range(case.get("runs", runs) + 1):
        del result  # a large one and the next are not there at once
        for kind in (calls, again) if case.get("fold", True) else (calls,):  # every rank is too large to be kept
            began = time.process_time()
            result = triosim.simulate(trace, system, plan, models)
            kind.append(time.process_time() - began)
        for kept in (prepare._WRITTEN, playing._LOWERED, playing._PLAYED, playing._SHORT):
            kept.forget()
    most = max(tasks for tasks, _ in plays)  # every rank by itself is played folded before
    engine = [seconds for tasks, seconds in plays if tasks == most]
    return {
        "iteration_time_s": result.iteration_time_s,
        "tasks": result.simulation.tasks,
        "flows": result.simulation.flows,
        "engine": result.stats.engine,
        "engine_s": min(engine[1:]),
        "engine_median_s": statistics.median(engine[1:]),
        "first_call_s": calls[0],
        "call_s": min(calls[1:]),
        "call_median_s": statistics.median(calls[1:]),
        "again_s": min(again, default=None),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", help="cases with this in their names")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        from triosim.core.errors import InputError
        from triosim.core.limits import machine_bytes, set_memory_limit

        set_memory_limit(machine_bytes() * 3 // 4)
        try:
            print(json.dumps(_one(CASES[options.case], options.runs, options.data)))
        except InputError as error:  # more than the memory of this machine allows
            sys.exit(str(error))
        return
    rows = {}
    kinds = "".join(f" {kind:>8}" for kind in ("call", "first", "again", "memory"))
    print(f"{'':40} {'tasks':>10} {'flows':>10} {'engine':>9}{kinds}  iteration")
    for name in (name for name in CASES if (options.only or "") in name):
        command = [sys.executable, __file__, "--case", name, "--runs", str(options.runs), "--data", str(options.data)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["failed"])[-1]
            needs = re.search(r"would take about (.*?) of memory", said)
            print(f"{name:40} {f'not here: needs {needs[1]}' if needs else said}", flush=True)
            continue
        row = rows[name] = json.loads(done.stdout)
        again = f"{row['again_s']:6.2f} s" if row["again_s"] is not None else 8 * " "
        print(
            f"{name:40} {row['tasks']:10,} {row['flows']:10,} {1e3 * row['engine_s']:6.0f} ms {row['call_s']:6.2f} s"
            f" {row['first_call_s']:6.2f} s {again} {row['peak_bytes'] / 1e6:5.0f} MB  {row['iteration_time_s']:.9f} s",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
