"""How many plans a CPU second predicts, what one prediction costs by stage, and whether a sweep says what one does.

    python benchmarks/plans.py                    GPT-3 175B on 1,024 A100: a sample of all valid plans, swept
    python benchmarks/plans.py --plans 0          all of them (long)
    python benchmarks/plans.py --parts            the sample under a profiler: what it does how often, and how long
    python benchmarks/plans.py --stages           one prediction of each kind by stage, first and again

The plans are all that can be formed over tensor, pipeline and data parallel sizes, micro-batch size, schedule (1F1B,
interleaved), recomputation, ZeRO and sequence parallelism.  Caches are empty at the start and filled within the sweep.
CPU seconds are those of this process: one core.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim import sweep
from triosim.cli.workloads import load_workload
from triosim.fidelity import Fidelity
from triosim.hardware.machine import system
from triosim.plan import Plan
from triosim.prediction.simulate import simulate
from triosim.search.grid import grid, parse_axes, with_fields
from triosim.search.outcome import figures

AXES = (
    "tp=1,2,4,8", "pp=1,2,4,8,16,32,64", "micro-batch-size=1,2,4,8", "schedule=1f1b,interleaved-1f1b",
    "recompute=none,selective,full", "zero=0,1,2,3", "sequence-parallel=off,on",
)  # fmt: skip
BATCH = 1536
SERVERS = 128
BASE = Plan(global_batch_size=BATCH)


@dataclass(frozen=True)
class Kind:
    """A kind of prediction.

    Attributes:
        workload: a named model, or a file; those of the reference data are left out where they are not at hand.
        machine: a catalog system of so many servers, or devices on a topology.
        asked: the plan, by the names of axes.
    """

    workload: str
    machine: dict[str, Any]
    asked: dict[str, Any]


A100 = {"name": "dgx-a100", "nodes": SERVERS}
GPT = {"tp": 8, "pp": 8, "micro-batch-size": 1, "recompute": "full", "global-batch-size": BATCH}
KINETO = "kineto/critical_path-alexnet-benchmark_result_2869224_1695835535_trace.json.gz"
KINDS: dict[str, Kind] = {
    "GPT-3, tp 8 x pp 8": Kind("gpt3-175b", A100, GPT),
    "the same, ZeRO-1": Kind("gpt3-175b", A100, {**GPT, "zero": 1}),
    "the same, interleaved": Kind("gpt3-175b", A100, {**GPT, "schedule": "interleaved-1f1b"}),
    "GPT-3, tp 8, ZeRO-3": Kind("gpt3-175b", A100, {**GPT, "pp": 1, "zero": 3}),
    "Llama-3-8B, data parallel": Kind("llama-3-8b", {"name": "dgx-h100", "nodes": SERVERS}, {}),
    "shipped trace, 8 devices": Kind(
        "examples/resnet50-cpu.triosim", {"devices": 8, "topology": "ring", "link": "25GB/s", "latency": "1us"}, {}
    ),
    "imported Kineto, 8 GPUs": Kind(
        KINETO, {"devices": 8, "topology": "switch", "link": "300GB/s", "latency": "1us"}, {}
    ),
}
"""What is predicted, first and again, in one process each."""


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=60, help="plans to sweep, drawn at random; 0 for all")
    parser.add_argument("--compared", type=int, default=10, help="of them predicted alone as well")
    parser.add_argument("--tp", type=int, nargs="*", help="only these sizes of the tensor axis")
    parser.add_argument("--pp", type=int, nargs="*", help="only these sizes of the pipeline axis")
    parser.add_argument("--zero", type=int, nargs="*", help="only these stages of ZeRO")
    parser.add_argument("--detail", choices=("summary", "all"), default="summary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", action="store_true", help="one prediction of each kind by stage")
    parser.add_argument("--parts", action="store_true", help="what the sweep does how often, and how long")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where reference data is")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write what was measured to this file")
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(_kind(KINDS[given.kind], given.data)))
        return
    found = by_stage(given.data) if given.stages else swept(given)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


def swept(given: argparse.Namespace) -> dict[str, Any]:
    """Sweep plans, then predict some of them alone."""
    trace, machine = load_workload("gpt3-175b", training=True), system("dgx-a100", SERVERS)
    only = {name: set(values) for name in ("tp", "pp", "zero") if (values := getattr(given, name))}
    asked = [one for one in grid(parse_axes(AXES)) if all(one[name] in values for name, values in only.items())]
    draw = random.Random(given.seed)
    if given.plans:
        asked = [asked[i] for i in sorted(draw.sample(range(len(asked)), min(given.plans, len(asked))))]
    print(f"{len(asked):,} combinations, detail {given.detail}")
    began = time.process_time()
    profile = cProfile.Profile(time.process_time)
    if given.parts:
        profile.enable()
    outcomes = []
    for one in sweep(trace, machine, asked, detail=given.detail, base=BASE):
        outcomes.append(one)
        if len(outcomes) % 10 == 0:
            print(f"  {len(outcomes):,} after {time.process_time() - began:.1f} CPU s", flush=True)
    profile.disable()
    spent = time.process_time() - began
    valid = [one for one in outcomes if one.figures]
    fit = sum(one.fits for one in outcomes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(valid):,} plans with time, memory and binding part ({fit:,} fit) in {spent:.2f} CPU s")
    print(f"{len(valid) / spent:.2f} plans per CPU second, peak {peak:.0f} MB")
    evaluated = [one for one in valid if one.figures and one.figures.way != "simulated"]
    print(f"{len(evaluated):,} of them outlined or evaluated, the others simulated")
    if given.parts:
        by_part(profile, len(valid))
    errors = []
    compared = draw.sample(valid, min(given.compared, len(valid)))
    for one in compared:
        alone = figures(simulate(trace, machine, *with_fields(BASE, Fidelity(), asked[one.number]), fit=False))
        assert one.figures is not None
        errors.append(abs(one.figures.iteration_time_s / alone.iteration_time_s - 1))
        if one.figures.reserved_bytes != alone.reserved_bytes or one.figures.binds != alone.binds:
            print(f"  {one.asked}: {one.figures.reserved_bytes} bytes and {one.figures.binds}, "
                  f"alone {alone.reserved_bytes} and {alone.binds}")  # fmt: skip
    errors.sort()
    worst = max(errors, default=0.0)
    equal = sum(error < 1e-12 for error in errors)
    print(f"{len(compared)} of them alone: {equal} times equal, they differ by at most {worst:.2e}, "
          f"half of them by less than {errors[len(errors) // 2] if errors else 0:.2e}")  # fmt: skip
    return {
        "plans": len(valid), "combinations": len(asked), "fit": fit, "cpu_s": spent, "peak_mb": peak,
        "evaluated": len(evaluated), "plans_per_cpu_s": len(valid) / spent, "compared": len(compared),
        "worst": worst, "errors": errors,
    }  # fmt: skip


PARTS = (
    ("all of it", "task.py", "outcome"),
    ("outlined in blocks", "outline.py", "outline_in_blocks"),
    ("  what plans share, looked up", "shared_step.py", "shared_step"),
    ("    a short step divided and priced", "shared_step.py", "_priced_few"),
    ("    a short step cut", "shared_step.py", "_shared"),
    ("  chunks, looked up", "block_passes.py", "facts"),
    ("    worked out", "block_passes.py", "_known"),
    ("  passes, looked up", "block_passes.py", "summed"),
    ("    run", "contracted_passes.py", "pass_of"),
    ("      scripts written", "pass_script.py", "script"),
    ("  passes on the mesh of the plan", "block_passes.py", "bound"),
    ("  ends of iterations", "block_outline.py", "_update"),
    ("  memory", "block_outline.py", "reserved"),
    ("    allocations, put in order", "chunk_memory.py", "_stage"),
    ("    allocator", "allocation_order.py", "reserved_bytes"),
    ("  classes of transfers", "transfer_times.py", "transfer_classes"),
    ("    worked out", "transfer_times.py", "_uses"),
    ("  actions run", "contended.py", "contended_run"),
    ("outlined from the whole step", "outline.py", "run"),
    ("evaluated", "evaluate.py", "evaluate_plan"),
)  # fmt: skip
"""Parts of a sweep: where each is, those that are looked up together with what is worked out where nothing is known."""


def by_part(profile: cProfile.Profile, plans: int) -> None:
    """Print how often a plan does what, and how long that takes with all that it asks for."""
    known = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    print(f"{'':36} {'calls':>9} {'per plan':>9} {'ms of a plan':>13}")
    for words, file, name in PARTS:
        rows = [row for (path, _, function), row in known.items() if (Path(path).name, function) == (file, name)]
        calls, seconds = sum(row[1] for row in rows), sum(row[3] for row in rows)
        print(f"{words:36} {calls:9,} {calls / plans:9.2f} {1e3 * seconds / plans:13.2f}")


def by_stage(data: Path) -> dict[str, Any]:
    """CPU seconds of each stage of one prediction, the first time in a process and again (least of three)."""
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        if kind.workload == KINETO and not (data / KINETO).exists():
            continue
        command = [sys.executable, __file__, "--kind", name, "--data", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        first, *others = json.loads(done.stdout)
        found[f"{name}, first"], found[f"{name}, again"] = first, min(others, key=lambda spent: spent["sum"])
    heads = list(dict.fromkeys(stage for spent in found.values() for stage in spent))
    width = max(map(len, found))
    print(f"{'CPU ms':{width}} " + " ".join(f"{head:>9}" for head in heads))
    for name, spent in found.items():
        print(f"{name:{width}} " + " ".join(f"{1e3 * spent.get(head, 0):9.1f}" for head in heads))
    return found


def _kind(kind: Kind, data: Path) -> list[dict[str, float]]:
    """The stages of four predictions of a kind, one after another in this process."""
    path = data / kind.workload
    trace = load_workload(str(path) if path.exists() else kind.workload, training=True)
    machine = system(**kind.machine)
    asked, base = dict(kind.asked), Plan()
    if "global-batch-size" in asked:
        base = Plan(global_batch_size=asked.pop("global-batch-size"))
    plan = with_fields(base, Fidelity(), asked)[0] if asked else base
    return [_one(trace, machine, plan) for _ in range(4)]


STAGES = {
    "dividing the step": "dividing", "pricing operators": "pricing", "writing the programs of the ranks": "writing",
    "lowering the programs": "lowering", "playing the job": "playing", "adding up": "adding up",
}  # fmt: skip
"""What a prediction tells, and what comes after it in the table."""


def _one(trace: Any, machine: Any, plan: Plan) -> dict[str, float]:
    spent: dict[str, float] = {"rescaling": 0.0}
    stage, since = "rescaling", time.process_time()

    def progress(words: str) -> None:
        nonlocal stage, since
        now = time.process_time()
        spent[stage] = spent.get(stage, 0) + now - since
        stage, since = STAGES.get(words, stage), now

    result = simulate(trace, machine, plan, progress=progress, fit=False)
    progress("adding up")
    spent["sum"] = sum(spent.values())
    for name, make in (("interval", lambda: result.interval_s), ("layers", lambda: result.layers)):
        since = time.process_time()
        make()
        spent[name] = time.process_time() - since
    return spent


if __name__ == "__main__":
    main()
