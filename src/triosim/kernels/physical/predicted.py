"""What a physical model says of one kind of kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class KernelPredictions(NamedTuple):
    """Times of kernels, one row per call.

    Attributes:
        seconds: predicted time.
        limit: what binds, :class:`~triosim.kernels.estimate.Limit` codes.
    """

    seconds: NDArray[np.float64]
    limit: NDArray[np.int8]
