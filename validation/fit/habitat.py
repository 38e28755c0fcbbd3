"""Finds how far wave scaling errs and writes ``src/triosim/kernels/data/habitat.json``.

    python -m validation.fit.habitat [--write]

Kernels measured on several GPUs in gemm, attention_prefill, attention_decode and fp32_ops of ``../shared/data/kernels``
are carried from each to each other by :func:`triosim.kernels.models.habitat.wave_scaling`, which has no constants.
"""

from __future__ import annotations

import argparse
import json
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.data import kernel_rows
from validation.data.kernel_rows import Rows
from validation.fit.roofline import quantile

from triosim.hardware import catalog
from triosim.kernels.models.habitat import SCHEMA, wave_scaling

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "kernels" / "data" / "habitat.json"

GROUPS = {
    "matrix": ("gemm/bfloat16", "bmm", "linear"),
    "convolution": ("conv",),
    "attention": ("attention_prefill/", "attention_decode/"),
    "rowwise": ("softmax", "ln"),
    "elementwise": ("elementwise",),
}
"""Classes of work -> beginnings of the labels of the measurements."""

LIKE = {
    "convolution_backward": "convolution", "attention_backward": "attention", "other": "elementwise",
}  # fmt: skip
ROWS = 4000
"""Kernels of each pair of GPUs that are looked at."""


def keys(rows: Rows) -> NDArray[np.void]:
    """What identifies a kernel on any device, one comparable value per row."""
    columns = np.ascontiguousarray(rows.shape + 0.0)  # no negative zeros
    return columns.view(np.dtype((np.void, columns.dtype.itemsize * columns.shape[1]))).ravel()


def carried(there: Rows, here: Rows) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows of ``here`` that were also measured ``there``, and their times carried over.

    Args:
        there: kernels of one class on one device.
        here: kernels of that class on another.
    """
    _, at_there, at_here = np.intersect1d(keys(there), keys(here), return_indices=True)
    if not at_here.size:
        return at_here, np.zeros(0)
    source, target = (catalog.accelerator(str(rows.device[0])) for rows in (there, here))
    chosen = here.take(at_here)
    intensity = chosen.flop / chosen.moved
    ridge = np.nan_to_num(chosen.peak(), nan=1.0) / float(target.memory_bandwidth or 1)
    return at_here, there.seconds[at_there] * wave_scaling(intensity, ridge, source, target)


def errors(rows: Rows, without: str = "") -> NDArray[np.float64]:
    """Logarithmic errors of carrying every kernel of one class from each device to each other but ``without``."""
    devices = [d for d in np.unique(rows.device).tolist() if d != without]
    parts = {d: rows.take(np.flatnonzero(rows.device == d)) for d in devices}
    found = []
    for there, here in permutations(devices, 2):
        at, seconds = carried(parts[there], parts[here])
        pick = np.linspace(0, len(at) - 1, min(ROWS, len(at))).astype(int)
        found.append(np.log(parts[here].seconds[at[pick]] / seconds[pick]))
    return np.concatenate(found) if found else np.zeros(0)


def spreads() -> tuple[dict[str, float], dict[str, int]]:
    """90 % quantile of the errors by class of work, and how many pairs of measurements it is from."""
    found: dict[str, list[NDArray]] = {group: [] for group in GROUPS}
    for layout in ("gemm", "attention_prefill", "attention_decode", "fp32_ops"):
        rows, _ = kernel_rows.read(kernel_rows.shipped(layout), {})
        for label in np.unique(rows.label):
            for group, beginnings in GROUPS.items():
                if str(label).startswith(beginnings):
                    found[group].append(errors(rows.take(np.flatnonzero(rows.label == label))))
    pooled = {group: np.concatenate(parts) for group, parts in found.items()}
    return {g: quantile(e) for g, e in pooled.items()}, {g: len(e) for g, e in pooled.items()}


def main() -> None:
    """Find the spreads, print them, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    spread, pairs = spreads()
    for group, value in spread.items():
        print(f"{group:16s}{pairs[group]:8d} pairs   90 % within {value:.3f}")
    document = {
        "schema": SCHEMA,
        "spread": {g: float(f"{v:.4g}") for g, v in spread.items()}
        | {group: float(f"{spread[like]:.4g}") for group, like in LIKE.items()},
        "provenance": {
            "script": "validation/fit/habitat.py",
            "pairs": pairs,
            "like": LIKE,
            "licences": "aiconfigurator Apache-2.0; NeuSight MIT",
        },
    }
    if arguments.write:
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
