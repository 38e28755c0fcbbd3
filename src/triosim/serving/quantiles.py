"""Quantiles of many weighted samples: exact while they are few distinct ones, from a sketch beyond."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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
    """

    def __init__(self) -> None:
        self.exact = True
        self._counts: dict[int, int] = {}
        self._columns: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # instead, where counting is over
        self._sums: tuple[int, int, int, int] | None = None  # count, total, least and most, unless they can be counted

    @staticmethod
    def of(
        values: NDArray[np.int64], times: NDArray[np.int64], exact: bool, count: int, total: int, least: int, most: int
    ) -> Samples:
        """Samples that were counted elsewhere and to which none is added: how often each value, or each bucket unless
        ``exact``, was there, in any order."""
        out = Samples()
        out._columns = values, times
        out.exact, out._sums = exact, (count, total, least, most)
        return out

    @staticmethod
    def sketched() -> Samples:
        """None yet, of which no value will be kept as it is."""
        out = Samples()
        out.exact, out._sums = False, (0, 0, 0, 0)
        return out

    @property
    def count(self) -> int:
        """Of all samples."""
        return self._summed()[0]

    @property
    def total(self) -> int:
        """Their sum, always exact."""
        return self._summed()[1]

    @property
    def least(self) -> int:
        """Of the samples, always exact; 0 where there is none."""
        return self._summed()[2]

    @property
    def most(self) -> int:
        """Of the samples, always exact; 0 where there is none."""
        return self._summed()[3]

    def _summed(self) -> tuple[int, int, int, int]:
        if self._sums is not None:
            return self._sums
        counts = self._counts
        if not counts:
            return 0, 0, 0, 0
        total = sum(value * times for value, times in counts.items())
        return sum(counts.values()), total, min(counts), max(counts)

    def add(self, value: int, times: int = 1) -> None:
        """Count a value ``times`` times."""
        counts = self._counts
        if self.exact and value in counts and times > 0:  # as most are
            counts[value] += times
        elif times > 0:
            key = value if self.exact else self._bucketed(value, times)
            counts[key] = counts.get(key, 0) + times
            if len(counts) > MOST_EXACT and self.exact:
                self._merge()

    def add_each(self, values: Sequence[int], times: int) -> None:
        """Count each of several values ``times`` times."""
        if not self.exact or times <= 0 or len(self._counts) + len(values) > MOST_EXACT:
            for value in values:
                self.add(value, times)
            return
        counts = self._counts
        for value in values:
            counts[value] = counts.get(value, 0) + times

    def add_many(self, values: NDArray[np.int64]) -> None:
        """Count each of many values once; only where they are sketched."""
        assert not self.exact
        assert self._sums is not None
        if not len(values):
            return
        count, total, least, most = self._sums
        smallest = int(values.min())
        self._sums = (
            count + len(values),
            total + (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum()),
            min(least, smallest) if count else smallest,
            max(most, int(values.max())),
        )
        times = np.bincount(_buckets(values) + 1)
        for bucket in np.flatnonzero(times).tolist():
            self._counts[bucket - 1] = self._counts.get(bucket - 1, 0) + int(times[bucket])

    def _bucketed(self, value: int, times: int) -> int:
        """The bucket of a value, which is added to what can no longer be counted."""
        count, total, least, most = self._summed()
        self._sums = count + times, total + value * times, min(least, value), max(most, value)
        return _bucket(value)

    def _merge(self) -> None:
        self._sums = self._summed()
        merged: dict[int, int] = {}
        for value, times in self._counts.items():
            key = _bucket(value)
            merged[key] = merged.get(key, 0) + times
        self._counts, self.exact = merged, False

    def _counted(self, exact: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Values, or buckets unless ``exact``, and how often each was there; those of equal buckets side by side."""
        if self._columns is not None:
            values, times = self._columns
        else:
            size = len(self._counts)
            values = np.fromiter(self._counts, np.int64, size)
            times = np.fromiter(self._counts.values(), np.int64, size)
        if self.exact and not exact:
            values = _buckets(values)
        return values, times

    @staticmethod
    def joined(parts: Iterable[Samples]) -> Samples:
        """All samples of several."""
        some = [part for part in parts if part.count]
        if len(some) == 1:
            return some[0]
        if not some:
            return Samples()
        exact = all(part.exact for part in some)
        values, times = _added([part._counted(exact) for part in some])
        if exact and len(values) > MOST_EXACT:
            exact = False
            values, times = _added([part._counted(exact) for part in some])
        return Samples.of(
            values, times, exact, sum(part.count for part in some), sum(part.total for part in some),
            min(part.least for part in some), max(part.most for part in some),
        )  # fmt: skip

    @property
    def mean(self) -> float:
        """Of all samples; not a number where there is none."""
        return self.total / self.count if self.count else math.nan

    def quantiles(self, at: Iterable[float]) -> list[float]:
        """Between neighbouring samples as :func:`numpy.quantile` has them; not a number where there is none."""
        at = list(at)
        if not self.count:
            return [math.nan] * len(at)
        keys, times = self._counted(self.exact)
        order = np.argsort(keys)
        keys, ends = keys[order], np.cumsum(times[order])
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


def _buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each; logarithms of vectors may end in another digit, and so those beside a border are looked at again."""
    place = np.log(np.maximum(values, 1)) / RATIO
    out = np.where(values == 0, -1, np.ceil(place).astype(np.int64))
    for at in np.flatnonzero(np.abs(place - np.rint(place)) < 1e-6).tolist():
        out[at] = _bucket(int(values[at]))
    return out


def _value(bucket: int) -> float:
    return 0.0 if bucket < 0 else math.exp(bucket * RATIO) * (1 - ERROR)


def _added(
    columns: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Values in ascending order, each once, and how often it was there in all."""
    values = np.concatenate([one for one, _ in columns])
    times = np.concatenate([one for _, one in columns])
    order = np.argsort(values)
    values, times = values[order], times[order]
    begins = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    return values[begins], np.add.reduceat(times, begins)
