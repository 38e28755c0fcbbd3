"""Fits the constants of anchoring and writes ``src/triosim/kernels/data/anchoring.json``.

    python -m validation.fit_anchoring [--write]

From pairs of measurements of the same kernel on the same device at two sizes: what error is left of measured time x
roofline / roofline.  From pairs of the same kernel and size on two devices: how much of what the roofline is off by
both share.  Run ``fit_roofline.py`` first; its constants are read here.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation import fit_roofline
from validation.fit_roofline import even, quantile
from validation.kernel_data import Sample, resnet_operators

from triosim.kernels.anchoring import SCHEMA
from triosim.kernels.pack import Pack, join, load

TARGET = Path(__file__).resolve().parents[1] / "src" / "triosim" / "kernels" / "data" / "anchoring.json"

ROWS_PER_DEVICE = 3000
PAIRS_PER_DEVICE = 4000
NEAR = 0.15
"""Kernels count as the same but for size when the logarithms of their other dimensions differ by less, in sum (NeuSight
drew its shapes at random, so no two are equal)."""
ABOVE_HOST = 5.0
"""Isolated operators count from this multiple of the host's time inside them, which is subtracted."""
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
SLOPE_EDGES_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""Recorded times between which proportional scaling is judged apart: short kernels hardly follow their work."""
FEWEST_PAIRS = 50
SLOPES_LIKE = {
    "convolution_backward": "convolution", "attention_backward": "attention", "other": "rowwise", "nothing": "rowwise",
}  # fmt: skip
"""Groups without pairs, and the group whose slopes they take; ``other`` moves bytes, at worst as rowwise does."""


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

    def errors(self) -> NDArray[np.float64]:
        """Errors of anchored times."""
        return self.b - self.a


def kernels_only(sample: Sample, host_s: float, memory: float) -> Sample:
    """The kernels themselves: without the host's time and the kernel before them."""
    seconds = sample.seconds - host_s - sample.before_s / memory
    rows = np.flatnonzero(sample.seconds > ABOVE_HOST * (host_s + sample.before_s / memory))
    columns = {name: getattr(sample, name)[rows] for name in Sample.__dataclass_fields__}
    return Sample(**{**columns, "seconds": seconds[rows]})


def modelled(sample: Sample, pack: Pack, key: str) -> NDArray[np.float64]:
    """Roofline with the pack's constants, seconds."""
    at = pack.keys.index(key)
    work = join(sample.compute_s / pack.compute[at], sample.memory_s / pack.memory[at], float(pack.overlap[at]))
    return pack.floor_s[at] + work


def pairs(sample: Sample, model: NDArray[np.float64], near: float, seed: int = 0) -> Pairs:
    """Pairs of rows that differ in size by a factor of 1.1 to 64, up or down; some of each device, by ``seed``."""
    random = np.random.default_rng(seed)
    residual = np.log(sample.seconds / model)
    columns: list[NDArray] = []
    for device in np.unique(sample.device):
        rows = np.flatnonzero(sample.device == device)
        mean = float(np.mean(residual[rows]))
        shape = np.log(np.maximum(sample.shape[rows], 0) + 1)
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
                    np.full(len(a), mean),
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


def coverage(found: Pairs, drift: float, length: float, floor: float) -> list[float]:
    """Part of the errors inside the interval, by bins of the change of work."""
    inside = np.abs(found.errors()) <= np.hypot(drift * profile(found.work, length), floor)
    at = np.digitize(np.abs(found.work), BINS[1:-1])
    return [float(inside[at == i].mean()) if (at == i).sum() >= 50 else math.nan for i in range(len(BINS) - 1)]


def drift_of(found: Pairs, length: float) -> float:
    """The drift that covers 90 % of the errors, every bin of the change of work counting the same."""
    scores = np.abs(found.errors()) / profile(found.work, length)
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


