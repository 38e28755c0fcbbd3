"""Fits the constants of Li's model and writes ``src/triosim/kernels/data/li.json``.

    python -m validation.fit.li [--write]

Reads what :mod:`validation.fit.roofline` reads: GEMM and attention tables of aiconfigurator, float32 operators of
NeuSight, the ResNet-50 step of the TrioSim sample traces.  See :mod:`triosim.kernels.models.li` for the method.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import Sample
from validation.fit import roofline as fit_roofline
from validation.fit.roofline import even, quantile

from triosim.hardware import catalog
from triosim.kernels import arithmetic
from triosim.kernels.models.li import SCHEMA, TYPES, rate

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "kernels" / "data" / "li.json"


@dataclass(frozen=True)
class Line:
    """Constants of one class, see :mod:`triosim.kernels.models.li`.

    Attributes:
        host_s: what isolated operators take beyond ``intercept_s``: time of the host that issues them.
    """

    intercept_s: float
    flop_rate_offset: float
    flop_rate_slope: float
    byte_rate_offset: float
    byte_rate_slope: float
    host_s: float = 0.0

    def measured(self, sample: Sample, engine: str) -> NDArray[np.float64]:
        """Predicted seconds of what was measured."""
        bandwidth = _bandwidth(sample.device)
        flop, moved, before = work(sample, engine)
        flop_rate = rate(self.flop_rate_offset, self.flop_rate_slope, bandwidth)
        byte_rate = rate(self.byte_rate_offset, self.byte_rate_slope, bandwidth)
        seconds = np.full(len(flop), self.intercept_s + self.host_s)
        seconds += np.divide(flop, flop_rate, out=np.zeros_like(flop), where=flop_rate > 0)
        seconds += np.divide(moved + before, byte_rate, out=np.zeros_like(flop), where=byte_rate > 0)
        return seconds


def _figure(devices: NDArray[np.str_], what: dict[str, float]) -> NDArray[np.float64]:
    names, at = np.unique(devices, return_inverse=True)
    return np.array([what[str(name)] for name in names], np.float64)[at]


def _bandwidth(devices: NDArray[np.str_]) -> NDArray[np.float64]:
    return _figure(devices, {str(d): float(catalog.accelerator(str(d)).memory_bandwidth or 0) for d in set(devices)})


def work(sample: Sample, engine: str) -> tuple[NDArray, NDArray, NDArray]:
    """Operations (in the engine's own type), bytes, and bytes of the kernel before."""
    known = {str(d): arithmetic.rate(TYPES[engine], catalog.accelerator(str(d))) for d in set(sample.device)}
    peak = _figure(sample.device, known)
    bandwidth = _bandwidth(sample.device)
    return sample.compute_s * peak, sample.memory_s * bandwidth, sample.before_s * bandwidth


def nonnegative(a: NDArray, b: NDArray) -> NDArray[np.float64]:
    """Least squares ``a x = b`` with ``x >= 0`` for a few columns: the best of all sets of columns that may be used."""
    count = a.shape[1]
    best, found = np.inf, np.zeros(count)
    for mask in range(1, 2**count):
        columns = [i for i in range(count) if mask >> i & 1]
        x, *_ = np.linalg.lstsq(a[:, columns], b, rcond=None)
        if (x < 0).any():
            continue
        error = float(np.sum((a[:, columns] @ x - b) ** 2))
        if error < best * (1 - 1e-12):
            best, found = error, np.zeros(count)
            found[columns] = x
    return found


def slopes(sample: Sample, engine: str) -> NDArray[np.float64]:
    """Intercept, seconds per operation and seconds per byte of one device; relative errors."""
    flop, moved, before = work(sample, engine)
    columns = np.stack([np.ones_like(flop), flop, moved + before], 1) / sample.seconds[:, None]
    scale = np.maximum(np.abs(columns).max(0), 1e-300)
    return nonnegative(columns / scale, np.ones(len(flop))) / scale


def fit(sample: Sample, engine: str, floor_s: float | None = None) -> Line:
    """Regressions per device, and their rates over the devices' bandwidth.

    Args:
        sample: measurements of one class, evenly taken.
        engine: of :data:`TYPES`.
        floor_s: the intercept of the kernel where the measurements hold time of the host too.
    """
    names = [str(d) for d in np.unique(sample.device)]
    found = np.array([slopes(sample.take(np.flatnonzero(sample.device == d)), engine) for d in names])
    bandwidth = _bandwidth(np.array(names))
    intercept = float(np.median(found[:, 0]))
    flop, moved = (_over_bandwidth(found[:, at], bandwidth) for at in (1, 2))
    kept = intercept if floor_s is None else min(floor_s, intercept)
    return Line(kept, *flop, *moved, host_s=intercept - kept)


def _over_bandwidth(slope: NDArray, bandwidth: NDArray) -> tuple[float, float]:
    """Offset and slope of the rates over the bandwidth, neither negative, of least relative error; 0 if not driven."""
    used = slope > 0
    if used.sum() * 2 <= len(slope):
        return 0.0, 0.0
    rates, bandwidth = 1 / slope[used], bandwidth[used]
    if len(rates) == 1:
        return 0.0, float(rates[0] / bandwidth[0])
    columns = np.stack([np.full(len(rates), bandwidth.mean()), bandwidth], 1) / rates[:, None]
    offset, per = nonnegative(columns, np.ones(len(rates)))
    return float(offset * bandwidth.mean()), float(per)


def judge(sample: Sample, engine: str, floor_s: float | None) -> dict[str, NDArray[np.float64]]:
    """Logarithmic errors of each device from a fit without it; of a fit with it where there is no other."""
    devices = np.unique(sample.device)
    errors = {}
    for device in devices:
        rest = sample.device != device if len(devices) > 1 else np.ones(len(sample), bool)
        one = sample.take(np.flatnonzero(sample.device == device))
        line = fit(sample.take(np.flatnonzero(rest)), engine, floor_s)
        errors[str(device)] = np.log(one.seconds / line.measured(one, engine))
    return errors


def document() -> tuple[dict[str, Any], list[str]]:
    """The constants of every class of the roofline's pack, and a table of their errors."""
    base = json.loads(fit_roofline.TARGET.read_text(encoding="utf-8"))["classes"]
    classes: dict[str, Any] = {}
    accuracy: dict[str, Any] = {}
    lines = [f"{'class':28s}{'left out':18s}    MAPE   90 %"]
    for key, (sample, form, source) in fit_roofline.samples().items():
        engine = key.partition("/")[2] or "simt"
        chosen = even(sample)
        errors = judge(chosen, engine, form.floor_s)
        pooled = np.concatenate(list(errors.values()))
        each = {d: round(quantile(e), 4) for d, e in errors.items()}
        families = sorted({catalog.accelerator(d).architecture.split(" ")[0] for d in errors})
        classes[key] = {
            **{n: _round(v) for n, v in asdict(fit(chosen, engine, form.floor_s)).items() if n != "host_s"},
            "spread": _round(quantile(pooled)),
            "spread_unseen": _round(max(each.values())),
            "families": families,
            "source": source,
        }
        accuracy[key] = {"rows": {d: int((sample.device == d).sum()) for d in errors}, "left_out_spread": each}
        for device, e in [*errors.items(), ("all", pooled)]:
            lines.append(f"{key:28s}{device:18s}{100 * float(np.mean(np.abs(np.exp(-e) - 1))):8.1f}{quantile(e):7.2f}")
    widest = max(entry["spread_unseen"] for entry in classes.values())
    for key, entry in base.items():
        if "like" in entry:
            like = classes[entry["like"]]
            wide = {"spread": max(like["spread_unseen"], entry["spread"]), "families": [], "source": entry["source"]}
            classes[key] = {**like, **wide, "spread_unseen": wide["spread"], "like": entry["like"]}
        elif len(accuracy[key]["rows"]) == 1:  # one device: nothing is known of others
            classes[key]["spread_unseen"] = widest
    return {
        "schema": SCHEMA,
        "units": {
            "intercept_s": "s", "flop_rate_offset": "FLOP/s", "flop_rate_slope": "FLOP/byte",
            "byte_rate_offset": "byte/s", "byte_rate_slope": "1", "spread": "natural logarithm",
        },
        "classes": {key: classes[key] for key in base},
        "provenance": {
            "script": "validation/fit/li.py",
            "licences": "aiconfigurator Apache-2.0; NeuSight and TrioSim MIT",
            "accuracy": accuracy,
        },
    }, lines  # fmt: skip


def _round(x: float) -> float:
    return float(f"{x:.4g}")


def main() -> None:
    """Fit, print the table, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    found, lines = document()
    print("\n".join(lines))
    if arguments.write:
        TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
