"""Least squares with coefficients that are not negative, as times of operators are not.

The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974, chapter 23), on the normal
equations: columns are few and were scaled to a like size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-10
"""Gradient, relative to the largest, below which a column would not lower the residual."""


def non_negative(columns: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """``argmin |columns x - target|`` over ``x >= 0``.

    Args:
        columns: shape ``(rows, coefficients)``.
        target: shape ``(rows,)``.

    Returns:
        Shape ``(coefficients,)``.
    """
    scale = np.sqrt(np.square(columns).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = columns / scale
    gram, moments = scaled.T @ scaled, scaled.T @ target
    count = len(moments)
    free, x = np.zeros(count, bool), np.zeros(count)
    enough = _TOLERANCE * max(float(np.abs(moments).max(initial=0.0)), np.finfo(float).tiny)
    for _ in range(10 * count):
        gradient = np.where(free, -np.inf, moments - gram @ x)
        best = int(gradient.argmax())
        if gradient[best] <= enough:
            break
        free[best] = True
        while True:
            at = np.flatnonzero(free)
            trial = np.zeros(count)
            trial[at] = np.linalg.lstsq(gram[np.ix_(at, at)], moments[at], rcond=None)[0]
            falls = free & (trial <= 0)
            if not falls.any():
                x = trial
                break
            step = float((x[falls] / (x[falls] - trial[falls])).min())
            x = x + step * (trial - x)
            free &= x > _TOLERANCE * x.max(initial=0.0)
            x[~free] = 0.0
            if not free.any():
                break
    return x / scale
