"""``torch.mm`` of square matrices as users of many cards reported it: ``squares.csv``.

TFLOP/s by rows, of the issues of github.com/zzc0721/torch-performance-test-data by number.  They shape two constants of
the products (``validation/fit/physical_gemm.py``), and no device of ``elsewhere.csv`` is judged on a row that did:
float32 of RTX 3090, 4090, 5090, PRO 6000, A6000, H20, H200, P4 and P40 is there only.  1,024 rows are left out, which
measure the host as well.

Cards that the catalog lacks are as one of it that has the same kind of compute unit, but for the figures of
:data:`CARDS`: NVIDIA's compute units, boost clock, TDP, memory bandwidth and last-level cache, as remembered.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.work.gemm import Gemm, gemm

TABLE = Path(__file__).with_name("squares.csv")
ROWS = (2048, 4096, 8192, 10240)

CARDS = {
    "L20": ("L40", 92, 2.52e9, 275, 864e9, 96), "RTX-A4000": ("A40", 48, 1.56e9, 140, 448e9, 4),
    "RTX-A2000": ("A40", 26, 1.2e9, 70, 288e9, 3), "RTX-3080": ("RTX-3090", 68, 1.71e9, 320, 760e9, 5),
    "RTX-3080Ti": ("RTX-3090", 80, 1.665e9, 350, 912e9, 6), "RTX-5070": ("RTX-5090", 48, 2.512e9, 250, 672e9, 48),
    "RTX-4060Ti": ("RTX-4090", 34, 2.535e9, 160, 288e9, 32), "RTX-4060": ("RTX-4090", 24, 2.46e9, 115, 272e9, 24),
    "RTX-3060": ("RTX-3090", 28, 1.777e9, 170, 360e9, 3),
}  # fmt: skip
"""Card -> like which of the catalog, compute units, boost clock in Hz, TDP in W, bytes per second, cache in MiB."""


def card(name: str) -> Accelerator:
    """A device of the catalog or of :data:`CARDS`."""
    if name not in CARDS:
        return catalog.accelerator(name)
    like, units, clock, tdp, bandwidth, cache = CARDS[name]
    other = catalog.accelerator(like)
    part = units * clock / ((other.compute_units or 0) * (other.clock_hz or 0.0))
    return replace(
        other, name=name, compute_units=units, clock_hz=clock, tdp_w=tdp, memory_bandwidth=bandwidth,
        cache_bytes=cache << 20, peak_flops={dtype: part * peak for dtype, peak in other.peak_flops.items()},
    )  # fmt: skip


@dataclass(frozen=True)
class Squares:
    """Products of one type, one row each: the card, rows of the matrices, and seconds."""

    dtype: str
    device: NDArray[np.str_]
    side: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def without(self, devices: frozenset[str]) -> Squares:
        """The rows of all other cards."""
        at = ~np.isin(self.device, list(devices))
        return Squares(self.dtype, self.device[at], self.side[at], self.seconds[at])

    def by_device(self) -> Iterator[tuple[Accelerator, Gemm, NDArray[np.float64]]]:
        """Each card, its products, and the seconds that they took."""
        for name in np.unique(self.device):
            at = self.device == name
            side = self.side[at]
            yield card(str(name)), gemm(side, side, side, self.dtype, warm=True), self.seconds[at]


def read(dtype: str, path: Path = TABLE) -> Squares:
    """The rows of a type."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["dtype"] == dtype:
                found += [(row["device"], n, float(row[str(n)])) for n in ROWS if row[str(n)]]
    device, side, rate = (np.array(column) for column in zip(*found, strict=True))
    return Squares(dtype, device, side.astype(np.float64), 2e-12 * side.astype(np.float64) ** 3 / rate)
