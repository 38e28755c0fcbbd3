"""How wide an interval must be, from errors on kernels that were not looked at (conformal prediction).

If the next kernel is exchangeable with those, the ``ceil(level (n + 1))``-th smallest of their absolute errors is
exceeded with a probability of at most ``1 - level``.  Each error here is that of a model that was fitted without the
kernel's fold, so that none of the few kernels has to be kept back (Vovk: "Cross-conformal predictors", Annals of
Mathematics and Artificial Intelligence, 2015).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.estimate import CONFIDENCE

FEWEST = 20
"""Kernels of a class below which their errors say too little."""


def half_width(errors: NDArray[np.float64], level: float = CONFIDENCE) -> float | None:
    """Half-width of the interval (natural logarithm), None where there are fewer than :data:`FEWEST` errors."""
    if len(errors) < FEWEST:
        return None
    rank = math.ceil(level * (len(errors) + 1))
    return float(np.sort(np.abs(errors))[min(rank, len(errors)) - 1])
