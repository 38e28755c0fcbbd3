"""Fits the constants of anchoring and writes ``src/triosim/kernels/data/anchoring.json``.

    python -m validation.fit.anchoring [--write]

From pairs of measurements of the same kernel on the same device at two sizes: how much of what a model is off by is
the same at both, and what error is left of measured time x model / model.  From pairs of the same kernel and size on
two devices: how much of it both share.  For the roofline and for the physical models.  Run the scripts that fit those
first; their constants are read here, and no other file than theirs.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data import kernel_rows
from validation.data import kernels as kernel_data
from validation.data.kernels import Sample, resnet_operators
from validation.fit import physical_attention as fit_physical_attention
from validation.fit import physical_convolution as fit_physical_convolution
from validation.fit import physical_gemm as fit_physical_gemm
from validation.fit import physical_stream as fit_physical_stream
from validation.fit import roofline as fit_roofline
from validation.fit.roofline import quantile

from triosim.core.dtypes import DTYPES
from triosim.hardware import catalog
from triosim.kernels.anchoring import SCHEMA
from triosim.kernels.arithmetic import rate
from triosim.kernels.pack import RooflinePack, join, load
from triosim.kernels.physical import gemm, kinds
from triosim.kernels.transfer import distance
from triosim.kernels.work import stream
from triosim.kernels.work.stream import Stream

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "kernels" / "data" / "anchoring.json"

ROWS_PER_DEVICE = 3000
PAIRS_PER_DEVICE = 4000
NEAR = 0.15
"""Kernels count as the same but for size when the logarithms of their other dimensions differ by less, in sum (NeuSight
drew its shapes at random, so no two are equal)."""
ABOVE_HOST = 5.0
"""Isolated operators count from this multiple of the host's time inside them, which is subtracted."""
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
KEEP_LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
DEVICE_LENGTHS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
"""No two devices that were measured are less than 1.7 apart, so that shorter lengths could not be told from these."""
SLOPE_EDGES_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""Recorded times between which proportional scaling is judged apart: short kernels hardly follow their work."""
FEWEST_PAIRS = 50
SLOPES_LIKE = {
    "convolution_backward": "convolution", "attention_backward": "attention", "other": "rowwise", "nothing": "rowwise",
}  # fmt: skip
"""Groups without pairs, and the group whose slopes they take; ``other`` moves bytes, at worst as rowwise does."""


@dataclass(frozen=True)
class Class:
    """Measured kernels of one class.

    Attributes:
        sample: device time alone, without time of the host and of other kernels.
        model: modelled seconds of each row.
        near: how far the other dimensions of kernels may differ that count as the same but for size.
        spread: half-width of the model's own 90 % interval.
        kernel: which operator each row is, where a class has several with kernels of their own; else zeros.
    """

    sample: Sample
    model: NDArray[np.float64]
    near: float
    spread: float
    kernel: NDArray[np.int64]

    def take(self, rows: NDArray) -> Class:
        """These rows only."""
        return Class(self.sample.take(rows), self.model[rows], self.near, self.spread, self.kernel[rows])

    def groups(self) -> NDArray[np.int64]:
        """Rows of the same kernel on the same device have the same number."""
        device = np.unique(self.sample.device, return_inverse=True)[1].ravel()
        return np.asarray(device * (int(self.kernel.max(initial=0)) + 1) + self.kernel)


@dataclass(frozen=True)
class Pairs:
    """The same kernel at two sizes on one device, one row each; ``a`` is the recording.

    Attributes:
        a, b: residuals, log(measured / modelled).
        mean: mean residual of the class on that device.
        step: logarithm of the change of modelled time.
        work: logarithm of the change of work.
        seconds: measured time of ``a``.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    mean: NDArray[np.float64]
    step: NDArray[np.float64]
    work: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def errors(self, keep: Keep | None = None) -> NDArray[np.float64]:
        """Errors of anchored times, when all of the residual is carried over or what ``keep`` says."""
        if keep is None:
            return self.b - self.a
        within = np.clip(self.a, -keep.spread, keep.spread)
        part = keep.persist + (1 - keep.persist) * np.exp(-np.abs(self.step) / keep.length)
        return self.b - (self.a - within + self.mean + part * (within - self.mean))


