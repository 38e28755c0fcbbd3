"""How good the recorder is, on this machine: ``python -m validation.judge.recorder``.

First table, with hardware (this CPU, one thread): a small GPT and ResNet-50 are trained.  *plain* is processor time of
a step that is not observed, *operators* the sum of the recorded operator times; both are medians.  Goal: the two
differ by less than 5 %.

Second table, without hardware: time (wall and processor, building the model and tracing its step four times included)
and memory to record a step of models of which the second does not fit here.

*linked* is the share of backward operators that know the forward operator they differentiate; what accumulates into
``.grad`` or adds up gradients differentiates nothing and does not count.

Each model is recorded in a process of its own, so that one does not find the memory of another.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import command

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

MEASURED = {"gpt-4x256": "GPT 4 x 256, 4 x 256 tokens", "resnet50": "ResNet-50, 4 images of 224 x 224"}
HARDWARE_FREE = {"gpt2": "GPT-2 124 M, 8 x 1024 tokens", "llama3-8b": "Llama 3 8B, 1 x 4096 tokens"}


def build(name: str) -> tuple[nn.Module, Optimizer, Tensor, Tensor]:
    """Model, optimizer, inputs and labels."""
    import torch
    from models import GPT, Llama, ResNet, initialise

    torch.manual_seed(0)
    model: nn.Module
    if name == "resnet50":
        model = ResNet()
        momentum = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return model, momentum, torch.randn(4, 3, 224, 224), torch.randint(1000, (4,))
    if name == "gpt-4x256":
        model, shape, tokens = GPT(8192, 256, 4, 256, 4), (4, 256), 8192
        initialise(model, 4)
    elif name == "gpt2":
        model, shape, tokens = GPT(), (8, 1024), 50257
    else:
        model, shape, tokens = Llama().to(torch.bfloat16), (1, 4096), 128256
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    return model, optimizer, torch.randint(tokens, shape), torch.randint(tokens, shape)


def one(name: str, rounds: int) -> dict[str, Any]:
    """Record one model; what the tables show of it."""
    import numpy as np
    import torch.nn.functional as F

    from triosim.sources.record import fake, record
    from triosim.trace.tables import Phase

    imported, processor = time.perf_counter(), time.process_time()
    if name in HARDWARE_FREE:
        with fake():
            model, optimizer, x, y = build(name)
    else:
        model, optimizer, x, y = build(name)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()

    trace = record(step, x, y, repeats=rounds)
    operators = trace.operators
    backward = operators.phase == Phase.BACKWARD
    sums = np.array([n in ("aten::detach", "aten::add", "aten::add_", "aten::ones_like") for n in operators.name])
    derivatives = backward & ~(sums & (operators.forward < 0))
    return {
        "operators": [int((operators.phase == p).sum()) for p in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)],
        "linked": float((operators.forward[derivatives] >= 0).mean()),
        "sum_s": trace.device_time(),
        "plain_s": trace.meta.step_time_s,
        "symbols": trace.meta.symbols,
        "wall_s": time.perf_counter() - imported,
        "cpu_s": time.process_time() - processor,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "tflop": float(np.nansum(operators.flop)) / 1e12,
    }


def apart(name: str, rounds: int) -> dict[str, Any]:
    """:func:`one` in a process of its own."""
    command = [sys.executable, "-m", "validation.judge.recorder", "--one", name, "--rounds", str(rounds)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    """Print the tables."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds whose median is taken (default 9)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.rounds)))
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {options.rounds} rounds\n")
    print(f"{'measured':34}{'fwd / bwd / opt':>19}{'linked':>9}{'plain s':>10}{'operators s':>13}{'ratio':>8}")
    figures = {}
    for name, title in MEASURED.items():
        r = figures[name] = apart(name, options.rounds)
        counts = " / ".join(map(str, r["operators"]))
        ratio = r["sum_s"] / r["plain_s"]
        print(f"{title:34}{counts:>19}{r['linked']:>9.1%}{r['plain_s']:>10.3f}{r['sum_s']:>13.3f}{ratio:>8.3f}")
    print(
        f"\n{'without hardware':34}{'fwd / bwd / opt':>19}{'linked':>9}{'wall s':>10}{'cpu s':>9}{'MB':>6}{'TFLOP':>9}"
    )
    for name, title in HARDWARE_FREE.items():
        r = figures[name] = apart(name, 1)
        counts = " / ".join(map(str, r["operators"]))
        print(
            f"{title:34}{counts:>19}{r['linked']:>9.1%}{r['wall_s']:>10.1f}{r['cpu_s']:>9.1f}{r['rss_mb']:>6.0f}"
            f"{r['tflop']:>9.2f}"
        )
    command.write(options.json, figures)


if __name__ == "__main__":
    command.run(main)
