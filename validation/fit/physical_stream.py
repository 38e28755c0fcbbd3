"""Fits the constants of the physical model of operators bound by bytes, and judges it on GPUs that the fit did not see.

    python -m validation.fit.physical_stream [--write]

Elementwise operators, softmax and layer norm: NeuSight, float32, P100, T4, V100 and A100; elementwise ones also of the
ResNet-50 training step of TrioSim on H100.  Batch norm: that step, whose shapes are left out in turn, as there is no
second GPU.  Pooling: the step's two poolings with windows.  Optimizers: the step's, with the constants of elementwise
operators.  No other file is read.  What softmax and layer norm reach of the bandwidth is what elementwise operators
reach on the same GPUs.

The times of NeuSight hold a time of the host.  Operators shorter than twice the shortest times of their kind on their
device measure the host and are counted, not judged; from the others a part of those shortest times is subtracted, about
:data:`HOST_SHARE`, which is fitted along with the constants (on the GPUs that are not judged).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import _TWO_OPERANDS, ABOVE_HOST, DATA, DEVICES, RESNET, _columns
from validation.fit.roofline import least, quantile

import triosim
from triosim.hardware import catalog
from triosim.kernels.physical import stream as model
from triosim.kernels.physical.stream import CLASSES, StreamConstants, predict
from triosim.kernels.work import stream as work
from triosim.kernels.work.stream import Stream

INPUTS = (DATA / "kernels" / "fp32_ops.parquet", RESNET / "trace.csv", RESNET / "tensor.csv")
"""All that is read."""
OUTPUT = Path(model.__file__).parents[1] / "data" / "physical" / "stream.json"

MEANING = {
    "launch_s": ("s", "shortest time of a kernel; held at what Kineto traces show"),
    "memory": ("1", "part of the datasheet's bandwidth that long operators reach"),
    "issue": ("byte", "bytes that a compute unit moves in a cycle when memory is no limit; held for elementwise"),
    "row": ("1", "cycles of a compute unit that each row, or element with a window of a pooling, costs"),
    "again": ("1", "times that what is read is read again"),
    "kept": ("byte", "longest row that is kept in registers and read once; the kernels of PyTorch 2.1"),
    "in_flight": ("1", "rows that a compute unit works on at one time"),
}  # fmt: skip

PRIOR = {
    "elementwise": StreamConstants(1.6e-6, 0.85, 30.0, 0.0, 0.0, 0.0, 1.0),
    "softmax": StreamConstants(2.0e-6, 0.85, 10.0, 100.0, 1.0, 4096.0, 8.0),
    "layer_norm": StreamConstants(2.0e-6, 0.85, 10.0, 400.0, 1.0, 0.0, 8.0),
    "batch_norm": StreamConstants(2.0e-6, 0.8, 16.0, 0.0, 1.0, 0.0, 1.0),
    "pooling": StreamConstants(1.6e-6, 0.85, 30.0, 3.0, 0.0, 0.0, 1.0),
}
"""Where the fit starts and what it is drawn to.  Rows of a softmax of at most 1024 elements stay in registers; eight
rows of four warps fill the registers of a compute unit.  A pooling divides indices of 64 bits for every element: some
hundreds of instructions on the 64 or 128 lanes of a unit."""
SIGMA = {
    "elementwise": {"memory": 0.1},
    "softmax": {"issue": 0.15, "row": 0.7, "again": 0.3},
    "layer_norm": {"issue": 0.15, "row": 0.7, "again": 0.3},
    "batch_norm": {"memory": 0.2, "issue": 0.5, "again": 0.3},
    "pooling": {"row": 1.0},
}
"""Constants that are fitted, and the standard deviations of their logarithms before any data."""
HOST_SHARE, HOST_SIGMA = 0.65, 0.03
"""Part of the shortest times that is the host's: 0.64 where elementwise operators of all GPUs choose it freely."""
LATE_S, LATE_SIGMA, LATE_MOST_S = 5e-6, 1.0, 3e-5
"""Kernels with a block per row take up to tens of microseconds longer in these measurements than in traces, where the
short ones take two to five; elementwise ones do not.  It is fitted, like the host's share, and is not the kernel's;
together they are at most the shortest times."""
LATE = ("softmax", "layer_norm")
PULL = 1.0
"""What one standard deviation away from the prior costs, as an error of the logarithm of one row."""
PER_DEVICE = 400
"""Operators of each device that are fitted to; all are judged."""
FOLDS = 5


