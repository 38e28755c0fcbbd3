"""Fits the constants of the physical model of convolutions, and judges it on GPUs that the fit did not see.

    python -m validation.fit.physical_convolution [--write]

Vector units: 3 x 3 float32 convolutions of NeuSight on P100, T4 and V100, forward.  Matrix units, and what the
gradients cost more than their operations say: the ResNet-50 training step of TrioSim on H100 (TF32), whose shapes are
left out in turn, as there is no second GPU.  No other file is read.

The measured times of NeuSight hold a time of the host that grew steadily while they were collected, from 0.1 ms for the
first convolution to 0.3 (V100) and 0.8 ms (P100) for the last.  It is a line through the shortest times of the
collection (:func:`host_time`), is subtracted from every measurement, and what is shorter than twice that line is
counted, not judged: it measures the host.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import ABOVE_HOST, DATA, DEVICES, RESNET, _columns
from validation.fit.roofline import least, quantile

import triosim
from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware import catalog
from triosim.kernels.physical import convolution as model
from triosim.kernels.physical.convolution import ConvolutionConstants, predict
from triosim.kernels.work import convolution as work
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.operators import kind

INPUTS = (DATA / "kernels" / "fp32_ops.parquet", RESNET / "trace.csv", RESNET / "tensor.csv")
"""All that is read."""
OUTPUT = Path(model.__file__).parents[1] / "data" / "physical" / "convolution.json"

WINDOWS = 16
SHORTEST = 0.02
"""The host's line is fitted to this quantile of the times in each of so many windows of the collection."""
HOST_SHARE = 0.85
"""Part of those shortest times that is the host's; the rest is their kernels'.  From a fit together with the constants,
which gave 0.83 to 0.89 on every subset of the GPUs."""

MEANING = {
    "launch_s": ("s", "shortest time of a kernel"),
    "reach": ("1", "part of the peak that implicit GEMM reaches with 128 x 128 tiles where power is no limit"),
    "joule": ("J/FLOP", "energy of an operation at full load in a 7 nm process"),
    "process": ("1", "exponent of the process (nm / 7) in that energy; held"),
    "tile": ("1", "tm tn / (tm + tn) at which a tile's efficiency has fallen to half of its limit"),
    "ends": ("1", "terms of the sum that the prologue and epilogue of a block are worth"),
    "wave": ("1", "part of the last wave's idle time that is not hidden"),
    "tail": ("1", "waves lost at the start and the end of a kernel"),
    "memory": ("1", "part of the datasheet's bandwidth that implicit GEMM reaches"),
    "layout": ("1", "part of the datasheet's bandwidth that changes of layout reach"),
    "step": ("1", "channels of one step of the unit that multiplies"),
    "fused": ("1", "as reach, of the fused Winograd kernel"),
    "fused_ends": ("1", "as ends, in channels"),
    "fused_memory": ("1", "as memory"),
    "filtered": ("1", "as reach, of the products of Winograd F(4x4, 3x3)"),
    "filtered_ends": ("1", "as ends, in channels"),
    "filtered_memory": ("1", "as memory, transforms included"),
    "filtered_s": ("s", "launches of its transforms"),
    "split_s": ("s", "second kernel of a split sum; held"),
    "data_gradient": ("1", "time of the input's gradient over that of its product"),
    "weight_gradient": ("1", "time of the weight's gradient over that of its product"),
    "depthwise": ("1", "part of the vector peak that depthwise kernels reach; assumed, no measurement"),
}  # fmt: skip

_COMMON = {
    "launch_s": 2.4e-6, "joule": 1.2e-11, "process": 0.3, "tile": 20.0, "wave": 0.3, "tail": 0.25, "memory": 0.8,
    "layout": 0.8, "split_s": 2e-6, "data_gradient": 1.0, "weight_gradient": 1.0, "depthwise": 0.25,
    "fused": 0.95, "fused_ends": 20.0, "fused_memory": 0.8, "filtered": 0.85, "filtered_ends": 32.0,
    "filtered_memory": 0.65, "filtered_s": 8e-6,
}  # fmt: skip
PRIOR = {
    "simt": ConvolutionConstants(reach=0.95, ends=30.0, step=1.0, **_COMMON),
    "tensor": ConvolutionConstants(reach=0.65, ends=60.0, step=16.0, **{**_COMMON, "joule": 1e-18}),
}
"""Where the fit starts and what it is drawn to; ``joule`` of the matrix units is no limit, as one device cannot tell it
from ``reach``."""

SIGMA = {
    "simt": {
        "reach": 0.1, "joule": 0.3, "tile": 0.5, "ends": 0.7, "tail": 0.7, "fused": 0.1, "fused_ends": 0.7,
        "fused_memory": 0.1, "filtered": 0.1, "filtered_ends": 0.7, "filtered_memory": 0.2,
    },
    "tensor": {"reach": 0.3, "tile": 0.5, "ends": 0.7, "layout": 0.1, "data_gradient": 0.5, "weight_gradient": 0.5},
}  # fmt: skip
"""Constants that are fitted, and the standard deviations of their logarithms before any data."""

