"""How sure a total of operator times is, worked out by hand: what the draws of predictions are compared with.

Errors of a class of operators go together: if the roofline takes the matrix products of a device for too fast, it does
so for all of them.  Errors of different classes have different causes and are taken to be independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.classes import GROUPS, by_name, group_of_name
from triosim.kernels.estimate import Estimates
from triosim.trace.tables import Trace


def by_class(
    estimates: Estimates, trace: Trace, weight: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds and spread of each class of work, shape ``(len(GROUPS),)``.

    The errors of a class being one error, the half-width of its sum is the sum of its operators' half-widths: the
    spread of a class is the mean of its operators' spreads, weighted with their seconds.

    Args:
        estimates: of the operators of ``trace``.
        trace: the operators.
        weight: how often each operator runs on the device in question; once where not given.
    """
    seconds: NDArray[np.float64] = estimates.seconds if weight is None else estimates.seconds * weight
    group = by_name(trace.operators.name, group_of_name)
    total = np.bincount(group, seconds, len(GROUPS)).astype(np.float64)
    reach = np.bincount(group, seconds * estimates.spread, len(GROUPS)).astype(np.float64)
    return total, np.divide(reach, total, out=np.zeros_like(total), where=total > 0)


def half_width(seconds: Sequence[float] | NDArray, spread: Sequence[float] | NDArray) -> float:
    """Half-width, as a logarithm, of the 90 % interval of a sum of independent classes.

    ``sqrt(sum((seconds * spread) ** 2)) / sum(seconds)``: to first order the relative error of the sum is the mean of
    the relative errors weighted with the seconds, and independent ones add in quadrature.

    Args:
        seconds: of each class on the critical device.
        spread: logarithmic half-width of each class.
    """
    total = math.fsum(seconds)
    if not total > 0:
        return 0.0
    return math.hypot(*(float(t) / total * float(s) for t, s in zip(seconds, spread, strict=True)))