@dataclass(frozen=True)
class Keep:
    """What is kept of a residual at another size: see :func:`triosim.kernels.models.auto._anchored`."""

    persist: float
    length: float
    spread: float


def persistent(found: Pairs, length: float, spread: float) -> float:
    """The part of what residuals differ from their device's mean by that does not fade with the distance.

    By least squares, between 0 and 1.
    """
    within = np.clip(found.a, -spread, spread)
    fades = np.exp(-np.abs(found.step) / length)
    apart = within - found.mean
    x, y = apart * (1 - fades), found.b - (found.a - within) - found.mean - apart * fades
    return float(np.clip(np.sum(x * y) / np.maximum(np.sum(x * x), 1e-30), 0.0, 1.0))


def kernels_only(sample: Sample, host_s: float, memory: float) -> Sample:
    """The kernels themselves: without the host's time and the kernel before them."""
    seconds = sample.seconds - host_s - sample.before_s / memory
    rows = np.flatnonzero(sample.seconds > ABOVE_HOST * (host_s + sample.before_s / memory))
    columns = {name: getattr(sample, name)[rows] for name in Sample.__dataclass_fields__}
    return Sample(**{**columns, "seconds": seconds[rows]})


def modelled(sample: Sample, pack: RooflinePack, key: str) -> NDArray[np.float64]:
    """Roofline with the pack's constants, seconds."""
    at = pack.keys.index(key)
    work = join(sample.compute_s / pack.compute[at], sample.memory_s / pack.memory[at], float(pack.overlap[at]))
    return pack.floor_s[at] + work


def pairs(one: Class, seed: int = 0) -> Pairs:
    """Pairs of rows that differ in size by a factor of 1.1 to 64, up or down; some of each device, by ``seed``."""
    random = np.random.default_rng(seed)
    sample, model, near = one.sample, one.model, one.near
    residual = np.log(sample.seconds / model)
    group = np.unique(one.groups(), return_inverse=True)[1].ravel()
    mean = (np.bincount(group, residual) / np.bincount(group))[group]
    columns: list[NDArray] = []
    for device in np.unique(sample.device):
        rows = np.flatnonzero(sample.device == device)
        shape = np.log(np.maximum(sample.shape[rows], 0) + 1)
        shape = np.column_stack([shape, 10.0 * one.kernel[rows]])
        size = np.log(sample.size[rows])
        order = np.lexsort(shape.T)
        rows, shape, size = rows[order], shape[order], size[order]
        found = []
        for start in range(0, len(rows), 256):
            apart = np.abs(shape[start : start + 256, None] - shape[None]).sum(2)
            grown = np.abs(size[start : start + 256, None] - size[None])
            i, j = np.nonzero((apart <= near) & (grown > math.log(1.1)) & (grown <= math.log(64.01)))
            found.append(np.stack([rows[i + start], rows[j]]))
        a, b = np.concatenate(found, 1)
        if len(a) > PAIRS_PER_DEVICE:
            a, b = np.stack([a, b])[:, np.sort(random.choice(len(a), PAIRS_PER_DEVICE, replace=False))]
        change = np.where(
            sample.compute_s[a] > 0,
            sample.compute_s[b] / np.maximum(sample.compute_s[a], 1e-30),
            sample.memory_s[b] / sample.memory_s[a],
        )
        columns.append(
            np.stack(
                [
                    residual[a],
                    residual[b],
                    mean[a],
                    np.log(model[b] / model[a]),
                    np.log(change),
                    sample.seconds[a],
                ]
            )
        )
    return Pairs(*np.concatenate(columns, 1))


def profile(work: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """How far the error has grown after this change of work, 0 to 1."""
    return np.sqrt(-np.expm1(-2 * np.abs(work) / length))


DRIFTS_LIKE = {
    "convolution/tensor": "matrix/tensor",
    "convolution_backward/tensor": "matrix/tensor",
    "convolution_backward/simt": "convolution/simt",
    "attention_backward/tensor": "attention/tensor",
}
"""Classes without pairs that run as another class: convolutions on matrix units are implicit matrix products."""

BINS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.2)


