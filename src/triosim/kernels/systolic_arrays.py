"""Heads that are shorter than the arrays that multiply them.

A TPU's matrix unit is a square of multipliers: it holds a block of one factor, as many rows as the products add up and
as many columns as they have results, and streams the other factor through.  Attention adds up the elements of a head
for its scores and has as many results for its values, so that an array of twice the head's length is half idle both
times (Jouppi et al., ISCA 2017, section 2; arrays of 128 x 128 up to TPU v5p and of 256 x 256 on v6e: Google Cloud's
documentation of TPU v6e).
"""

from __future__ import annotations

import functools
import re

import numpy as np
from numpy.typing import NDArray

from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import ATTENTION, ATTENTION_BACKWARD, OperatorClasses
from triosim.trace.calls import calls_of
from triosim.trace.tables import Trace

_ARRAY = re.compile(r"(\d+)x\1")


@functools.cache
def _side(name: str) -> int:
    found = _ARRAY.search(catalog.accelerator_row(name)["compute_unit"]) if name in catalog.accelerators() else None
    return int(found[1]) if found else 0


def side(device: Accelerator) -> int:
    """Multipliers on a side of a TPU's arrays, 0 of devices that have none or of which nobody says."""
    return _side(device.name) if device.vendor == "Google" else 0


def filled(heads: NDArray[np.float64], device: Accelerator) -> NDArray[np.float64]:
    """The part of the arrays that heads of so many elements fill, 1 where a device has none."""
    array = side(device)
    return heads / (np.ceil(heads / array) * array) if array else np.ones(len(heads))


def with_idle_parts(
    flop: NDArray[np.float64], trace: Trace, classified: OperatorClasses, device: Accelerator
) -> NDArray:
    """FLOP of operators, and of those that attend what their arrays could have done meanwhile."""
    rows = np.flatnonzero(np.isin(classified.group, (ATTENTION, ATTENTION_BACKWARD)))
    if not side(device) or not len(rows):
        return flop
    calls = calls_of(trace)
    heads = np.array([float(calls[row].inputs[0][-1]) for row in rows.tolist()])
    flop = np.array(flop, np.float64)
    flop[rows] /= filled(heads, device)
    return flop
