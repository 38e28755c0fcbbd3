"""Networks of images trained and run on one GPU, as NVIDIA published them: images per second in 32 and 16 bits.

    python -m validation.judge.images [--json OUT]

Rows are the results of NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets: README.md of resnet50v1.5 and
resnext101-32x4d (container 21.03), batch sizes and layouts of configs.yml: 16 bits with ``memory_format: nhwc``, 32
bits contiguous, TF32 on A100.  Inference at 64 images and more: with fewer it takes 13 to 25 ms whatever their number,
which is the host's time.  No constant was fitted to them.  Two choices were made with them in view: that
convolutions on channels side by side are priced as matrix products, and that groups may be packed into one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import triosim
from triosim.cli.workloads import load_workload

RESNEXT = {"layers": [3, 4, 23, 3], "bottleneck": True, "groups": 32, "width_per_group": 4}


@dataclass(frozen=True)
class Row:
    """One measurement: images per second of one GPU."""

    network: str
    training: bool
    device: str
    half: bool
    batch: int
    images_per_s: float


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
)  # fmt: skip


def judged(row: Row) -> dict[str, float]:
    """Images per second as predicted, their interval, and by how much the time is off."""
    precision = "float16" if row.half else "float32"
    if row.network == "resnet50":
        trace = load_workload(row.network, training=row.training, precision=precision)
    else:
        trace = triosim.model("resnet", precision=precision, training=row.training, configuration=RESNEXT)
    layout = "channels_last" if row.half else "contiguous"
    plan = triosim.Plan(batch_size=row.batch, training=row.training, layout=layout)
    result = triosim.simulate(trace, triosim.system(device=row.device, devices=1), plan)
    seconds, (lo, hi) = row.batch / row.images_per_s, result.interval_s
    return {
        "images_per_s": row.batch / result.iteration_time_s, "least": row.batch / hi, "most": row.batch / lo,
        "error": result.iteration_time_s / seconds - 1, "held": float(lo <= seconds <= hi),
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the table to this file")
    options = parser.parse_args()
    found = [(row, judged(row)) for row in ROWS]
    print(f"{'images/s':46}measured  predicted    time   90 % interval")
    for row, one in found:
        what = f"{row.network} {'training' if row.training else 'inference'}, {row.device}, "
        what += f"{16 if row.half else 32} bits, {row.batch}"
        interval = f"{one['least']:,.0f} to {one['most']:,.0f}"
        print(f"{what:52}{row.images_per_s:8,.0f}{one['images_per_s']:9,.0f}{one['error']:+8.1%}   {interval}")
    sums = {}
    for training, half in ((True, False), (True, True), (False, False), (False, True)):
        of = [one for row, one in found if (row.training, row.half) == (training, half)]
        errors = np.array([one["error"] for one in of])
        name = f"{'training' if training else 'inference'}, {16 if half else 32} bits"
        sums[name] = {
            "rows": len(of), "mean": float(abs(errors).mean()), "bias": float(errors.mean()),
            "held": float(np.mean([one["held"] for one in of])),
        }  # fmt: skip
        one = sums[name]
        print(f"{name}: {one['rows']} rows, {one['mean']:.1%} off in the mean, bias {one['bias']:+.1%}, the interval "
              f"holds {one['held']:.0%}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
