"""What a few measured kernels of a device bring: error and coverage on the kernels that were not measured.

    python -m validation.calibration [--kernels 40] [--draws 50] [--device NAME]

bf16 matrix products of ``../shared/data/kernels/gemm.parquet``.  The constants that a calibration starts from were
fitted without any row of the device; the kernels are drawn at random from its rows, the error is that on 1,460 others.
Prints, as means over the draws, the mean relative error without and with the calibration, how often the 90 % interval
held, and its factor.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from validation import fit_physical_gemm as fitting

from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.fitting import Measured
from triosim.kernels.physical.kinds import BY_NAME, Kind

OTHERS = 1460
"""Kernels that a draw is judged on."""


@dataclass(frozen=True)
class Judged:
    """Means over the draws from one device's kernels."""

    device: str
    without: float
    error: float
    covered: float
    factor: float


def left_out(device: str) -> tuple[Kind, fitting.Rows]:
    """Matrix products with constants that never saw the device, and its rows."""
    rows = fitting.served("bfloat16")
    constants = fitting.fit_constants(fitting.even(rows).without(device), fitting.TENSOR, fitting.FREE["tensor"])
    kind = BY_NAME["gemm"]
    unseen = {**kind.constants(), "tensor": constants}
    return replace(kind, constants=lambda: unseen), rows.take(np.flatnonzero(rows.device == device))


def judge(kind: Kind, rows: fitting.Rows, device: Accelerator, kernels: int, draws: int) -> Judged:
    """Calibrate with ``kernels`` random rows, predict others; ``draws`` times."""
    figures = []
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(rows))
        few, rest = rows.take(order[:kernels]), rows.take(order[kernels : kernels + OTHERS])
        found = calibrated(device, {kind.name: Measured(few.work, few.seconds)}, kinds={kind.name: kind})
        plain = kind.predict(rest.work, device, kind.constants()).seconds
        priced = found.priced(kind, rest.work, device)
        inside = np.abs(np.log(rest.seconds / priced.seconds)) <= priced.spread
        width = float(np.median(priced.spread))
        figures.append([_mape(plain, rest.seconds), _mape(priced.seconds, rest.seconds), inside.mean(), width])
    without, error, covered, width = np.array(figures).mean(axis=0).tolist()
    return Judged(device.name, without, error, covered, math.exp(width))


def _mape(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))


def main() -> None:
    """Judge every device and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--device", help="only this one")
    arguments = parser.parse_args()
    names = sorted(set(fitting.served("bfloat16").device.tolist()))
    print(f"{'left out':18s}  error without  with {arguments.kernels} kernels  90 % interval covers  factor")
    for name in names:
        if arguments.device in (None, name):
            kind, rows = left_out(name)
            one = judge(kind, rows, catalog.accelerator(name), arguments.kernels, arguments.draws)
            print(
                f"{one.device:18s}{100 * one.without:13.1f} %{100 * one.error:15.1f} %{100 * one.covered:20.1f} %"
                f"{one.factor:9.2f}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
