"""What a few measured kernels of a device bring: error and coverage on the kernels that were not measured.

    python -m validation.judge.calibration [--data gemm.parquet] [--kernels 40] [--draws 50] [--device NAME]
    python -m validation.judge.calibration --pack PACK.json TRACE...

The first judges bf16 matrix products of a table of the shape of ``../shared/data/kernels/gemm.parquet``, from the
installed constants.  Without ``--data`` it is that table, and the constants that a calibration starts from are fitted
anew without any row of the device.  The kernels are drawn at random from the device's rows, the error is that on up to
1,460 others.  Prints, as means over the draws, the mean relative error without and with the calibration, how often the
90 % interval held, and its factor.

The second takes a calibration (``triosim calibrate --run``) and traces that were recorded on its device, predicts their
operators from shapes alone, and prints how far the sums are off; beside them the same without the calibration: what the
program says of the device as the catalog has it (``--device``), and of one with the figures that were measured.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation import command
from validation.data import kernel_rows
from validation.fit import physical_gemm as fitting
from validation.fit.physical_gemm import gemm

import triosim
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.base_model import BaseOperatorModel
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.fitting import MeasuredKernels
from triosim.kernels.calibration.model import CalibratedBaseModel
from triosim.kernels.calibration.pack import load
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.physical.kinds import BY_NAME, KernelKind
from triosim.operators import kind

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


def left_out(device: str) -> tuple[KernelKind, fitting.Rows]:
    """Matrix products with constants that never saw the device, and its rows."""
    rows = fitting.served("bfloat16")
    constants = fitting.fit_constants(fitting.even(rows).without(device), fitting.TENSOR, fitting.FREE["tensor"])
    gemm = BY_NAME["gemm"]
    unseen = {**gemm.constants(), "tensor": constants}
    return replace(gemm, constants=lambda: unseen), rows.take(np.flatnonzero(rows.device == device))


def of_file(path: Path) -> dict[str, tuple[KernelKind, fitting.Rows]]:
    """Matrix products with the installed constants, and the rows of each device of a file.

    Raises:
        InputError: the file has no products of bfloat16.
    """
    found, _ = kernel_rows.read(path, {})
    chosen = found.take(np.flatnonzero(found.label == "gemm/bfloat16"))
    if found.layout != "gemm" or not len(chosen):
        raise InputError(f"{path}: has no matrix products of bfloat16")
    m, n, k = (chosen.columns[name].astype(float) for name in "mnk")
    rows = fitting.Rows(chosen.device, gemm(m, n, k, "bfloat16", warm=True), chosen.seconds)
    return {name: (BY_NAME["gemm"], one) for name, one in rows.by_device().items()}


def judge(of: KernelKind, rows: fitting.Rows, device: Accelerator, kernels: int, draws: int) -> Judged:
    """Calibrate with ``kernels`` random rows, predict others; ``draws`` times."""
    figures = []
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(rows))
        few, rest = rows.take(order[:kernels]), rows.take(order[kernels : kernels + OTHERS])
        found = calibrated(device, {of.name: MeasuredKernels(few.work, few.seconds)}, kinds={of.name: of})
        plain = of.predict(rest.work, device, of.constants()).seconds
        priced = found.priced(of, rest.work, device)
        inside = np.abs(np.log(rest.seconds / priced.seconds)) <= priced.spread
        width = float(np.median(priced.spread))
        figures.append([_mape(plain, rest.seconds), _mape(priced.seconds, rest.seconds), inside.mean(), width])
    without, error, covered, width = np.array(figures).mean(axis=0).tolist()
    return Judged(device.name, without, error, covered, math.exp(width))


def judge_pack(name: str, traces: list[str], device: str | None) -> None:
    """Sums of operator times of recorded steps, predicted from shapes alone, with and without the calibration."""
    calibration = load(name).calibration
    models: dict[str, tuple[BaseOperatorModel, Accelerator]] = {
        "calibrated": (CalibratedBaseModel(calibration), calibration.device),
        "measured figures": (PhysicalBaseModel(), calibration.device),
    }
    if device:
        models[device] = (PhysicalBaseModel(), catalog.accelerator(device))
    for path in traces:
        trace = triosim.load(path)
        measured = np.nan_to_num(trace.operators.device_s)
        print(f"{path}: {measured.sum() * 1e3:.1f} ms recorded")
        kinds = np.array([kind(name) for name in trace.operators.name])
        longest = sorted(set(kinds.tolist()), key=lambda one: -measured[kinds == one].sum())[:6]
        for title, (basis, on) in models.items():
            found = basis.predict(trace, on)
            off = found.seconds.sum() / measured.sum() - 1
            half = math.exp(float((found.seconds * found.spread).sum() / found.seconds.sum()))
            parts = ", ".join(
                f"{one} {100 * (found.seconds[kinds == one].sum() / measured[kinds == one].sum() - 1):+.0f} %"
                for one in longest
            )
            print(f"  {title:18s}{100 * off:+7.1f} %  (mean interval x{half:.2f})  {parts}")


def _mape(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))


def main() -> None:
    """Judge every device and print a table."""
    parser = command.parser(__doc__, "measured matrix products, Parquet or CSV", required=False)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--device", help="only this one; with --pack what the catalog knows of the device")
    parser.add_argument("--pack", help="judge this calibration on traces")
    parser.add_argument("traces", nargs="*")
    arguments = parser.parse_args()
    if arguments.pack:
        judge_pack(arguments.pack, arguments.traces, arguments.device)
        return
    if arguments.data:
        cases = of_file(command.find(arguments.data, "kernels/gemm.parquet"))
    else:
        cases = {name: left_out(name) for name in np.unique(fitting.served("bfloat16").device).tolist()}
    figures = []
    print(f"{'left out':18s}  error without  with {arguments.kernels} kernels  90 % interval covers  factor")
    for name, (products, rows) in cases.items():
        if arguments.device in (None, name):
            one = judge(products, rows, catalog.accelerator(name), arguments.kernels, arguments.draws)
            figures.append(asdict(one))
            print(
                f"{one.device:18s}{100 * one.without:13.1f} %{100 * one.error:15.1f} %{100 * one.covered:20.1f} %"
                f"{one.factor:9.2f}", flush=True,
            )  # fmt: skip
    command.write(arguments.json, figures)


if __name__ == "__main__":
    command.run(main)
