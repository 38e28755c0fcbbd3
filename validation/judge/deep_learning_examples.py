"""Networks of images and BERT on one GPU, as NVIDIA published them: trainings and inference in 32 and 16 bits.

    python -m validation.judge.deep_learning_examples [--json OUT]

Rows are the results of NVIDIA/DeepLearningExamples.  Images: PyTorch/Classification/ConvNets, README.md of
resnet50v1.5 and resnext101-32x4d (container 21.03), batch sizes and layouts of configs.yml: 16 bits with
``memory_format: nhwc``, 32 bits contiguous, TF32 on A100.  Inference at 64 images and more: with fewer it takes 13 to
25 ms whatever their number, which is the host's time.  BERT-large: PyTorch/LanguageModeling/BERT, README.md of 2020
(container 19.07), pre-training with gradients of many micro-batches added up, 64 here.

No constant was fitted to them.  Two choices were made with the images in view: that convolutions on channels side by
side are priced as matrix products, and that groups may be packed into one.  BERT chose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from validation import command

import triosim
from triosim.cli.workloads import load_workload
from triosim.stacks import load

RESNEXT = {"layers": [3, 4, 23, 3], "bottleneck": True, "groups": 32, "width_per_group": 4}


@dataclass(frozen=True)
class Row:
    """One measurement: samples per second of one GPU; sequence tokens each, 0 for images."""

    network: str
    training: bool
    device: str
    half: bool
    batch: int
    samples_per_s: float
    sequence: int = 0


ROWS = (
    Row("resnet50", True, "A100", False, 256, 938), Row("resnet50", True, "A100", True, 256, 2470),
    Row("resnet50", True, "V100-SXM2-16GB", False, 112, 367), Row("resnet50", True, "V100-SXM2-16GB", True, 256, 1200),
    Row("resnet50", True, "V100-SXM2-32GB", False, 112, 356), Row("resnet50", True, "V100-SXM2-32GB", True, 256, 1156),
    Row("resnext101", True, "A100", False, 128, 300.42), Row("resnext101", True, "A100", True, 128, 908.40),
    Row("resnext101", True, "V100-SXM2-16GB", False, 64, 150.05),
    Row("resnext101", True, "V100-SXM2-16GB", True, 128, 534.91),
    Row("resnext101", True, "V100-SXM2-32GB", False, 64, 139.80),
    Row("resnext101", True, "V100-SXM2-32GB", True, 128, 516.07),
    *(Row("resnet50", False, "V100-SXM2-16GB", False, n, x) for n, x in ((64, 1200), (128, 1229), (256, 1261))),
    *(Row("resnet50", False, "V100-SXM2-16GB", True, n, x) for n, x in ((64, 2984), (128, 3249), (256, 3382))),
    *(Row("resnet50", False, "T4", False, n, x) for n, x in ((64, 428), (128, 426), (256, 415))),
    *(Row("resnet50", False, "T4", True, n, x) for n, x in ((64, 1165), (128, 1190), (256, 1198))),
    *(Row("resnext101", False, "V100-SXM2-16GB", True, n, x) for n, x in ((64, 998.40), (128, 1079.10))),
    *(Row("resnext101", False, "T4", True, n, x) for n, x in ((64, 883.66), (128, 948.27))),
    Row("bert-large", True, "V100-SXM2-16GB", False, 8, 33.36, 128),
    Row("bert-large", True, "V100-SXM2-16GB", True, 16, 125.44, 128),
    Row("bert-large", True, "V100-SXM2-16GB", False, 2, 7.56, 512),
    Row("bert-large", True, "V100-SXM2-16GB", True, 4, 26.64, 512),
    Row("bert-large", True, "V100-SXM2-32GB", False, 32, 40.32, 128),
    Row("bert-large", True, "V100-SXM2-32GB", True, 64, 171.52, 128),
    Row("bert-large", True, "V100-SXM2-32GB", False, 4, 8.36, 512),
    Row("bert-large", True, "V100-SXM2-32GB", True, 8, 30.08, 512),
    Row("bert-large", True, "V100-SXM3-32GB", False, 32, 43.52, 128),
    Row("bert-large", True, "V100-SXM3-32GB", True, 64, 181.76, 128),
    Row("bert-large", True, "V100-SXM3-32GB", False, 4, 9.0, 512),
    Row("bert-large", True, "V100-SXM3-32GB", True, 8, 32.32, 512),
)  # fmt: skip


MICRO_BATCHES = 64


def judged(row: Row) -> dict[str, float]:
    """Samples per second as predicted, their interval, and by how much the time is off."""
    of = partial(load_workload, precision="float16" if row.half else "float32", training=row.training)
    batch, plan = row.batch, triosim.Plan(training=row.training)
    if row.sequence:
        stack = load("apex-o2")
        trace = of(row.network, seq_len=row.sequence, attention="unfused", stack=stack)
        batch, plan = row.batch * MICRO_BATCHES, replace(plan, micro_batches=MICRO_BATCHES, stack=stack)
    else:
        trace = of(row.network) if row.network == "resnet50" else of("resnet", configuration=RESNEXT)
        plan = replace(plan, layout="channels_last" if row.half else "contiguous")
    plan = replace(plan, batch_size=batch)
    result = triosim.simulate(trace, triosim.system(device=row.device, devices=1), plan)
    seconds, (lo, hi) = batch / row.samples_per_s, result.interval_s
    return {
        "samples_per_s": batch / result.iteration_time_s, "least": batch / hi, "most": batch / lo,
        "error": result.iteration_time_s / seconds - 1, "held": float(lo <= seconds <= hi),
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = command.parser(__doc__)
    options = parser.parse_args()
    found = [(row, judged(row)) for row in ROWS]
    print(f"{'samples/s':52}measured predicted    time   90 % interval")
    for row, one in found:
        what = f"{row.network} {'training' if row.training else 'inference'}, {row.device}, "
        what += f"{16 if row.half else 32} bits, {row.batch}" + (f" x {row.sequence}" if row.sequence else "")
        interval = f"{one['least']:,.4g} to {one['most']:,.4g}"
        print(f"{what:54}{row.samples_per_s:6,.4g}{one['samples_per_s']:10,.4g}{one['error']:+8.1%}   {interval}")
    sums = {}
    for words in dict.fromkeys(map(_group, ROWS)):
        of = [one for row, one in found if _group(row) == words]
        errors = np.array([one["error"] for one in of])
        one = sums[words] = {
            "rows": len(of), "mean": float(abs(errors).mean()), "bias": float(errors.mean()),
            "held": float(np.mean([one["held"] for one in of])),
        }  # fmt: skip
        print(f"{words}: {one['rows']} rows, {one['mean']:.1%} off in the mean, bias {one['bias']:+.1%}, the interval "
              f"holds {one['held']:.0%}")  # fmt: skip
    command.write(options.json, sums)


def _group(row: Row) -> str:
    what = "BERT" if row.sequence else "images"
    return f"{what}, {'training' if row.training else 'inference'}, {16 if row.half else 32} bits"


if __name__ == "__main__":
    command.run(main)
