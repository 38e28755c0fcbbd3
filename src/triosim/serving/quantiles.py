"""Quantiles of many weighted samples: exact while they are few distinct ones, from a sketch beyond."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

MOST_EXACT = 200_000
"""Distinct values that are kept; a dictionary of so many takes 20 MB."""

ERROR = 1e-3
"""Relative error of a quantile from a sketch, whose buckets have one ratio (DDSketch, Masson et al. 2019)."""


class Samples:
    """Counts of whole numbers, zero or more.

    Attributes:
        exact: whether every value was kept as it is.
        count: of all samples.
        total: their sum, always exact.
        least, most: of the samples, always exact.
    """

    def __init__(self) -> None:
        self.exact = True
        self.count = 0
        self.total = 0
        self.least, self.most = 0, 0
        self._counts: dict[int, int] = {}

    @staticmethod
    def of(counts: dict[int, int], exact: bool, count: int, total: int, least: int, most: int) -> Samples:
        """Samples that were counted elsewhere: how often each value, or each bucket unless ``exact``, was there."""
        out = Samples()
        out._counts, out.exact, out.count, out.total, out.least, out.most = counts, exact, count, total, least, most
        return out

    def add(self, value: int, times: int = 1) -> None:
        """Count a value ``times`` times."""
        if times <= 0:
            return
        if not self.count or value < self.least:
            self.least = value
        self.most = max(self.most, value)
        self.count += times
        self.total += value * times
        key = value if self.exact else _bucket(value)
        self._counts[key] = self._counts.get(key, 0) + times
        if self.exact and len(self._counts) > MOST_EXACT:
            self._merge()

    def _merge(self) -> None:
        merged: dict[int, int] = {}
        for value, times in self._counts.items():
            key = _bucket(value)
            merged[key] = merged.get(key, 0) + times
        self._counts, self.exact = merged, False

    @staticmethod
    def joined(parts: Iterable[Samples]) -> Samples:
        """All samples of several."""
        out = Samples()
        for part in parts:
            if not part.count:
                continue
            if out.exact and not part.exact:
                out._merge()
            out.least = part.least if not out.count else min(out.least, part.least)
            out.most = max(out.most, part.most)
            out.count += part.count
            out.total += part.total
            for value, times in part._counts.items():
                key = value if out.exact == part.exact else _bucket(value)
                out._counts[key] = out._counts.get(key, 0) + times
            if out.exact and len(out._counts) > MOST_EXACT:
                out._merge()
        return out

    @property
    def mean(self) -> float:
        """Of all samples; not a number where there is none."""
        return self.total / self.count if self.count else math.nan

    def quantiles(self, at: Iterable[float]) -> list[float]:
        """Between neighbouring samples as :func:`numpy.quantile` has them; not a number where there is none."""
        at = list(at)
        if not self.count:
            return [math.nan] * len(at)
        keys = np.array(sorted(self._counts), np.int64)
        ends = np.cumsum([self._counts[key] for key in keys.tolist()])
        values = keys.astype(np.float64) if self.exact else np.array([_value(key) for key in keys.tolist()])
        values = np.clip(values, self.least, self.most)
        out = []
        for q in at:
            place = q * (self.count - 1)
            low = values[np.searchsorted(ends, math.floor(place), side="right")]
            high = values[np.searchsorted(ends, math.ceil(place), side="right")]
            out.append(float(low + (high - low) * (place - math.floor(place))))
        return out


RATIO = math.log((1 + ERROR) / (1 - ERROR))
"""Between the logarithms of two buckets."""


def _bucket(value: int) -> int:
    return -1 if value == 0 else math.ceil(math.log(value) / RATIO) if value > 1 else 0


def _value(bucket: int) -> float:
    return 0.0 if bucket < 0 else math.exp(bucket * RATIO) * (1 - ERROR)


def of_array(values: NDArray, at: Iterable[float]) -> list[float]:
    """Exact quantiles of an array; not a number where it is empty."""
    at = list(at)
    return np.quantile(values, at).tolist() if len(values) else [math.nan] * len(at)
