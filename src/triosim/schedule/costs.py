"""Times that a schedule is written with: of operators, and of bytes that are copied, updated on the host or stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class ScheduleCosts:
    """What parallelism needs to know of times; it computes none itself.

    Attributes:
        seconds: of each operator of the step, for one micro-batch.
        gathered_seconds: of each operator at the global batch (where one replica runs some for all), or
            None where no plan needs it.
        copy_s_per_byte: of a copy within the device's memory (what is gathered or scattered goes through a buffer).
        update_s_per_byte: of the host's processor for what it reads and writes where it runs the optimizer.
        nvme_s_per_byte: of reading from and of writing to the drives, where the optimizer's states are on them.
    """

    seconds: NDArray[np.float64]
    gathered_seconds: NDArray[np.float64] | None = None
    copy_s_per_byte: float = 0.0
    update_s_per_byte: float = 0.0
    nvme_s_per_byte: tuple[float, float] = (0.0, 0.0)
