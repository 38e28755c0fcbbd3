"""Accuracy of the main job on real measurements, and agreement with hand-checked values.

    python -m validation.judge.main_job --data ../shared/data

Prints, for the H100 traces of the released TrioSim: the sum of operators, standard data parallelism on a ring, DDP's
buckets, and batch 128 -> 512 against the kernel sum measured at 512 on the same H100, phase by phase.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from validation import command

import triosim
from triosim import Fidelity, Plan
from triosim.operators import kind
from triosim.partition.gradients import gradients
from triosim.partition.passes.fuse import by_bytes
from triosim.trace.tables import Phase, Trace

MEASURED_512_S = 0.346344
RELEASED_TRIOSIM_512_S = 0.376152
"""The released TrioSim scales everything by the ratio of the batch sizes."""
EXPECTED = {"vgg13": (94.038, 102.2256), "resnet50": (70.723, 72.2957)}
"""Sum of operators, and with one all-reduce over eight devices, ms."""


def main() -> int:
    """Print the tables; the exit code tells whether the hand-checked values were met."""
    parser = command.parser(__doc__, "folder of the traces vgg13, resnet50 and vgg13-bs512-raw")
    options = parser.parse_args()
    folder = command.find(options.data, "triosim-h100/")
    figures: dict = {}
    good = True
    print(f"{'':10} {'sum of operators':>18} {'standard DP, 8':>16} {'DDP, 8':>12}   buckets of DDP, bytes")
    for name, (total, parallel) in EXPECTED.items():
        trace = triosim.load(folder / name)
        system = triosim.system(devices=8, topology="ring", link="113.75GB/s")
        alone = triosim.simulate(trace, triosim.system(devices=1)).iteration_time_s * 1e3
        standard = triosim.simulate(trace, system, Plan(overlap=False)).iteration_time_s * 1e3
        ddp = triosim.simulate(trace, system).iteration_time_s * 1e3
        sizes = [sum(g.bytes for g in b) for b in by_bytes(gradients(trace), 1 << 20, 25 << 20)]
        print(f"{name:10} {alone:15.4f} ms {standard:13.4f} ms {ddp:9.4f} ms   {', '.join(map(str, sizes))}")
        good &= abs(alone - total) < 5e-4 and abs(standard / parallel - 1) < 1e-4
        figures[name] = {"sum_ms": alone, "standard_dp_ms": standard, "ddp_ms": ddp, "buckets": sizes}
    figures["batch"] = _batch(folder)
    command.write(options.json, figures)
    return 0 if good else 1


def _batch(folder: Path) -> dict:
    trace, real = triosim.load(folder / "vgg13"), triosim.load(folder / "vgg13-bs512-raw")
    found = {}
    print(f"\nVGG-13, batch 128 -> 512, measured {MEASURED_512_S * 1e3:.3f} ms on the same H100")
    print(f"{'':34} {'predicted':>12} {'error':>8}   90 % interval")
    released = RELEASED_TRIOSIM_512_S / MEASURED_512_S - 1
    print(f"{'released TrioSim':34} {RELEASED_TRIOSIM_512_S * 1e3:9.3f} ms {released:+8.2%}")
    for label, device, model in (
        ("proportional", None, "proportional"),
        ("auto, device not named", None, "auto"),
        ("roofline, no recording", "H100", "roofline"),
        ("physical, no recording", "H100", "physical"),
        ("auto, on H100", "H100", "auto"),
    ):
        system = triosim.system(device=device, devices=1)
        result = triosim.simulate(trace, system, Plan(batch_size=512), Fidelity(operator_times=model))
        error = result.iteration_time_s / MEASURED_512_S - 1
        low, high = result.interval_s
        print(
            f"{label:34} {result.iteration_time_s * 1e3:9.3f} ms {error:+8.2%}   {low * 1e3:.1f} to {high * 1e3:.1f} ms"
        )
        found[label] = {"ms": result.iteration_time_s * 1e3, "error": error, "interval_ms": [low * 1e3, high * 1e3]}
    print("\nby kind and phase, auto on H100")
    _groups(trace, real)
    return found


def _groups(trace: Trace, real: Trace) -> None:
    from triosim.hardware.catalog import accelerator
    from triosim.kernels.model import PricingJob
    from triosim.kernels.pricing import price
    from triosim.transform.rescale import rescale

    device = accelerator("H100")
    larger = rescale(trace, 512)
    found = price(PricingJob(larger, device, trace, device))
    predicted, reach = (_by_group(larger, column) for column in (found.seconds, found.seconds * found.spread))
    measured = _by_group(real, np.nan_to_num(real.operators.device_s))
    for group in sorted(predicted, key=lambda g: -predicted[g]):
        if predicted[group] > 1e-4:
            there, spread = measured.get(group, 0.0), np.exp(reach[group] / predicted[group])
            error = f"{predicted[group] / there - 1:+8.1%}" if there else "       -"
            interval = f"{predicted[group] / spread * 1e3:8.3f} to {predicted[group] * spread * 1e3:8.3f} ms"
            print(f"  {group:24} {predicted[group] * 1e3:9.3f} ms  measured {there * 1e3:9.3f} ms {error}  {interval}")


def _by_group(trace: Trace, seconds: np.ndarray) -> dict[str, float]:
    found: dict[str, float] = {}
    for row, name in enumerate(trace.operators.name):
        phase = Phase(trace.operators.phase[row]).name.lower()
        group = phase if phase == "optimizer" else f"{kind(name)} {phase}"
        found[group] = found.get(group, 0.0) + float(seconds[row])
    return found


if __name__ == "__main__":
    command.run(main)
