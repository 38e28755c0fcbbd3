"""Networks on this machine's processor, predicted from kernels that were measured on it, and timed.

Kernels and networks run on one thread, and both are timed by what that thread took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from validation.edge_networks import NETWORKS, torch_step

from triosim.sources.runtimes.onnx_file import inputs, onnx_text
from triosim.sources.runtimes.onnx_runtime import OnnxRuntime, typical

RUNTIMES = ("onnxruntime", "torch")


def table(runtime: str, budget: str) -> dict[str, dict[str, Any]]:
    """By network: ``measured`` and ``predicted`` seconds, the interval's ``low`` and ``high``.

    Networks are timed before and after the kernels, and the median counts: a machine changes its pace.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "pack.json"
        files = {name: Path(folder) / f"{name}.onnx" for name in NETWORKS}
        steps: dict[str, Callable[[], float]] = {}
        for name, made in NETWORKS.items():
            graph = made()
            content = onnx_text(graph)
            files[name].write_bytes(content)
            if runtime == "torch":
                steps[name] = _with_torch(torch_step(graph))
            else:
                steps[name] = partial(_with_onnx_runtime, content, inputs(graph))
        before = {name: step() for name, step in steps.items()}
        _triosim(
            "calibrate", "--run", "--runtime", runtime, "--device", "cpu", "--budget", budget, "-o", str(pack), "-q"
        )
        for name, step in steps.items():
            said = _triosim(
                "infer", str(files[name]), "--operator-times", str(pack), "--extrapolate", "--json", "-", "-q"
            )
            result = json.loads(said)
            low, high = result["interval_s"]
            found[name] = {
                "measured": float(np.median([before[name], step(), step()])), "predicted": result["iteration_time_s"],
                "low": low, "high": high,
            }  # fmt: skip
    return found


def show(runtime: str, found: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    print(f"\n{runtime:20}{'measured':>10}{'predicted':>11}{'error':>8}   90 % interval")
    errors, held = [], 0
    for name, row in found.items():
        error = row["predicted"] / row["measured"] - 1
        inside = row["low"] <= row["measured"] <= row["high"]
        errors.append(error)
        held += inside
        low, high = 1e3 * row["low"], 1e3 * row["high"]
        print(
            f"{name:20}{1e3 * row['measured']:7.2f} ms{1e3 * row['predicted']:8.2f} ms{error:+8.1%}"
            f"   {low:.2f} to {high:.2f} ms{'' if inside else '  outside'}"
        )
    print(
        f"{'mean':20}{'':21}{np.mean(np.abs(errors)):8.1%}   {held} of {len(found)} inside, bias {np.mean(errors):+.1%}"
    )


def _with_onnx_runtime(content: bytes, given: dict[str, Any]) -> float:
    return OnnxRuntime(1).whole_s(content, given)


def _with_torch(run: Callable[[], Any]) -> Callable[[], float]:
    import torch

    def taken() -> float:
        torch.set_num_threads(1)
        found: list[float] = []
        with torch.inference_mode():
            run()
            run()
            while len(found) < 30 and (len(found) < 5 or sum(found) < 1.0):
                began = time.thread_time()
                run()
                found.append(time.thread_time() - began)
        return typical(found)

    return taken


def _triosim(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "triosim", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout
