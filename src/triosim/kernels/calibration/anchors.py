"""What a model is still off by at kernels that were measured, carried over to those that are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass

NEAREST = 5
"""Measured kernels that are asked."""
REACH = 1.5
"""Distance in powers of two at which half of a neighbour's error is carried over, where nothing better is known."""
REACHES = (REACH, 0.75, 3.0, 6.0)
"""Distances that are tried on kernels that were left out: how smoothly errors change with the sizes depends on the
class and on the device."""
APARTS = (0.0, 2.0, 4.0)
"""Powers of two that kernels of different operators are farther apart, tried in the same way: a GELU of a size tells
more about another GELU four times as large than an addition of its own size does, a multiplication does not."""
ALONE = 0.25
"""The same for one or two kernels, of which nothing tells whether others of the class are off in the same way."""
_SAME = 1e-6
_BLOCK = 4_000_000
"""Distances that are held at a time."""


@dataclass(frozen=True)
class Anchors:
    """Measured kernels of one class.

    Attributes:
        shape: logarithms to base 2 of their sizes, shape ``(n, d)``.
        error: ``log(measured / predicted)`` of each, shape ``(n,)``.
        reach: distance at which half of a neighbour's error is carried over.
        names: what each kernel's algorithm depends on besides its sizes; none where that is not known.
        apart: how much farther kernels of other names are, in powers of two.
    """

    shape: NDArray[np.float64]
    error: NDArray[np.float64]
    reach: float = REACH
    names: tuple[str, ...] = ()
    apart: float = 0.0

    def __len__(self) -> int:
        return len(self.error)

    def at(
        self, shape: NDArray[np.float64], names: Sequence[str] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What to add to the logarithm of predictions, and how far the nearest measured kernel is.

        The mean error of the nearest kernels, weighted by the inverse of the distance, over ``1 + d / reach`` with
        ``d`` the distance of the nearest: a measured kernel is reproduced, one that is far from all is left alone.

        Args:
            shape: of the kernels in question, shape ``(q, d)``.
            names: of these, as the anchors have them; none where they are not known.

        Returns:
            Two columns of ``q`` rows.
        """
        added, distance = np.zeros(len(shape)), np.full(len(shape), np.inf)
        if not len(self):
            return added, distance
        codes = {name: code for code, name in enumerate(dict.fromkeys(self.names))}
        of = np.array([codes.get(name, -1) for name in names], np.int64)
        step = max(_BLOCK // len(self), 1)
        for start in range(0, len(shape), step):
            rows = slice(start, start + step)
            added[rows], distance[rows] = self._at(shape[rows], of[rows], codes)
        return added, distance

    def _at(
        self, shape: NDArray[np.float64], of: NDArray[np.int64], codes: Mapping[str, int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        apart = np.sqrt(((shape[:, None, :] - self.shape[None, :, :]) ** 2).sum(2))
        if self.apart and codes and len(of):
            apart += self.apart * (of[:, None] != np.array([codes[name] for name in self.names])[None, :])
        count = min(NEAREST, len(self))
        nearest = np.argpartition(apart, count - 1, axis=1)[:, :count]
        d = np.take_along_axis(apart, nearest, 1)
        weight = 1.0 / np.maximum(d, _SAME**2)
        mean = (weight * self.error[nearest]).sum(1) / weight.sum(1)
        closest = d.min(1)
        return mean / (1.0 + np.where(closest < _SAME, 0.0, closest) / self.reach), closest
