"""What a datasheet leaves out, and how much less sure that makes a prediction.

The models have class defaults for every figure but a peak and the memory bandwidth.  How far predictions move when such
a default takes the place of a figure is known from the devices whose datasheets have it
(``validation/fit/unknown.py``); the causes are taken to be independent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from triosim.hardware.accelerator import Accelerator

FIGURES: Mapping[str, Any] = {
    "compute_units": None, "clock_hz": None, "cache_bytes": None, "tdp_w": None, "process": "", "architecture": "",
}  # fmt: skip
"""Figures that the models can do without, and what they are in the description of a device that leaves them out."""

SCHEMA = "triosim/unknown-figures/1"


@lru_cache(maxsize=1)
def spreads() -> dict[str, dict[str, float]]:
    """Half-width of the 90 % interval (natural logarithm) by kind of kernel and figure.

    Raises:
        RuntimeError: the file has another schema.
    """
    source = Path(__file__).parents[1] / "data" / "physical" / "unknown.json"
    found = json.loads(source.read_text(encoding="utf-8"))
    if found["schema"] != SCHEMA:
        raise RuntimeError(f"unknown.json has schema {found['schema']!r}, expected {SCHEMA!r}")
    return dict(found["spread"])


def guessed(kind: str, device: Accelerator) -> float:
    """Half-width (natural logarithm) from what ``device``'s datasheet leaves out; 0 where it is complete."""
    missing = [name for name in FIGURES if not getattr(device, name)]
    if not missing:
        return 0.0
    known = spreads()[kind]
    return math.hypot(*(known[name] for name in missing))
