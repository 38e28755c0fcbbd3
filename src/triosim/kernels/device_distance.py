"""How different two devices are, by their datasheets."""

from __future__ import annotations

import math

from triosim.hardware.accelerator import Accelerator

FIGURES = ("memory_bandwidth", "cache_bytes", "compute_units", "clock_hz")
PEAKS = ("float32", "bfloat16")
"""Peaks that are compared: those of the vector units and of the matrix units."""

STRANGE = math.log(2.0)
"""What a figure counts that only one of the two datasheets gives: as much as a factor of two."""
OTHER_FAMILY = 1.0
"""What another architecture counts, besides its figures: as much as a factor of e.  Chosen, as is :data:`STRANGE`: the
lengths over which likeness fades are fitted in these units (``validation/fit/anchoring.py``)."""


def distance(a: Accelerator, b: Accelerator) -> float:
    """Root of the summed squares of the logarithms of the ratios of the figures, and more between architectures.

    0 for the same device, 0.36 between H100 and H200 (bandwidth alone), 2.8 between A100 and H100.  Symmetric.
    """
    square = 0.0
    for name in FIGURES:
        square += _apart(getattr(a, name), getattr(b, name)) ** 2
    for dtype in PEAKS:
        square += _apart(a.peak_flops.get(dtype), b.peak_flops.get(dtype)) ** 2
    family = (a.vendor, a.architecture.split(" ")[0]) != (b.vendor, b.architecture.split(" ")[0])
    return math.sqrt(square) + OTHER_FAMILY * family


def _apart(x: float | None, y: float | None) -> float:
    if not x and not y:
        return 0.0
    return math.log(x / y) if x and y else STRANGE