@dataclass(frozen=True)
class Rows:
    """Measured operators of one class: catalog names, what they move, seconds, and the shortest of their kind."""

    device: NDArray[np.str_]
    work: Stream
    seconds: NDArray[np.float64]
    shortest: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Rows:
        """These rows only."""
        return Rows(self.device[rows], self.work.take(rows), self.seconds[rows], self.shortest[rows])


def isolated(name: str) -> tuple[Rows, int]:
    """NeuSight's operators of one class, and how many more measure the host."""
    data = _columns("fp32_ops", "gpu", "op", "Latency", "B", "H")
    op, gpu = data["op"].astype(str), data["gpu"].astype(str)
    special = {"softmax": "softmax", "layer_norm": "ln"}
    wanted = op == special[name] if name in special else ~np.isin(op, ("bmm", "linear", "conv", "softmax", "ln"))
    rows = np.flatnonzero(wanted)
    seconds = data["Latency"][rows].astype(float) * 1e-3
    shortest = np.empty(len(rows))
    for key in np.unique(np.char.add(op[rows], gpu[rows])):
        at = np.flatnonzero(np.char.add(op[rows], gpu[rows]) == key)
        shortest[at] = np.quantile(seconds[at], 0.01)
    keep = np.flatnonzero(seconds > ABOVE_HOST * shortest)
    rows = rows[keep]
    size = data["B"][rows].astype(float), data["H"][rows].astype(float)
    what = work.rowwise(name, *size)
    two = np.isin(op[rows], _TWO_OPERANDS)
    what = replace(what, read=np.where(two, 2 * what.read, what.read))
    device = np.array([DEVICES[one] for one in gpu[rows]])
    return Rows(device, what, seconds[keep], shortest[keep]), len(seconds) - len(keep)


LONG = 100e6
"""Bytes of a training step's elementwise operators from which they count: twice the cache of the H100."""


def training_step(name: str) -> Rows:
    """Operators of one class of the ResNet-50 training step on H100, forward and backward."""
    trace = triosim.load(RESNET)
    everything = work.of(trace, np.arange(len(trace)))
    rows = np.flatnonzero(everything.kind == work.CODE[name])
    what, seconds = everything.take(rows), trace.operators.device_s[rows]
    if name == "elementwise":
        keep = np.flatnonzero(what.bytes() > LONG)
    else:
        keep = np.flatnonzero((what.row_bytes > 0) | (name == "optimizer"))
    return Rows(np.full(len(keep), "H100-SXM5-80GB"), what.take(keep), seconds[keep], np.zeros(len(keep)))


def joined(a: Rows, b: Rows) -> Rows:
    """Both one after the other."""
    columns = {f.name: np.concatenate([getattr(r.work, f.name) for r in (a, b)]) for f in fields(Stream)}
    rest = (np.concatenate([getattr(r, name) for r in (a, b)]) for name in ("device", "seconds", "shortest"))
    device, seconds, shortest = rest
    return Rows(device, Stream(**columns), seconds, shortest)


@dataclass(frozen=True)
class Fit:
    """Constants of a class, and what the measurements hold besides: the host's part of the shortest times, seconds."""

    constants: StreamConstants
    share: float
    late_s: float = 0.0


def errors(rows: Rows, found: Fit) -> NDArray[np.float64]:
    """Logarithm of predicted over measured, which the host's time was taken from."""
    by_class = {"elementwise": found.constants, **dict.fromkeys(CLASSES, found.constants)}
    out = np.empty(len(rows))
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        out[at] = predict(rows.work.take(at), catalog.accelerator(str(name)), by_class).seconds
    late = np.minimum(found.late_s, (1 - found.share) * rows.shortest)
    return np.log((out + late) / (rows.seconds - found.share * rows.shortest))