def across(sample: Sample, model: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Residuals of the same kernel at the same size on two devices, every ordered pair of devices."""
    residual = np.log(sample.seconds / model)
    key = np.unique(np.column_stack([sample.shape, sample.size]), axis=0, return_inverse=True)[1].ravel()
    devices = np.unique(sample.device)
    at = np.full((len(devices), key.max() + 1), np.nan)
    for row, device in enumerate(devices):
        mine = sample.device == device
        at[row, key[mine]] = residual[mine]
    here, there = [], []
    for i in range(len(devices)):
        for j in range(len(devices)):
            both = np.flatnonzero(np.isfinite(at[i]) & np.isfinite(at[j])) if i != j else np.zeros(0, int)
            here.append(at[i, both])
            there.append(at[j, both])
    return np.concatenate(here), np.concatenate(there)


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


def main() -> None:
    """Fit, print what was found, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    pack = load()
    floor = repeated_spread()
    grown: dict[str, Pairs] = {}
    shared: dict[str, tuple[float, float, int]] = {}
    slopes: dict[str, list[float]] = {}
    for key, (sample, form, source) in fit_roofline.samples().items():
        judged = fit_roofline.judge(key, sample, form, source)
        if len(judged.rows) < 2:
            continue
        sample = kernels_only(sample, judged.constants.host_s, judged.constants.memory)
        model = modelled(sample, pack, key)
        here, there = across(sample, model)
        limit = float(pack.spread[pack.keys.index(key)])
        within = np.clip(here, -limit, limit)  # what is beyond is carried over whole
        rest = there - (here - within)
        transfer = float(np.clip(np.sum(within * rest) / np.sum(within**2), 0, 1))
        shared[key] = (transfer, quantile(rest - transfer * within), len(here))
        sample = even(sample, ROWS_PER_DEVICE)
        model = modelled(sample, pack, key)
        grown[key] = pairs(sample, model, 0.0 if "aiconfigurator" in source else NEAR)
        found = grown[key]
        for at, slope in enumerate(proportional_slopes(found)):
            row = slopes.setdefault(key.split("/")[0], [math.nan] * (len(SLOPE_EDGES_S) + 1))
            row[at] = np.fmax(row[at], slope)

    def drifts(length: float) -> dict[str, float]:
        return {key: drift_of(found, length) for key, found in grown.items()}

    def unevenness(length: float) -> float:
        table = [coverage(found, drifts(length)[key], length, 0.0) for key, found in grown.items()]
        return float(np.nanmean(np.abs(np.array(table) - fit_roofline.LEVEL)))

    length = min(LENGTHS, key=unevenness)
    drift = drifts(length)
    print(f"repetitions differ by {floor:.3f}")
    print(f"drift length {length}")
    print("proportional scaling: 90 % of errors below ... x |log ratio|, by recorded time")
    print(f"{'':20s}" + " ".join(f"{f'<{edge * 1e6:g} us':>9s}" for edge in SLOPE_EDGES_S) + f"{'longer':>9s}")
    for group, row in slopes.items():
        print(f"{group:20s}" + " ".join(f"{slope:9.2f}" for slope in row))
    bins = " ".join(f"<{b}" for b in BINS[1:])
    print(f"{'':20s}{'same device, two sizes':80s}two devices")
    head = f"{'class':20s}{'pairs':>7s}{'anchored':>9s}{'alone':>7s}{'drift':>7s}  "
    print(f"{head}{'covered, by |log work| ' + bins:46s}{'transfer':>9s}{'90 %':>6s}")
    for key, found in grown.items():
        transfer, spread, _ = shared[key]
        inside = " ".join(f"{c:.2f}" for c in coverage(found, drift[key], length, floor))
        anchored, alone = quantile(found.errors()), quantile(found.b - found.mean)
        row = f"{key:20s}{len(found.a):7d}{anchored:9.2f}{alone:7.2f}{drift[key]:7.2f}  {inside:46s}"
        print(f"{row}{transfer:9.2f}{spread:6.2f}")
    classes: dict[str, dict[str, Any]] = {
        key: {
            "drift": _round(drift[key]),
            "transfer": _round(shared[key][0]),
            "device_spread": _round(shared[key][1]),
            "pairs": len(grown[key].a),
            "pairs_of_devices": shared[key][2],
        }
        for key in grown
    }
    default = {
        "drift": _round(float(np.quantile([entry["drift"] for entry in classes.values()], 0.75))),
        "transfer": 1.0,
        "device_spread": max(entry["device_spread"] for entry in classes.values()),
    }
    like = {key: {**default, "drift": classes[other]["drift"], "like": other} for key, other in DRIFTS_LIKE.items()}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "recorded_spread": _round(floor),
        "proportional": {
            "edges_s": list(SLOPE_EDGES_S),
            "slopes": {
                **{group: [_round(s) for s in filled(row)] for group, row in slopes.items()},
                **{group: [_round(s) for s in filled(slopes[like])] for group, like in SLOPES_LIKE.items()},
            },
        },
        "drift_length": length,
        "classes": {**classes, **like},
        "default": {
            **default,
            "reason": "classes without pairs: the upper quartile of the drifts and the largest error between devices "
            "of the others; what such an operator differs from the roofline by is taken to be its nature",
        },
        "provenance": {
            "script": "validation/fit_anchoring.py",
            "recorded_spread": "repeated operators of one ResNet-50 training step on H100 (TrioSim sample traces)",
        },
    }
    if arguments.write:
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


def _round(x: float) -> float:
    return float(f"{x:.4g}")


if __name__ == "__main__":
    main()
