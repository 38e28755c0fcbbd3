"""Composition alone: recorded steps played again from their own kernels and host costs, against what they took.

    python -m validation.judge.kineto_replay --data ../shared/data/kineto

Each step of each torch.profiler trace is read by the program's own reader and played three times in a row by its own
engine, as a chain without time stamps (:mod:`triosim.composition.replay`); the last is what a steady step takes.
Measured is the time from the step's first kernel to that of the next step, found here in the file itself; for the last
step of a file the longer of its mark and of the span of its kernels.  Files that mark no step hold no whole one.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from validation import command

import triosim
from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.composition.replay import recorded
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.network.device_assignment import assign_devices
from triosim.network.lowering import lower
from triosim.network.routes import Router
from triosim.partition.mesh import Mesh
from triosim.schedule.program import Op
from triosim.trace.tables import Trace

WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
TARGET = {"ns_resolution": 0.03}
"""Largest error of a step; 10 % for the others."""


def main() -> int:
    """Print a line for each step; the exit code tells whether all are within their bounds."""
    parser = command.parser(__doc__, "folder of torch.profiler traces")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'trace':28} {'step':>5} {'measured':>10} {'replayed':>10} {'error':>7} {'host':>10} {'device':>10}  binds")
    for path in sorted(command.find(options.data, "kineto/").iterdir()):
        if ".json" not in path.name:
            continue
        real = measured(path)
        if not real:
            print(f"{_short(path):28}     - marks no step")
        for step, seconds in real.items():
            try:
                trace = triosim.load(path, step=step)
            except InputError as refused:
                print(refused)
                continue
            host, device = float(np.nansum(trace.operators.host_s)), float(trace.kernels.device_s.sum())
            found = replayed(trace)
            error = found / seconds - 1
            print(
                f"{_short(path):28} {step:>5} {seconds * 1e3:7.2f} ms {found * 1e3:7.2f} ms {error:+7.2%} "
                f"{host * 1e3:7.2f} ms {device * 1e3:7.2f} ms  {'host' if host > device else 'device'}"
            )
            bound = next((b for name, b in TARGET.items() if path.name.startswith(name)), 0.1)
            rows.append({"trace": path.name, "step": step, "measured_s": seconds, "replayed_s": found, "bound": bound})
    if not rows:
        raise InputError(f"{options.data}: holds no torch.profiler trace that marks a step")
    errors = [abs(r["replayed_s"] / r["measured_s"] - 1) for r in rows]
    print(f"{len(rows)} steps: mean {np.mean(errors):.2%}, worst {max(errors):.2%}")
    command.write(options.json, rows)
    return 0 if all(error <= row["bound"] for error, row in zip(errors, rows, strict=True)) else 1


def _short(path: Path) -> str:
    return path.name.partition(".")[0][:28]


def replayed(trace: Trace, times: int = 3) -> float:
    """Seconds of a step that is played so often in a row, from the end of the last but one to the end of the last."""
    program = recorded(trace, times)
    router = Router(alone())
    means = CollectiveCommunication(router.system, router, Collectives())
    lowered = lower([program], assign_devices(Mesh((("dp", 1),)), 1), router, means)
    played = lowered.worked(play(lowered.graph, lowered.wires))
    ends = [int(played.finish[(program.op != Op.ISSUE) & (program.iteration == i)].max()) for i in range(times)]
    return (ends[-1] - ends[-2]) / PICOSECONDS_PER_SECOND


def alone() -> System:
    """One device."""
    return triosim.system(devices=1)


def measured(path: Path) -> dict[str, float]:
    """Label and seconds of each step that a file marks, on the device that worked most."""
    content = path.read_bytes()
    data = json.loads((gzip.decompress(content) if path.suffix == ".gz" else content).decode(errors="replace"))
    events = [e for e in (data["traceEvents"] if isinstance(data, dict) else data) if e.get("ph") == "X"]
    named = [(str(e.get("cat", "")).lower(), e, e.get("args") or {}) for e in events]
    marks = sorted(
        (float(e["ts"]), float(e["dur"]), e["name"])
        for cat, e, _ in named
        if "ProfilerStep#" in str(e.get("name")) and not cat.startswith("gpu")
    )
    calls: dict[object, float] = {}
    for cat, e, args in named:
        if cat.endswith(("runtime", "driver")) and "correlation" in args:
            calls.setdefault(args["correlation"], float(e["ts"]))
    work: dict[object, list[tuple[float, float, float]]] = {}
    for cat, e, args in named:
        if cat in WORK:
            start = float(e["ts"])
            span = (calls.get(args.get("correlation"), start), start, start + float(e["dur"]))
            work.setdefault(args.get("device"), []).append(span)
    if not work:
        return {}
    busiest = sorted(max(work.values(), key=lambda spans: sum(end - start for _, start, end in spans)))
    found = {}
    for number, (start, length, name) in enumerate(marks):
        last = number + 1 == len(marks)
        own = [w for w in busiest if start <= w[0] and (last or w[0] < marks[number + 1][0])]
        later = [w[1] for w in busiest if not last and w[0] >= marks[number + 1][0]]
        if not own:
            continue
        begin = min(w[1] for w in own)
        seconds = min(later) - begin if later else max(length, max(w[2] for w in own) - begin)
        found[name.rpartition("#")[2].strip()] = seconds * 1e-6
    return found


if __name__ == "__main__":
    command.run(main)