def fit(rows: Rows, name: str, copied: Rows | None = None) -> Fit:
    """The constants nearest the measurements, drawn to :data:`PRIOR`, and the host's times.

    ``copied`` are elementwise operators, of the same devices, which ``memory`` is taken from.
    """
    prior, sigma = PRIOR[name], SIGMA[name]
    if copied is not None:
        prior = replace(prior, memory=fit(copied, "elementwise").constants.memory)
    late = name in LATE
    start = np.log([getattr(prior, one) for one in sigma] + [HOST_SHARE] + [LATE_S] * late)
    width = np.array([*sigma.values(), HOST_SIGMA] + [LATE_SIGMA] * late)

    def made(x: NDArray) -> Fit:
        found = np.exp(x).tolist()
        constants = replace(prior, **dict(zip(sigma, found[: len(sigma)], strict=True)))
        return Fit(constants, *found[len(sigma) :])

    def residuals(x: NDArray) -> NDArray:
        return np.concatenate([errors(rows, made(x)), PULL * (x - start) / width])

    highest = start + 2.0
    highest[len(sigma)] = 0.0
    if late:
        highest[-1] = np.log(LATE_MOST_S)
    return made(least(residuals, start, start - 2.0, highest))


def sampled(rows: Rows) -> Rows:
    """:data:`PER_DEVICE` rows of each device, evenly over the times; some twice where there are fewer."""
    chosen = []
    for name in np.unique(rows.device):
        at = np.flatnonzero(rows.device == name)
        order = at[np.argsort(rows.seconds[at], kind="stable")]
        chosen.append(order[np.linspace(0, len(order) - 1, PER_DEVICE).astype(int)])
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


def without(rows: Rows, *devices: str) -> Rows:
    """Rows of all other devices."""
    return rows.take(np.flatnonzero(~np.isin(rows.device, devices)))


def judge_devices(rows: Rows, name: str, copied: Rows | None) -> list[Judged]:
    """Each device with constants, and a spread, from the others.

    The spread is the widest that one of the ``n`` others, left out, would need, times ``sqrt(1 + 1/n)``: a new device
    is off from the mean of ``n`` by that much more than devices are among themselves.
    """
    some = sampled(rows)
    names = [str(one) for one in np.unique(rows.device)]

    def fitted(*out: str) -> Fit:
        return fit(without(some, *out), name, None if copied is None else without(copied, *out))

    found = []
    for out in names:
        need = []
        for inner in (one for one in names if one != out):
            left = some.take(np.flatnonzero(some.device == inner))
            need.append(quantile(errors(left, fitted(out, inner))))
        left = rows.take(np.flatnonzero(rows.device == out))
        found.append(Judged(out, errors(left, fitted(out)), float(np.sqrt(1 + 1 / len(need))) * max(need)))
    return found


def judge_shapes(rows: Rows, name: str) -> list[Judged]:
    """A fifth of the shapes left out in turn."""
    w = rows.work
    fold = np.unique(np.stack([w.read, w.rows], 1), axis=0, return_inverse=True)[1].ravel() % FOLDS
    off = np.empty(len(rows))
    for one in range(FOLDS):
        left = np.flatnonzero(fold == one)
        off[left] = errors(rows.take(left), fit(rows.take(np.flatnonzero(fold != one)), name))
    spread = np.array([quantile(off[fold != one]) for one in range(FOLDS)])
    return [Judged("H100-SXM5-80GB", off, float(spread[fold].mean()))]


def table(constants: StreamConstants) -> dict[str, dict[str, float | str]]:
    """Constants as in the file."""

    def entry(name: str) -> dict[str, float | str]:
        unit, meaning = MEANING[name]
        return {"value": float(f"{getattr(constants, name):.6g}"), "unit": unit, "meaning": meaning}

    return {f.name: entry(f.name) for f in fields(StreamConstants)}