PULL = {"simt": 1.0, "tensor": 0.3}
"""What one standard deviation away from the prior costs, as an error of the logarithm of one row."""

PER_DEVICE = 700
"""Convolutions of each device that are fitted to; all are judged."""


@dataclass(frozen=True)
class Rows:
    """Measured convolutions: catalog names, what they do, seconds without the host."""

    device: NDArray[np.str_]
    work: ConvolutionCalls
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Rows:
        """These rows only."""
        return Rows(self.device[rows], self.work.take(rows), self.seconds[rows])


def host_time(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The host's part of times of one device that stand in the order in which they were collected.

    A straight line through the shortest times of :data:`WINDOWS` windows, times :data:`HOST_SHARE`.
    """
    edges = np.linspace(0, len(seconds), WINDOWS + 1).astype(int)
    shortest = [np.quantile(seconds[a:b], SHORTEST) for a, b in itertools.pairwise(edges)]
    line = np.polynomial.Polynomial.fit((edges[:-1] + edges[1:]) / 2, shortest, 1)
    return np.asarray(np.maximum(HOST_SHARE * line(np.arange(len(seconds))), 0.0))


def isolated() -> tuple[Rows, int]:
    """NeuSight's convolutions, and how many more measure the host."""
    names = ("B", "Input_Channel", "Output_Channel", "Input_Size")
    data = _columns("fp32_ops", "gpu", "op", "Latency", *names)
    chosen, seconds, devices = [], [], []
    dropped = 0
    for gpu in np.unique(data["gpu"].astype(str)):
        rows = np.flatnonzero((data["op"].astype(str) == "conv") & (data["gpu"].astype(str) == gpu))
        if not rows.size:
            continue
        measured = data["Latency"][rows].astype(float) * 1e-3
        host = host_time(measured)
        keep = np.flatnonzero(measured > ABOVE_HOST * host / HOST_SHARE)
        dropped += len(rows) - len(keep)
        chosen.append(rows[keep])
        seconds.append((measured - host)[keep])
        devices.append(np.full(len(keep), DEVICES[gpu]))
    rows = np.concatenate(chosen)
    images, in_channels, out_channels, side = (data[name][rows].astype(float) for name in names)
    what = work.convolution(images, in_channels, out_channels, side, 3, DTYPE_CODE["float32"])
    return Rows(np.concatenate(devices), what, np.concatenate(seconds)), dropped


def training_step() -> Rows:
    """Convolutions of the ResNet-50 training step on H100."""
    trace = triosim.load(RESNET)
    rows = np.array([row for row, name in enumerate(trace.operators.name) if kind(name) == "convolution"])
    what = work.of(trace, rows, np.full(len(rows), DTYPE_CODE["tfloat32"], np.int8))
    return Rows(np.full(len(rows), "H100-SXM5-80GB"), what, trace.operators.device_s[rows])


def predicted(rows: Rows, constants: ConvolutionConstants) -> NDArray[np.float64]:
    """Seconds by the model with these constants for either engine."""
    out = np.empty(len(rows))
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        out[at] = predict(
            rows.work.take(at), catalog.accelerator(str(name)), {"simt": constants, "tensor": constants}
        ).seconds
    return out


def errors(rows: Rows, constants: ConvolutionConstants) -> NDArray[np.float64]:
    """Logarithm of predicted over measured."""
    return np.log(predicted(rows, constants) / rows.seconds)


def fit(rows: Rows, engine: str) -> ConvolutionConstants:
    """The constants nearest the measurements, drawn to :data:`PRIOR`."""
    prior, sigma = PRIOR[engine], SIGMA[engine]
    start = np.log([getattr(prior, name) for name in sigma])
    width = np.array(list(sigma.values()))

    def made(x: NDArray) -> ConvolutionConstants:
        return replace(prior, **dict(zip(sigma, np.exp(x).tolist(), strict=True)))

    def residuals(x: NDArray) -> NDArray:
        return np.concatenate([errors(rows, made(x)), PULL[engine] * (x - start) / width])

    return made(least(residuals, start, start - 2.0, start + 2.0))


def sampled(rows: Rows) -> Rows:
    """:data:`PER_DEVICE` rows of each device, evenly over the times."""
    chosen = []
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        order = at[np.argsort(rows.seconds[at], kind="stable")]
        chosen.append(order[np.linspace(0, len(order) - 1, min(PER_DEVICE, len(order))).astype(int)])
    return rows.take(np.concatenate(chosen))


@dataclass(frozen=True)
class Judged:
    """What a fit without a part of the rows is off by there; the spread that those other rows would have given."""

    name: str
    errors: NDArray[np.float64]
    spread: float

    def figures(self) -> dict[str, float]:
        """MAPE and bias in per cent, coverage and half-width of the 90 % interval."""
        off = np.abs(np.expm1(self.errors))
        return {
            "rows": len(self.errors), "mape": 100 * float(off.mean()), "median": 100 * float(np.median(off)),
            "bias": 100 * float(np.expm1(np.median(self.errors))),
            "coverage": float(np.mean(np.abs(self.errors) <= self.spread)), "spread": self.spread,
        }  # fmt: skip


def judge_devices(rows: Rows) -> list[Judged]:
    """Each device with constants, and a spread, from the others.

    The spread is the widest that one of the ``n`` others, left out, would need, times ``sqrt(1 + 1/n)``: a new device
    is off from the mean of ``n`` by that much more than devices are among themselves.
    """
    some = sampled(rows)
    names = [str(name) for name in np.unique(rows.device)]
    found = []
    for name in names:
        others = some.take(np.flatnonzero(some.device != name))
        need = []
        for inner in (n for n in names if n != name):
            rest = fit(others.take(np.flatnonzero(others.device != inner)), "simt")
            need.append(quantile(errors(others.take(np.flatnonzero(others.device == inner)), rest)))
        wider = np.sqrt(1 + 1 / len(need))
        out = rows.take(np.flatnonzero(rows.device == name))
        found.append(Judged(name, errors(out, fit(others, "simt")), wider * max(need)))
    return found


FOLDS = 5


def judge_shapes(rows: Rows) -> list[Judged]:
    """Forward and backward with a fifth of the shapes left out in turn."""
    w = rows.work
    shape = np.stack([w.in_channels, w.out_channels, w.in_rows, w.kernel_rows, w.stride], 1)
    fold = np.unique(shape, axis=0, return_inverse=True)[1].ravel() % FOLDS
    off = np.empty(len(rows))
    for one in range(FOLDS):
        left = np.flatnonzero(fold == one)
        off[left] = errors(rows.take(left), fit(rows.take(np.flatnonzero(fold != one)), "tensor"))
    spread = np.array([quantile(off[fold != one]) for one in range(FOLDS)])
    return [
        Judged(name, off[at], float(spread[fold[at]].mean()))
        for name, at in (("H100 forward", np.flatnonzero(w.forward)), ("H100 backward", np.flatnonzero(~w.forward)))
    ]


def table(constants: ConvolutionConstants) -> dict[str, dict[str, float | str]]:
    """Constants as in the file."""

    def entry(name: str) -> dict[str, float | str]:
        unit, meaning = MEANING[name]
        return {"value": float(f"{getattr(constants, name):.6g}"), "unit": unit, "meaning": meaning}

    return {f.name: entry(f.name) for f in fields(ConvolutionConstants)}


def main() -> int:
    """Print what the fits reach; with ``--write`` also write the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    short, step = isolated()[0], training_step()
    dropped = isolated()[1]
    print("read:", *(path.relative_to(DATA) for path in INPUTS))
    print(f"{dropped} convolutions measure the host; {len(short)} and {len(step)} are judged")
    devices, shapes = judge_devices(short), judge_shapes(step)
    for one in (*devices, *shapes):
        print(f"{one.name:18}", "  ".join(f"{key} {value:.3g}" for key, value in one.figures().items()))
    tensor = fit(step, "tensor")
    simt = replace(
        fit(sampled(short), "simt"), data_gradient=tensor.data_gradient, weight_gradient=tensor.weight_gradient
    )
    pooled = np.concatenate([one.errors for one in devices])
    unseen = max(quantile(one.errors) for one in devices) * float(np.sqrt(1 + 1 / len(devices)))
    of_shapes = quantile(np.concatenate([one.errors for one in shapes]))
    document = {
        "schema": "triosim/physical-constants/1",
        "kind": "convolution",
        "constants": {"simt": table(simt), "tensor": table(tensor)},
        "spread": {
            "simt": {"seen": quantile(pooled), "unseen": unseen},
            "tensor": {"seen": of_shapes, "unseen": float(np.hypot(of_shapes, unseen))},
        },
        "provenance": {
            "script": "validation/fit/physical_convolution.py",
            "sources": [
                "sitar-lab/NeuSight, PyTorch 2.1, float32 3 x 3 convolutions on P100, T4 and V100 (MIT)",
                "sarchlab/triosim, ResNet-50 training step on H100, TF32 (MIT)",
            ],
            "spread": "seen: 90 % of the errors with the device left out, pooled; unseen: the largest of them by "
            "device, times sqrt(1 + 1 / devices). Matrix units were measured on one device: shapes left out, and for "
            "another device the spread between devices of the vector units on top.",
            "left_out": {one.name: one.figures() for one in (*devices, *shapes)},
        },
    }
    print(json.dumps(document["spread"]))
    if options.write:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
