"""Predictions that are kept: what a change of structure must not change.

Each case is a command line of ``triosim train`` or ``triosim infer``.  Kept of it are times in picoseconds, what every
rank class sends and in which order, and memory; not kept is how a result was found (tasks, folding, engine) nor its
interval.

``python -m tests.golden.plans`` prints what differs from the kept results; ``--write`` keeps what comes out now, which
belongs in a commit that says why.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("plans.json")
ROOT = Path(__file__).resolve().parents[2]
RESNET, GPT = "examples/resnet50-cpu.triosim", "examples/gpt-small-cpu.triosim"
MIXED = "tests/golden/mixed.toml"
SMALL = "--seq-len 128"
LINK = "--link 25GB/s --latency 3us"

CASES = {
    # recorded traces, one device and data parallel
    "resnet-1": f"{RESNET} --devices 1",
    "resnet-ddp-8-ring": f"{RESNET} --devices 8 --topology ring --link 10GB/s --latency 5us",
    "resnet-ddp-8-unfolded": f"{RESNET} --devices 8 --link 10GB/s --fold off",
    "resnet-ddp-overlap-off": f"{RESNET} --devices 4 {LINK} --overlap off",
    "resnet-ddp-buckets": f"{RESNET} --devices 4 {LINK} --bucket-size 4MB",
    "resnet-batch-2x": f"{RESNET} --devices 2 {LINK} --batch-size 64",
    "resnet-accumulate": f"{RESNET} --devices 4 {LINK} --batch-size 32 --micro-batches 4",
    "resnet-iterations": f"{RESNET} --devices 4 {LINK} --iterations 3",
    "resnet-dataparallel": f"{RESNET} --devices 4 {LINK} --dp-style dataparallel",
    "resnet-zero-1": f"{RESNET} --devices 4 {LINK} --zero 1",
    "resnet-zero-2": f"{RESNET} --devices 4 {LINK} --zero 2",
    "resnet-zero-3": f"{RESNET} --devices 4 {LINK} --zero 3",
    "resnet-zero-3-overlap-off": f"{RESNET} --devices 4 {LINK} --zero 3 --overlap off",
    "resnet-gather": f"{RESNET} --tp 2 --dp 2 {LINK} --tp-style gather",
    "resnet-gpipe": f"{RESNET} --pp 4 {LINK} --batch-size 32 --micro-batches 8 --schedule gpipe",
    "resnet-1f1b": f"{RESNET} --pp 4 --dp 2 {LINK} --batch-size 32 --micro-batches 8",
    "resnet-stages": f"{RESNET} --pp 2 {LINK} --micro-batches 2 --stages layer3",
    "resnet-host-none": f"{RESNET} --devices 4 {LINK} --host none",
    "resnet-host-graph": f"{RESNET} --devices 4 --device A100-SXM4-80GB {LINK} --host graph",
    "resnet-on-h100": f"{RESNET} --devices 2 --device H100-SXM5-80GB {LINK}",
    "resnet-mesh": f"{RESNET} --devices 8 --topology mesh --shape 4x2 --link 10GB/s",
    "resnet-torus-equal-split": f"{RESNET} --devices 8 --topology torus --shape 4x2 --link 10GB/s --solver equal-split",
    "resnet-store-and-forward": f"{RESNET} --devices 4 --topology ring --link 10GB/s --solver store-and-forward",
    "resnet-circuit": f"{RESNET} --devices 4 --topology full {LINK} --solver circuit --solver-option setup=80us",
    "resnet-tree": f"{RESNET} --devices 8 --topology tree --shape 2x4 --link 10GB/s",
    "resnet-leaf-spine": f"{RESNET} --devices 16 --topology leaf-spine --shape 4x4 --link 10GB/s "
    "--topology-option oversubscription=2",
    "resnet-placement": f"{RESNET} --devices 4 --tp 2 --topology ring --link 10GB/s --placement 2,0,3,1",
    "resnet-infer": f"infer {RESNET} --devices 2 {LINK}",
    "resnet-inputs-on-host": f"{RESNET} --devices 2 {LINK} --place input=host --host-link 12GB/s --iterations 2",
    "resnet-weights-in-pool": f"{RESNET} --devices 2 {LINK} --place weight=pool --pool-link 8GB/s",
    "resnet-mixed-devices": f"{RESNET} --system {MIXED} --batch-size 16",
    "gpt-ddp": f"{GPT} --devices 4 {LINK}",
    "gpt-tp": f"{GPT} --tp 2 {LINK}",
    "gpt-tp-unfolded": f"{GPT} --tp 2 --dp 2 {LINK} --fold off",
    "gpt-tp-overlap-off": f"{GPT} --tp 2 --dp 2 {LINK} --overlap off",
    "gpt-gather": f"{GPT} --tp 2 {LINK} --tp-style gather",
    "gpt-3d": f"{GPT} --pp 2 --tp 2 --dp 2 --micro-batches 4 {LINK}",
    "gpt-3d-zero-1": f"{GPT} --pp 2 --tp 2 --dp 2 --micro-batches 4 --zero 1 {LINK}",
    "gpt-pp-zero-2": f"{GPT} --pp 2 --dp 2 --micro-batches 4 --zero 2 {LINK}",
    "gpt-pp-zero-3": f"{GPT} --pp 2 --dp 2 --micro-batches 2 --zero 3 {LINK}",
    "gpt-gpipe-unfolded": f"{GPT} --pp 2 --dp 2 --micro-batches 4 --schedule gpipe --fold off {LINK}",
    "gpt-recompute": f"{GPT} --devices 2 --recompute full {LINK}",
    "gpt-infer-tp": f"infer {GPT} --tp 2 {LINK}",
    "gpt-mixed-pipeline": f"{GPT} --system {MIXED} --pp 2 --micro-batches 2",
    # named models on ready systems
    "gpt2-a100": f"gpt2 {SMALL} --device A100-SXM4-80GB",
    "gpt2-ddp": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --batch-size 4",
    "gpt2-tp": f"gpt2 {SMALL} --system dgx-a100 --tp 4",
    "gpt2-tp-plan": f"gpt2 {SMALL} --system dgx-a100 --tp 2 --tp-plan tests/golden/tp_plan.toml",
    "gpt2-zero-3-accumulate": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --zero 3 --batch-size 8 --micro-batches 2",
    "gpt2-offload-optimizer": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --offload optimizer",
    "gpt2-offload-all": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --offload optimizer --offload activations "
    "--offload parameters",
    "gpt2-recompute-full-pp": f"gpt2 {SMALL} --system dgx-h100 --pp 4 --tp 2 --micro-batches 8 --recompute full",
    "gpt2-recompute-selective": f"gpt2 {SMALL} --system dgx-h100 --tp 8 --recompute selective",
    "gpt2-two-servers": f"gpt2 {SMALL} --system dgx-a100 --nodes 2 --tp 8 --zero 1",
    "gpt2-tp4-across": f"gpt2 {SMALL} --system dgx-a100 --nodes 2 --tp 4 --pp 2 --micro-batches 4",
    "gpt2-ring-simple": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --algorithm ring --protocol Simple",
    "gpt2-tree": f"gpt2 {SMALL} --system dgx-a100 --nodes 2 --dp 16 --algorithm tree",
    "gpt2-roofline": f"gpt2 {SMALL} --device H100-SXM5-80GB --operator-times roofline",
    "gpt2-interference": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --interference 1.3",
    "gpt2-interference-off": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --interference off",
    "gpt2-fp32": f"gpt2 {SMALL} --device A100-SXM4-80GB --precision float32",
    "gpt2-compiled": f"gpt2 {SMALL} --device A100-SXM4-80GB --host compiled",
    "llama-7b-tp": f"llama-2-7b {SMALL} --system dgx-h100 --tp 8",
    "llama-7b-fsdp": f"llama-2-7b {SMALL} --system dgx-h100 --dp 8 --zero 3",
    "llama-7b-fsdp-tp": f"llama-2-7b {SMALL} --system dgx-h100 --dp 4 --tp 2 --zero 2",
    "llama-7b-pp": f"llama-2-7b {SMALL} --system dgx-h100 --pp 8 --micro-batches 8",
    "llama-7b-infer": f"infer llama-2-7b {SMALL} --device H200",
    "bert-tp": f"bert-base {SMALL} --system dgx-a100 --tp 4 --dp 2",
    "bert-ddp": f"bert-base {SMALL} --system dgx-a100 --dp 8 --batch-size 8",
    "densenet-pp": "densenet121 --system dgx-a100 --pp 4 --dp 2 --batch-size 16 --micro-batches 4",
    "vgg-tp": "vgg11 --system dgx-a100 --tp 8 --batch-size 8",
    "vgg-zero-2": "vgg11 --system dgx-a100 --dp 8 --zero 2 --batch-size 8",
    "resnet18-h100-ddp": "resnet18 --system dgx-h100 --dp 8 --batch-size 32 --precision bfloat16",
    # schedules, and what else moves memory about
    "gpt2-gpipe-pp": f"gpt2 {SMALL} --system dgx-a100 --pp 4 --dp 2 --micro-batches 8 --schedule gpipe",
    "gpt2-interleaved": f"gpt2 {SMALL} --system dgx-a100 --pp 4 --micro-batches 8 --schedule interleaved-1f1b",
    "gpt2-interleaved-zero-3": f"gpt2 {SMALL} --system dgx-a100 --pp 2 --dp 4 --micro-batches 4 --zero 3 "
    "--schedule interleaved-1f1b",
    "gpt2-zb-h1": f"gpt2 {SMALL} --system dgx-a100 --pp 4 --dp 2 --micro-batches 8 --schedule zb-h1",
    "gpt2-pp-offload-all": f"gpt2 {SMALL} --system dgx-a100 --pp 2 --dp 4 --micro-batches 4 --offload optimizer "
    "--offload activations --offload parameters",
    "gpt2-interleaved-offload": f"gpt2 {SMALL} --system dgx-a100 --pp 2 --dp 4 --micro-batches 4 --offload activations "
    "--offload optimizer --schedule interleaved-1f1b",
    "gpt2-offload-alone": f"gpt2 {SMALL} --system dgx-a100 --dp 1 --idle-ok --offload optimizer --offload activations "
    "--offload parameters --micro-batches 3 --batch-size 3 --iterations 2",
    "gpt2-zero-2-offload": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --zero 2 --offload optimizer --offload activations",
    "gpt2-zero-1-offload": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --zero 1 --offload optimizer --offload parameters",
    "gpt2-sequence": f"gpt2 {SMALL} --system dgx-a100 --tp 4 --parallelism sequence --batch-size 2",
    "gpt2-hsdp": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --zero 3 --parallelism hsdp",
    "gpt2-hsdp-zero-1": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --zero 1 --parallelism hsdp",
    "gpt2-dataparallel": f"gpt2 {SMALL} --system dgx-a100 --dp 8 --dp-style dataparallel --iterations 2",
    "resnet-infer-dataparallel": f"infer {RESNET} --devices 4 {LINK} --dp-style dataparallel",
    # foreign traces beside the repository, where they are
    "vgg13-csv-ddp": "../shared/data/triosim-h100/vgg13 --devices 8 --topology ring --link 113.75GB/s --latency 5us",
    "vgg13-csv-gather": "../shared/data/triosim-h100/vgg13 --devices 4 --tp 4 --tp-style gather --link 113.75GB/s",
    "resnet50-csv-pp": "../shared/data/triosim-h100/resnet50 --pp 2 --micro-batches 2 --link 113.75GB/s",
    "alexnet-kineto": "../shared/data/kineto/critical_path-alexnet-benchmark_result_2869224_1695835535_trace.json.gz "
    "--devices 2 --link 25GB/s --trace-batch-size 128",
}
"""Name -> command line; ``train`` unless it begins with ``infer``."""

_COLLECTIVE = ("axis", "kind", "group_size", "bytes", "count", "algorithm", "protocol")
_MEMORY = ("allocated_bytes", "reserved_bytes", "categories", "host_bytes")


class Absent(Exception):
    """Measured data is not beside the repository."""


def observe(line: str) -> dict[str, Any]:
    """What a command line predicts, in plain values of which every one is exact.

    Raises:
        Absent: measured data that the case reads is not here.
    """
    words = shlex.split(line)
    training = words[0] != "infer"
    words = words if training else words[1:]
    if words[0].startswith("../") and not (ROOT / words[0]).exists():
        raise Absent(words[0])
    trace, system, plan, fidelity = _job(
        [word if "/" not in word or word.startswith("--") else _path(word) for word in words], training
    )
    from triosim.prediction.simulate import simulate

    sent: list[Any] = []
    result = simulate(
        trace, system, plan, fidelity, on_finished=lambda run, placed, *_: sent.extend(_sent(run, placed.mesh.names))
    )
    plain = result.to_dict()
    return {
        "iteration_ps": _ps(plain["iteration_time_s"]),
        "active_ps": _ps(plain["active_time_s"]),
        "breakdown_ps": {name: _ps(seconds) for name, seconds in plain["breakdown_s"].items()},
        "devices": [
            {name: _ps(v) if name.endswith("_s") else v for name, v in row.items() if name != "idle_s"}
            for row in plain["devices"]
        ],
        "stages": [[_ps(row["compute_s"]), _ps(row["communication_s"])] for row in plain["stages"]],
        "collectives": [
            " ".join(str(row[name]) for name in _COLLECTIVE) + f" {_ps(row['seconds'])}" for row in plain["collectives"]
        ],
        "layers": _digest([[r["module"], r["phase"], _ps(r["compute_s"]), _ps(r["communication_s"]), r["input_bytes"],
                            r["output_bytes"], r["weight_bytes"]] for r in plain["layers"]]),
        "memory": {name: plain["memory"][name] for name in _MEMORY},
        "peak": [plain["memory"]["peak"][name] for name in ("phase", "module", "operator")],
        "sent": sent,
    }  # fmt: skip


def _path(word: str) -> str:
    return str(ROOT / word) if (ROOT / word).exists() else word


def _job(words: list[str], training: bool) -> Any:
    """What a command line asks for: workload, system, plan and fidelity."""
    from triosim.cli import predict
    from triosim.cli.main import app

    seen: list[Any] = []
    original = predict._predict
    try:
        predict._predict = lambda options, training: seen.append(predict.job(options, training))  # type: ignore[assignment]
        app(["train" if training else "infer", *words], standalone_mode=False)
    finally:
        predict._predict = original
    return seen[0]


def _sent(run: Any, axes: tuple[str, ...]) -> list[list[Any]]:
    """For each rank class of the first iteration: number, bytes and digest of its transfers in order."""
    from triosim.schedule.program import COLLECTIVES, Op

    found = []
    for program in run.programs:
        rows = [
            (Op(op).name, COLLECTIVES[what] if what >= 0 else "", axes[axis] if axis >= 0 else "", size)
            for op, what, axis, size, iteration in zip(
                program.op.tolist(), program.what.tolist(), program.axis.tolist(), program.bytes.tolist(),
                program.iteration.tolist(), strict=True,
            )
            if op not in (Op.COMPUTE, Op.ISSUE, Op.RECEIVE) and iteration == 0
        ]  # fmt: skip
        found.append(
            [int(program.ranks.min()), len(program.ranks), len(rows), sum(row[3] for row in rows), _digest(rows)]
        )
    return sorted(found)


def _ps(seconds: float) -> int:
    return round(seconds * 10**12)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def kept() -> dict[str, Any]:
    """The results that are kept."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def differences(before: Any, now: Any, place: str = "") -> list[str]:
    """Where two results differ, a line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*before, *(name for name in now if name not in before)]
        return [d for n in names for d in differences(before.get(n), now.get(n), f"{place}.{n}" if place else n)]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [d for n, (a, b) in enumerate(zip(before, now, strict=True)) for d in differences(a, b, f"{place}[{n}]")]
    return [] if before == now else [f"{place}: {before} -> {now}"]


def main(words: list[str]) -> int:
    """Compare or write; names of cases may follow."""
    write, names = "--write" in words, [word for word in words if not word.startswith("-")] or list(CASES)
    results, different = kept(), 0
    for name in names:
        try:
            now = json.loads(json.dumps(observe(CASES[name])))
        except Absent as missing:
            print(f"{name}: {missing} is not here")
            continue
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            different += 1
            continue
        found = differences(results.get(name), now)
        different += bool(found)
        for line in found[:8]:
            print(f"{name}: {line[:200]}")
        results[name] = now
    if write:
        text = ",\n".join(f" {json.dumps(n)}: {json.dumps(results[n])}" for n in CASES if n in results)
        KEPT.write_text("{\n" + text + "\n}\n", encoding="utf-8")
    print(f"{different} of {len(names)} differ" + (", written" if write else ""))
    return 1 if different and not write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