NEAR = {
    "Pascal": (24, "Tesla P100 whitepaper (GP100)"),
    "Pascal GP102": (48, "Pascal tuning guide, 1.4.3"),
    "Pascal GP104": (48, "Pascal tuning guide, 1.4.3"),
    "Volta": (128, "Volta tuning guide, 1.4.3: cache and shared memory together"),
    "Turing": (64, "Turing tuning guide, 1.4.3: 96 KiB, of which the cache has at most 64"),
    "Ampere": (192, "Ampere tuning guide, 1.4.2: cache and shared memory together (8.0)"),
    "Ampere GA102": (128, "Ampere tuning guide, 1.4.2 (8.6)"),
    "Ampere GA10B": (192, "Jetson AGX Orin technical brief (8.7)"),
    "Ada": (128, "Ada tuning guide, 1.4.2"),
    "Hopper": (256, "Hopper tuning guide, 1.4.2"),
    "Blackwell": (256, "Blackwell tuning guide, 1.4.2 (10.0)"),
    "Blackwell GB202": (128, "RTX Blackwell whitepaper (12.0)"),
    "Vega20": (16, "Linux, amdkfd/kfd_crat.c"),
    "CDNA1": (16, "Linux, amdkfd/kfd_crat.c"),
    "CDNA2": (16, "Linux, amdkfd/kfd_crat.c"),
    "CDNA3": (32, "CDNA 3 whitepaper"),
    "CDNA4": (32, "CDNA 4 whitepaper"),
    "RDNA3": (32, "Linux, amdkfd/kfd_crat.c"),
    "": (128, "default: the middle of the GPUs of the 2020s"),
}  # fmt: skip
"""KiB of a compute unit's first-level data cache, and where that is from."""


def of_strangers(measured: dict[str, Rows], elementwise: Fit) -> dict[str, float]:
    """90 % of the errors of elementwise constants on kinds that were measured, which were not fitted to those."""
    return {name: quantile(errors(rows, elementwise)) for name, rows in measured.items()}


def in_registers(layer_norm: StreamConstants, elementwise: StreamConstants) -> StreamConstants:
    """Of norms that keep a row in registers: none was measured.

    A row costs a block what it costs PyTorch's; nothing is read again; loads of 16 bytes are those of elementwise
    operators.
    """
    return replace(layer_norm, issue=elementwise.issue, again=0.0)


def side_by_side(batch_norm: StreamConstants, elementwise: StreamConstants) -> StreamConstants:
    """Of batch norms over channels that lie side by side: none was measured.

    What is read is read again, once all of it has been; loads are those of elementwise operators.
    """
    return replace(elementwise, launch_s=batch_norm.launch_s, again=1.0, in_flight=ALL_ROWS)


def of_halves(batch_norm: StreamConstants) -> StreamConstants:
    """Of batch norms in 16 bits, where channels lie apart: none was measured.

    As many elements are taken in a cycle as of the 32 bits that were.
    """
    return replace(batch_norm, issue=batch_norm.issue / 2.0)


ALL_ROWS = 1e9
"""Rows of a compute unit where a kernel goes over all before it begins again."""


