"""Devices that have whole experts: how much of what tokens choose the fullest of them has.

With expert parallelism every device has some experts of each layer, whole or divided among a few devices, and a layer
is over when the device with most to do is.  Tokens choose experts by chance, independently of each other, some experts
more often than others (:data:`UNEVEN`); ``skew`` says instead how many times the mean the experts of the fullest device
are chosen, but for chance.

* Rows: of ``m`` on each of ``D`` devices in the mean, with the variance ``m (1 - 1 / D)`` of a binomial draw, and with
  ``m^2 u^2 / h`` of the ``h`` experts there, whose popularity deviates by ``u`` of its mean.
* Experts that are chosen at all, whose weights are read: of ``h`` on each device each is with probability
  ``p = 1 - (1 - k / E)^n`` for ``n`` tokens that choose ``k`` of ``E``; mean ``h p``, variance ``h p (1 - p)``, as if
  all were chosen alike.

The largest of ``D`` nearly normal numbers is the mean plus ``z`` standard deviations, ``z`` the quantile at
``(D - 3/8) / (D + 1/4)`` (Blom, Statistical Estimates and Transformed Beta-Variables, 1958).
"""

from __future__ import annotations

import math
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.serving.model import ServedExperts

UNEVEN = 0.48 * math.sqrt(8)
"""Standard deviation of how often experts of a layer are chosen, over its mean.  TensorRT-LLM's guide to its balancer
(``examples/wide_ep/ep_load_balancer/README.md``) counts what 32 ranks of eight experts of DeepSeek-R1 compute in a
hundred iterations of ``trtllm-bench``: 1,024 rows each in the mean, with a standard deviation of 492 over ranks in the
mean of layers (188 to 571; chance makes 32 of them).  The fullest had 2.56 times the mean, more than the 2.0 of normal
numbers.  Balanced by that count, experts copied, the same deviated by 54."""


@dataclass(frozen=True)
class ExpertRanks:
    """Devices that share the experts of each layer.

    Attributes:
        ranks: that have experts of their own.
        skew: how many times the mean the experts of the fullest rank are chosen, but for chance; as :data:`UNEVEN` has
            it if None.
    """

    ranks: int = 1
    skew: float | None = None

    @cached_property
    def deviations(self) -> float:
        """How many standard deviations beyond the mean the fullest rank is, in the mean."""
        return NormalDist().inv_cdf((self.ranks - 0.375) / (self.ranks + 0.25))

    def rows(self, tokens: NDArray[np.float64], own: ServedExperts) -> NDArray[np.float64]:
        """Rows that the experts of the fullest rank compute, of so many tokens that choose; never more than all of them
        choose of its experts."""
        here = max(own.count / self.ranks, 1.0)
        mean = (self.skew or 1.0) * tokens * own.chosen / self.ranks
        uneven = UNEVEN**2 / here if self.skew is None else 0.0
        beyond = self.deviations * np.sqrt(mean * (1 - 1 / self.ranks) + uneven * mean**2)
        return np.asarray(np.minimum(mean + beyond, np.minimum(own.chosen, here) * tokens), np.float64)

    def touched(self, tokens: NDArray[np.float64], own: ServedExperts) -> NDArray[np.float64]:
        """Experts of the fullest rank that at least one of so many tokens chooses: those weights are read."""
        here = max(own.count / self.ranks, 1.0)
        chosen = 1 - (1 - own.chosen / own.count) ** tokens
        most = here * chosen + self.deviations * np.sqrt(here * chosen * (1 - chosen))
        least = own.chosen if self.ranks == 1 else 1.0
        return np.asarray(np.clip(np.minimum(most, self.rows(tokens, own)), least, here), np.float64)


TOGETHER = ExpertRanks()
"""No device has experts of its own."""
