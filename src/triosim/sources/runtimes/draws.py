"""Sizes of kernels to be measured, drawn evenly in the logarithm of the work, with a fixed seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SHORTEST_S, LONGEST_S = 10e-6, 60e-3
"""Length of the kernels, as far as the device's rates tell."""
NEXT_TO_NOTHING_S = 20e-9
"""Length of the smallest kernels, where the ends are asked for."""
BLOCK = 8
"""Sizes of small matrices are multiples of this; see :meth:`Draws.side`."""


class Draws:
    """Draws sizes: the same seed draws the same.

    Attributes:
        longest_s: seconds that a kernel should take at most.
        end: 0 or 1 to have all work as small or as large as it may be, None to draw it.
    """

    def __init__(self, longest_s: float = LONGEST_S, seed: int = 0) -> None:
        self.longest_s = longest_s
        self.end: int | None = None
        self._random = np.random.default_rng(seed)

    def work(self, rate: float) -> float:
        """FLOP or bytes of a kernel, given what the device does of them in a second."""
        if self.end is not None:
            return rate * (NEXT_TO_NOTHING_S, self.longest_s)[self.end]
        return rate * math.exp(self._random.uniform(math.log(SHORTEST_S), math.log(self.longest_s)))

    def one_of(self, *values: Any) -> Any:
        """One of these, each as likely."""
        return values[int(self._random.integers(len(values)))]

    def spread(self, octaves: float) -> float:
        """A factor of up to ``octaves`` powers of two to either side."""
        return float(2.0 ** self._random.uniform(-octaves, octaves))

    def side(self, size: float, smallest: int = BLOCK) -> int:
        """A side of a matrix near ``size``, as models have them: mostly multiples of 64, large ones of 128."""
        if size < 96 or self._random.uniform() < 0.2:
            return rounded(size, smallest if size < 96 else BLOCK)
        return rounded(size, 64 if size < 768 else 128)


def rounded(size: float, block: int = BLOCK) -> int:
    """The nearest multiple of ``block``, at least one."""
    return max(round(size / block), 1) * block
