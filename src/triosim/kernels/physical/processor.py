"""Products and convolutions on a core of a processor.

::

    seconds = launch + flop / (reach * peak) + bytes / (memory * bandwidth)

A core has no tiles to hand out and no waves of them: well-shaped products and convolutions of every size run at one
rate, and what a matrix of weights, read once for a few rows, takes from memory comes on top, since the same core copies
it into the order that its units want (Goto, van de Geijn: "Anatomy of High-Performance Matrix Multiplication", ACM TOMS
34(3), 2008).  The constants are those of a class of kernels, which a calibration brings to the processor at hand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.estimate import Limit
from triosim.kernels.physical.predicted import KernelPredictions


def predict(
    flop: NDArray[np.float64], bytes_: NDArray[np.float64], rate: float, bandwidth: float,
    launch_s: float | NDArray[np.float64],
) -> KernelPredictions:  # fmt: skip
    """Seconds of each kernel, and what binds it.

    Args:
        flop, bytes_: of each.
        rate: FLOP/s that are sustained.
        bandwidth: bytes a second that are sustained.
        launch_s: of a kernel that does nothing.
    """
    compute, memory = flop / rate, bytes_ / bandwidth
    limit = np.where(compute >= memory, Limit.COMPUTE, Limit.MEMORY)
    limit[launch_s > compute + memory] = Limit.LAUNCH
    return KernelPredictions(launch_s + compute + memory, limit.astype(np.int8))
