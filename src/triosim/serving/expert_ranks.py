"""Devices that have whole experts: how much of what tokens choose the fullest of them has.

With expert parallelism every device has some experts of each layer, whole or divided among a few devices, and a layer
is over when the device with most to do is.  Tokens choose experts by chance, independently of each other and evenly;
``skew`` says how many times the mean the experts of the fullest device are chosen beyond that.

* Rows: of ``m`` on each of ``D`` devices in the mean, with the variance ``m (1 - 1 / D)`` of a binomial draw.
* Experts that are chosen at all, whose weights are read: of ``h`` on each device each is with probability
  ``p = 1 - (1 - k / E)^n`` for ``n`` tokens that choose ``k`` of ``E``; mean ``h p``, variance ``h p (1 - p)``.

The largest of ``D`` nearly normal numbers is the mean plus ``z`` standard deviations, ``z`` the quantile at
``(D - 3/8) / (D + 1/4)`` (Blom, Statistical Estimates and Transformed Beta-Variables, 1958).
"""

from __future__ import annotations

from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.serving.model import ServedExperts


@dataclass(frozen=True)
class ExpertRanks:
    """Devices that share the experts of each layer.

    Attributes:
        ranks: that have experts of their own.
        skew: how many times the mean the experts of the fullest rank are chosen, but for chance.
    """

    ranks: int = 1
    skew: float = 1.0

    @cached_property
    def deviations(self) -> float:
        """How many standard deviations beyond the mean the fullest rank is, in the mean."""
        return NormalDist().inv_cdf((self.ranks - 0.375) / (self.ranks + 0.25))

    def rows(self, tokens: NDArray[np.float64], own: ServedExperts) -> NDArray[np.float64]:
        """Rows that the experts of the fullest rank compute, of so many tokens that choose; never more than all of them
        choose of its experts."""
        mean = self.skew * tokens * own.chosen / self.ranks
        most = np.minimum(own.chosen, max(own.count / self.ranks, 1.0)) * tokens
        chance = self.deviations * np.sqrt(mean * (1 - 1 / self.ranks))
        return np.asarray(np.minimum(mean + chance, most), np.float64)

    def touched(self, tokens: NDArray[np.float64], own: ServedExperts) -> NDArray[np.float64]:
        """Experts of the fullest rank that at least one of so many tokens chooses: those weights are read."""
        here = max(own.count / self.ranks, 1.0)
        chosen = 1 - (1 - own.chosen / own.count) ** tokens
        most = here * chosen + self.deviations * np.sqrt(here * chosen * (1 - chosen))
        least = own.chosen if self.ranks == 1 else 1.0
        return np.asarray(np.clip(np.minimum(most, self.rows(tokens, own)), least, here), np.float64)


TOGETHER = ExpertRanks()
"""No device has experts of its own."""
