"""The constants of ``composition/host.json``: what launching costs, from torch.profiler traces.

    python -m validation.fit.host --data ../shared/data

Prints, for each step of each trace, the launch delay, the gap between kernels and the host's time for each kernel; and
over the steps of one trace the host's time of each class of operators, medians.  A step whose host was slowed down by
the profiler itself (hundreds of microseconds for each kernel) says nothing about the classes.

Then what eager frameworks for large models cost: Megatron-LM's own tests of a tiny GPT on one H100 server
(``training/measured.csv``, "Megatron-LM CI golden values"), whose kernels are far shorter than their launches.  Two
numbers, the cost of a launch and what an iteration costs once, reproduce their iteration times.  The second belongs to
the tests (checks, logging) and is not used.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from validation.judge.kineto_replay import measured
from validation.judge.vtrain import Row, Workshop

import triosim
from triosim import Plan
from triosim.composition.residual import Coefficients
from triosim.core.errors import InputError
from triosim.operators import canonical
from triosim.trace.tables import Phase, Trace

SLOWED = 60e-6
"""Host time for each kernel above which the profiler, not the framework, is what took the time."""
FEWEST = 50
VOCABULARY = "50304"
"""Of the test models: about 50 k, padded."""


def main() -> int:
    """Print the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with kineto/ and training/measured.csv")
    options = parser.parse_args()
    _traces(options.data / "kineto")
    _tiny_models(options.data / "training" / "measured.csv")
    return 0


def _traces(folder: Path) -> None:
    print(f"{'trace':24} {'step':>5} {'device':28} {'kernels':>8} {'delay':>8} {'gap':>8} {'host/kernel':>12}")
    calls: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.json*")):
        for step in measured(path):
            try:
                trace = triosim.load(path, step=step)
            except InputError as error:
                print(error, file=sys.stderr)
                continue
            host = float(np.nansum(trace.operators.host_s)) / len(trace.kernels)
            delay, gap = (_us(s) for s in (trace.meta.launch_delay_s, trace.meta.kernel_gap_s))
            print(
                f"{path.name.partition('.')[0][:24]:24} {step:>5} {trace.meta.device or '':28} {len(trace.kernels):8} "
                f"{delay:>8} {gap:>8} {_us(host):>12}"
            )
            if host < SLOWED:
                for key, cost in costs(trace):
                    calls[key].append(cost)
    print(f"\nhost time of calls that launch kernels, at least {FEWEST} of them")
    for (name, phase), found in sorted(calls.items(), key=lambda item: -np.median(item[1])):
        if len(found) >= FEWEST:
            print(f"{name:28} {phase:10} {len(found):5} calls  median {_us(float(np.median(found)))}")


@dataclass(frozen=True)
class Tiny(Row):
    """One of Megatron-LM's test models: attention in one kernel, nothing recomputed, gradients reduced at the end."""

    def trace(self) -> Trace:
        """The step of one micro-batch on one device."""
        configuration = {
            "n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads, "n_positions": self.sequence,
            "vocab_size": self.vocabulary, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        }  # fmt: skip
        return triosim.model(
            "gpt", batch_size=self.micro_batch, sequence_length=self.sequence, precision="bfloat16", optimizer="adam",
            configuration=configuration,
        )  # fmt: skip

    def plan(self) -> Plan:
        """How it ran."""
        return super().plan().replaced(recompute="none")


def _tiny_models(table: Path) -> None:
    with table.open(encoding="utf-8", newline="") as file:
        rows = [Tiny.of({**line, "vocab": VOCABULARY}) for line in csv.DictReader(file) if _counts(line)]
    workshop = Workshop(triosim.system("hgx-h100"))
    cases = [workshop.iteration(row) for row in rows]
    real = np.array([row.seconds for row in rows])
    fixed = np.arange(0.0, 0.15, 0.5e-3)
    best = (np.inf, 0.0, 0.0, real)
    for issue in np.arange(10e-6, 150e-6, 1e-6).tolist():
        found = np.array([case.played(Coefficients(issue, issue, 1.2e-6, 0.0, 0.0, 1.0)) for case in cases])
        error = np.sum(np.log((found[:, None] + fixed) / real[:, None]) ** 2, axis=0)
        at = int(np.argmin(error))
        best = min(best, (float(error[at]), issue, float(fixed[at]), found + fixed[at]), key=lambda b: b[0])
    print(
        f"\n{len(rows)} tiny GPT of Megatron-LM's tests on H100: {_us(best[1])} per launch, {best[2] * 1e3:.1f} ms once"
    )
    for row, found in zip(rows, best[3].tolist(), strict=True):
        print(f"    tp {row.tp} pp {row.pp} dp {row.dp}: measured {row.seconds:.4f} s, so {found:.4f} s")


def _counts(line: Mapping[str, str]) -> bool:
    """Dense, on H100, nothing overlapped or interleaved, and with axes that make up the number of devices."""
    ranks = int(line["tp"]) * int(line["pp"]) * int(line["dp"])
    return (
        line["source"] == "Megatron-LM CI golden values"
        and line["model"].startswith("GPT")
        and line["gpu"].startswith("H100")
        and line["overlap"] == "none"
        and line["vpp"] == "1"
        and ranks == int(line["n_gpus"])
    )


def costs(trace: Trace) -> list[tuple[tuple[str, str], float]]:
    """Name and phase of each operator that launches a kernel, and its host time with that of what precedes it."""
    operators = trace.operators
    launches = np.bincount(trace.kernels.operator, minlength=len(trace)) > 0
    found, before = [], 0.0
    for row, cost in enumerate(np.nan_to_num(operators.host_s).tolist()):
        before += cost
        if launches[row]:
            name = canonical(operators.name[row])[0]
            found.append(((name, Phase(operators.phase[row]).name.lower()), before))
            before = 0.0
    return found


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"


if __name__ == "__main__":
    sys.exit(main())