def main() -> int:
    """Print what the fits reach; with ``--write`` also write the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    print("read:", *(path.relative_to(DATA) for path in INPUTS))
    constants, spread, left_out, between = {}, {}, {}, 0.0
    found_of: dict[str, StreamConstants] = {}
    elementwise, dropped = isolated("elementwise")
    elementwise = joined(elementwise, training_step("elementwise"))
    plain, strangers = fit(sampled(elementwise), "elementwise"), {}
    for name in PRIOR:
        copied = sampled(elementwise) if name in LATE else None
        if name == "batch_norm":
            rows, dropped = training_step(name), 0
            judged = judge_shapes(rows, name)
        elif name == "pooling":
            rows, dropped, judged = training_step(name), 0, []
        else:
            rows, dropped = (elementwise, dropped) if name == "elementwise" else isolated(name)
            judged = judge_devices(rows, name, copied)
        if name != "elementwise":
            strangers[name] = rows
        found = fit(sampled(rows) if len(rows) > 2 else rows, name, copied)
        late = f", and {1e6 * found.late_s:.0f} us" if found.late_s else ""
        print(
            f"{name}: {dropped} measure the host, {len(rows)} are judged; the host's share is {found.share:.2f}{late}"
        )
        for one in judged:
            print(f"  {one.name:18}", "  ".join(f"{key} {value:.3g}" for key, value in one.figures().items()))
        constants[name], found_of[name] = table(found.constants), found.constants
        left_out[name] = {one.name: one.figures() for one in judged}
        if not judged:
            print("  predicted / measured:", " ".join(f"{e:.2f}" for e in np.exp(errors(rows, found))))
            continue
        pooled = quantile(np.concatenate([one.errors for one in judged]))
        if len(judged) > 1:
            unseen = max(quantile(one.errors) for one in judged) * float(np.sqrt(1 + 1 / len(judged)))
            between = max(between, unseen)
        else:  # one device: another one is off by what devices differ by, on top
            unseen = float(np.hypot(pooled, between))
        spread[name] = {"seen": pooled, "unseen": unseen}
    constants["register_norm"] = table(in_registers(found_of["layer_norm"], plain.constants))
    left_out["register_norm"], spread["register_norm"] = {}, spread["layer_norm"]
    constants["nhwc_norm"] = table(side_by_side(found_of["batch_norm"], plain.constants))
    constants["half_batch_norm"] = table(of_halves(found_of["batch_norm"]))
    for name in ("nhwc_norm", "half_batch_norm"):
        left_out[name], spread[name] = {}, spread["batch_norm"]
    optimizer = training_step("optimizer")
    own = Judged("H100-SXM5-80GB", errors(optimizer, plain), spread["elementwise"]["seen"])
    left_out["optimizer"] = {own.name: own.figures()}
    print("optimizer, with constants of elementwise operators:", left_out["optimizer"][own.name])
    far = of_strangers(strangers, plain)
    print("elementwise constants are off by:", {name: round(value, 2) for name, value in far.items()})
    widest = max(value for name, value in far.items() if name != "pooling")
    apart = {"seen": widest, "unseen": float(np.hypot(widest, between))}
    spread |= {"pooling": apart, "optimizer": {"seen": quantile(own.errors)}, "unmeasured": apart}
    spread["optimizer"]["unseen"] = float(np.hypot(spread["optimizer"]["seen"], between))
    left_out |= {"pooling": {}, "unmeasured": {}}
    print(json.dumps(spread))
    document = {
        "schema": "triosim/physical-constants/1",
        "kind": "stream",
        "constants": constants,
        "near": {name: {"bytes": 1024 * size, "source": source} for name, (size, source) in NEAR.items()},
        "spread": {name: spread[name] for name in CLASSES},
        "provenance": {
            "script": "validation/fit/physical_stream.py",
            "sources": [
                "sitar-lab/NeuSight, PyTorch 2.1, float32 elementwise operators, softmax and layer norm on P100, T4, "
                "V100 and A100-PCIe-40GB (MIT)",
                "sarchlab/triosim, ResNet-50 training step on H100, elementwise operators, batch norm, pooling and "
                "optimizer (MIT)",
            ],
            "spread": "seen: 90 % of the errors with the device left out, pooled; unseen: the largest of them by "
            "device, times sqrt(1 + 1 / devices). Batch norm was measured on one device: shapes left out, and for "
            "another device the largest spread between devices on top. Optimizers: 90 % of the errors of elementwise "
            "constants on those of the training step. Pooling (fitted to two kernels) and kinds that were not "
            "measured: the largest 90 % of the errors that elementwise constants make on softmax, layer norm and "
            "batch norm. Norms that keep rows in registers, not measured: those of layer norm; batch norms in 16 "
            "bits or over channels that lie side by side, not measured: those of batch norm.",
            "left_out": left_out,
        },
    }
    if options.write:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
