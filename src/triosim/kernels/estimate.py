"""Estimates: seconds with an interval and a source, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.9
Z90 = 1.6448536269514722
"""Standard normal quantile of 0.95: a 90 % interval reaches this many standard deviations to each side."""


class Source(IntEnum):
    """Where an operator's time comes from."""

    NOTHING = 0
    RECORDED = 1
    ANCHORED = 2
    PROPORTIONAL = 3
    ROOFLINE = 4
    UNDECIDED = 5
    REGRESSION = 6
    WAVES = 7
    TABLE = 8
    EXTERNAL = 9
    PHYSICAL = 10
    CALIBRATED = 11


class Limit(IntEnum):
    """What binds an operator."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2
    LAUNCH = 3


@dataclass(frozen=True)
class Estimates:
    """Operator times, one row per operator.

    Attributes:
        seconds: median estimate.
        spread: natural logarithm of the 90 % interval's factor: the time lies between
            ``seconds * exp(-spread)`` and ``seconds * exp(spread)`` nine times out of ten.
        source: :class:`Source` codes, int8.
        limit: :class:`Limit` codes, int8.
        notes: sentences on what a reader of the prediction should know about these times.
    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.int8]
    limit: NDArray[np.int8]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)