def coverage(found: Pairs, drift: float, length: float, floor: float, keep: Keep | None = None) -> list[float]:
    """Part of the errors inside the interval, by bins of the change of work."""
    inside = np.abs(found.errors(keep)) <= np.hypot(drift * profile(found.work, length), floor)
    at = np.digitize(np.abs(found.work), BINS[1:-1])
    return [float(inside[at == i].mean()) if (at == i).sum() >= 50 else math.nan for i in range(len(BINS) - 1)]


def drift_of(found: Pairs, length: float, keep: Keep | None = None) -> float:
    """The drift that covers 90 % of the errors, every bin of the change of work counting the same."""
    scores = np.abs(found.errors(keep)) / profile(found.work, length)
    bins = np.digitize(np.abs(found.work), BINS[1:-1])
    weight = 1 / np.bincount(bins, minlength=len(BINS))[bins]
    order = np.argsort(scores, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    return float(scores[order][np.searchsorted(share, fit_roofline.LEVEL)])


def proportional_slopes(found: Pairs) -> list[float]:
    """90 % of the errors of scaling with the work, over the logarithm of the ratio, by recorded time; NaN for none."""
    error = np.abs(found.b + found.step - found.a - found.work) / np.abs(found.work)
    at = np.digitize(found.seconds, SLOPE_EDGES_S)
    return [
        quantile(error[at == i]) if (at == i).sum() >= FEWEST_PAIRS else math.nan for i in range(len(SLOPE_EDGES_S) + 1)
    ]


def filled(row: list[float]) -> list[float]:
    """Gaps take the slope of the nearest longer time that was measured, else of the nearest shorter one."""
    known = [i for i, slope in enumerate(row) if not math.isnan(slope)]
    out = []
    for i, slope in enumerate(row):
        if math.isnan(slope):
            longer = [k for k in known if k > i]
            slope = row[longer[0]] if longer else row[known[-1]]
        out.append(float(slope))
    return out


def across(sample: Sample, model: NDArray[np.float64]) -> tuple[NDArray, NDArray, NDArray]:
    """Residuals of the same kernel at the same size on two devices, every ordered pair, and how far they are apart."""
    residual = np.log(sample.seconds / model)
    key = np.unique(np.column_stack([sample.shape, sample.size]), axis=0, return_inverse=True)[1].ravel()
    devices = np.unique(sample.device)
    at = np.full((len(devices), key.max() + 1), np.nan)
    for row, device in enumerate(devices):
        mine = sample.device == device
        at[row, key[mine]] = residual[mine]
    here, there, apart = [], [], []
    for i in range(len(devices)):
        for j in range(len(devices)):
            both = np.flatnonzero(np.isfinite(at[i]) & np.isfinite(at[j])) if i != j else np.zeros(0, int)
            here.append(at[i, both])
            there.append(at[j, both])
            pair = (catalog.accelerator(str(devices[k])) for k in (i, j))
            apart.append(np.full(len(both), distance(*pair)))
    return np.concatenate(here), np.concatenate(there), np.concatenate(apart)


def repeated_spread() -> float:
    """90 % of |log(time / median)| among operators of the same class and size in one step, 20 us and longer."""
    found = []
    for sample in resnet_operators().values():
        groups = np.unique(sample.shape, axis=0, return_inverse=True)[1].ravel()
        for group in np.unique(groups):
            times = sample.seconds[groups == group]
            if len(times) >= 3 and times.min() >= 20e-6:
                found.append(np.abs(np.log(times / np.median(times))))
    return quantile(np.concatenate(found))


def rooflined() -> dict[str, Class]:
    """Every class by the roofline."""
    pack = load()
    found = {}
    for key, (sample, form, source) in fit_roofline.samples().items():
        judged = fit_roofline.judge(key, sample, form, source)
        if len(judged.rows) < 2:
            continue
        sample = kernels_only(sample, judged.constants.host_s, judged.constants.memory)
        near = 0.0 if "aiconfigurator" in source else NEAR
        spread = float(pack.spread[pack.keys.index(key)])
        found[key] = Class(sample, modelled(sample, pack, key), near, spread, np.zeros(len(sample), np.int64))
    return found


def physical() -> dict[str, Class]:
    """Every class by the physical models, on the rows that their scripts fit or judge them on."""
    simt = gemm.load().constants["simt"]
    products = fit_physical_gemm.isolated("linear", "bmm")
    host = np.where(products.work.batch > 1, simt.host_batched_s, simt.host_s)
    narrow = fit_physical_gemm.join(fit_physical_gemm.served("fp8"), fit_physical_gemm.served("nvfp4"))
    prefill, decode = (fit_physical_attention.read(phase)[0] for phase in ("prefill", "decode"))
    made: dict[str, list[tuple[Any, NDArray | float]]] = {
        "matrix/tensor": [(fit_physical_gemm.served("bfloat16"), 0.0)],
        "matrix/narrow": [(narrow, 0.0)],
        "matrix/simt": [(products, host)],
        "convolution/simt": [(fit_physical_convolution.isolated()[0], 0.0)],
        "attention/tensor": [(prefill, 0.0), (decode, 0.0)],
        "rowwise": [streams("softmax"), streams("ln")],
        "elementwise": [streams(name) for name in ELEMENTWISE],
    }  # fmt: skip
    return {key: _physical(key, parts) for key, parts in made.items()}


ELEMENTWISE = ("add", "addu", "div", "divu", "gelu", "mul", "mulu", "pow", "powu", "relu", "tanh")


def streams(operator: str) -> tuple[fit_physical_stream.Rows, NDArray[np.float64]]:
    """Isolated operators of one name, and the time of the host that each holds."""
    rows = kernel_rows.read(kernel_rows.shipped("fp32_ops"), {})[0]
    rows = rows.take(np.flatnonzero(rows.columns["op"].astype(str) == operator))
    kind = {"softmax": "softmax", "ln": "layer_norm"}.get(operator, "elementwise")
    work = stream.rowwise(kind, rows.columns["B"].astype(float), rows.columns["H"].astype(float))
    if operator in kernel_data._TWO_OPERANDS:
        work = replace(work, read=2 * work.read)
    shortest = np.empty(len(rows))
    for device in np.unique(rows.device):
        at = rows.device == device
        shortest[at] = np.quantile(rows.seconds[at], 0.01)
    return fit_physical_stream.Rows(
        rows.device, work, rows.seconds, shortest
    ), fit_physical_stream.HOST_SHARE * shortest


def _physical(key: str, parts: list[tuple[Any, NDArray | float]]) -> Class:
    samples, models, spreads = [], [], []
    for rows, host in parts:
        if not len(rows):
            continue
        seconds = rows.seconds - host
        kind = kinds.kind_of(rows.work)
        keep = np.flatnonzero(seconds > (ABOVE_HOST - 1) * np.broadcast_to(host, seconds.shape))
        work, device = rows.work.take(keep), rows.device[keep]
        model, spread = np.empty(len(keep)), np.empty(len(keep))
        for name in np.unique(device):
            at = np.flatnonzero(device == name)
            priced = kinds.shipped(kind, work.take(at), catalog.accelerator(str(name)))
            model[at], spread[at] = priced.seconds, priced.spread
        samples.append(_sample(device, work, seconds[keep]))
        models.append(model)
        spreads.append(spread)
    sample = samples[0] if len(samples) == 1 else kernel_data.join_samples(*samples)
    kernel = np.repeat(np.arange(len(samples)), [len(one) for one in samples])
    served = key in ("matrix/tensor", "matrix/narrow", "attention/tensor")
    near, usual = 0.0 if served else NEAR, float(np.median(np.concatenate(spreads)))
    return Class(sample, np.concatenate(models), near, usual, kernel)


def _sample(device: NDArray[np.str_], work: kinds.Work, seconds: NDArray[np.float64]) -> Sample:
    """Measured work in seconds of the datasheets, with its shape apart from its size."""
    peak, bandwidth = np.empty(len(device)), np.empty(len(device))
    for name in np.unique(device):
        at = np.flatnonzero(device == name)
        chip = catalog.accelerator(str(name))
        bandwidth[at] = float(chip.memory_bandwidth or np.nan)
        if not isinstance(work, Stream):
            peak[at] = [rate(DTYPES[code], chip) for code in work.dtype[at].tolist()]
    if isinstance(work, Stream):
        compute, size = np.zeros(len(device)), work.read
        shape = np.stack([work.kind, work.written / work.read, work.row_bytes], 1)
    else:
        compute = work.flop() / peak
        sizes = np.exp2(kinds.kind_of(work).shape(work))
        size, shape = sizes[:, 0], np.column_stack([sizes[:, 1:], work.dtype])
    return Sample(device, compute, work.bytes() / bandwidth, np.zeros(len(device)), seconds, shape, size)


@dataclass(frozen=True)
class Fitted:
    """Of one basis: what is kept of residuals and how far they drift, by class."""

    pairs: dict[str, Pairs]
    keep: dict[str, Keep]
    length: float
    drift: dict[str, float]
    few: dict[str, float]
    shared: dict[str, tuple[float, float, int]]


def fit(classes: dict[str, Class]) -> Fitted:
    """The constants of one basis."""
    shared = {key: between(one) for key, one in classes.items()}
    found = {}
    for key, one in classes.items():
        found[key] = pairs(one.take(fit_roofline.even_rows(one.sample, ROWS_PER_DEVICE)))

    def kept(length: float) -> dict[str, Keep]:
        return {
            key: Keep(persistent(one, length, classes[key].spread), length, classes[key].spread)
            for key, one in found.items()
        }

    def error(length: float) -> float:
        keep = kept(length)
        return float(np.mean([np.mean(np.abs(one.errors(keep[key]))) for key, one in found.items()]))

    keep = kept(min(KEEP_LENGTHS, key=error))

    def unevenness(length: float) -> float:
        table = [coverage(one, drift_of(one, length, keep[key]), length, 0.0, keep[key]) for key, one in found.items()]
        return float(np.nanmean(np.abs(np.array(table) - fit_roofline.LEVEL)))

    length = min(LENGTHS, key=unevenness)
    drift = {key: drift_of(one, length, keep[key]) for key, one in found.items()}
    return Fitted(found, keep, length, drift, {key: few(one) for key, one in classes.items()}, shared)


def few(one: Class) -> float:
    """How many sizes of a kernel it takes for their mean residual to say as much of it as is known without any.

    Variance of residuals on a device over that of the devices' means, the square of the model's own interval at most.
    """
    residual = np.clip(np.log(one.sample.seconds / one.model), -one.spread, one.spread)
    groups = [residual[one.groups() == group] for group in np.unique(one.groups())]
    inside = float(np.mean([np.var(group) for group in groups]))
    return inside / float(np.mean([np.mean(group) ** 2 for group in groups]))


def between(one: Class) -> tuple[float, float, int]:
    """Distance over which what devices share fades to 1 / e, 90 % of the error between strangers, and pairs."""
    here, there, apart = across(one.sample, one.model)
    within = np.clip(here, -one.spread, one.spread)  # what is beyond is carried over whole
    rest = there - (here - within)
    length = min(DEVICE_LENGTHS, key=lambda reach: float(np.mean((rest - np.exp(-apart / reach) * within) ** 2)))
    shared = np.exp(-apart / length)
    return length, quantile((rest - shared * within) / np.sqrt(1 - shared**2)), len(here)


def table(found: Fitted, floor: float) -> str:
    """What was found, class by class."""
    keep = next(iter(found.keep.values()))
    bins = " ".join(f"<{b}" for b in BINS[1:])
    lines = [
        f"residuals fade over {keep.length} in the logarithm of modelled time; drift length {found.length}",
        f"{'':20s}{'same device, two sizes':88s}two devices",
        f"{'class':20s}{'pairs':>7s}{'persists':>9s}{'few':>6s}{'anchored':>9s}{'alone':>7s}{'drift':>7s}  "
        f"{'covered, by |log work| ' + bins:46s}{'length':>9s}{'90 %':>6s}",
    ]
    for key, one in found.pairs.items():
        reach, spread, _ = found.shared[key]
        kept, drift = found.keep[key], found.drift[key]
        inside = " ".join(f"{c:.2f}" for c in coverage(one, drift, found.length, floor, kept))
        row = f"{key:20s}{len(one.a):7d}{kept.persist:9.2f}{found.few[key]:6.1f}{quantile(one.errors(kept)):9.2f}"
        lines.append(f"{row}{quantile(one.b):7.2f}{drift:7.2f}  {inside:46s}{reach:9.2f}{spread:6.2f}")
    return "\n".join(lines)


def document(found: Fitted) -> dict[str, Any]:
    """Constants of one basis."""
    classes: dict[str, dict[str, Any]] = {
        key: {
            "persist": _round(found.keep[key].persist),
            "few": _round(found.few[key]),
            "drift": _round(found.drift[key]),
            "device_length": _round(found.shared[key][0]),
            "device_spread": _round(found.shared[key][1]),
            "pairs": len(found.pairs[key].a),
            "pairs_of_devices": found.shared[key][2],
        }
        for key in found.pairs
    }
    default = {
        "persist": 1.0,
        "few": _round(max(found.few.values())),
        "drift": _round(float(np.quantile([entry["drift"] for entry in classes.values()], 0.75))),
        "device_length": max(DEVICE_LENGTHS),
        "device_spread": max(entry["device_spread"] for entry in classes.values()),
    }
    like = {key: {**default, "drift": classes[other]["drift"], "like": other} for key, other in DRIFTS_LIKE.items()}
    return {
        "keep_length": next(iter(found.keep.values())).length,
        "drift_length": found.length,
        "classes": {**classes, **like},
        "default": {
            **default,
            "reason": "classes without pairs: the upper quartile of the drifts and the largest error between devices "
            "of the others; what such an operator differs from the model by is taken to be its nature",
        },
    }


def main() -> None:
    """Fit, print what was found, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    floor = repeated_spread()
    print(f"repetitions differ by {floor:.3f}")
    fits = {"roofline": fit(rooflined()), "physical": fit(physical())}
    slopes: dict[str, list[float]] = {}
    for key, one in fits["roofline"].pairs.items():
        for at, slope in enumerate(proportional_slopes(one)):
            row = slopes.setdefault(key.split("/")[0], [math.nan] * (len(SLOPE_EDGES_S) + 1))
            row[at] = np.fmax(row[at], slope)
    print("proportional scaling: 90 % of errors below ... x |log ratio|, by recorded time")
    print(f"{'':20s}" + " ".join(f"{f'<{edge * 1e6:g} us':>9s}" for edge in SLOPE_EDGES_S) + f"{'longer':>9s}")
    for group, row in slopes.items():
        print(f"{group:20s}" + " ".join(f"{slope:9.2f}" for slope in row))
    for basis, found in fits.items():
        print(f"\n{basis}: {table(found, floor)}")
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "recorded_spread": _round(floor),
        "proportional": {
            "edges_s": list(SLOPE_EDGES_S),
            "slopes": {
                **{group: [_round(s) for s in filled(row)] for group, row in slopes.items()},
                **{group: [_round(s) for s in filled(slopes[like])] for group, like in SLOPES_LIKE.items()},
            },
        },
        "residuals": {basis: document(found) for basis, found in fits.items()},
        "provenance": {
            "script": "validation/fit/anchoring.py",
            "recorded_spread": "repeated operators of one ResNet-50 training step on H100 (TrioSim sample traces)",
        },
    }
    if arguments.write:
        TARGET.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


def _round(x: float) -> float:
    return float(f"{x:.4g}")


if __name__ == "__main__":
    main()
