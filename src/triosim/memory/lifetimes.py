"""Lifetimes of what a rank keeps in memory, over the rows of its program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lifetimes:
    """One row per allocation.

    Attributes:
        bytes: size asked for, int64.
        category: :class:`triosim.workload.trace.Category` codes, int8.
        start: program row at whose start it is allocated; -1 when it is there before the iteration, int32.
        end: program row after whose end it is freed; the number of rows when it stays, int32.
    """

    bytes: NDArray[np.int64]
    category: NDArray[np.int8]
    start: NDArray[np.int32]
    end: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.bytes)
