"""Small helpers for tables kept as columns (struct of arrays)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from triosim.core.dataclass import dataclass

T = TypeVar("T", bound=np.generic)


def distinct(values: NDArray[T]) -> NDArray[T]:
    """The different values of an array, sorted.

    As :func:`numpy.unique`, which imports ``numpy.ma`` to be called so: a hundredth of a second at the start.
    """
    ordered = np.sort(values, axis=None)
    found: NDArray[T] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


@dataclass(frozen=True)
class Ragged:
    """Rows of different length in two flat arrays.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: the rows one after another, shape ``(total,)``.
        offsets: where each row starts, shape ``(rows + 1,)``, int64.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @staticmethod
    def of(rows: Iterable[Sequence[int]], dtype: DTypeLike = np.int64) -> Ragged:
        """Pack Python rows."""
        rows = list(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        flat = [x for row in rows for x in row]
        return Ragged(np.array(flat, dtype=dtype), offsets)

    @staticmethod
    def empty(rows: int, dtype: DTypeLike = np.int64) -> Ragged:
        """``rows`` rows of length zero."""
        return Ragged(np.zeros(0, dtype), np.zeros(rows + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        bounds = self.offsets.tolist()
        return (self.values[a:b] for a, b in pairwise(bounds))

    def lists(self) -> list[list[Any]]:
        """The rows as Python lists, fast to walk one by one; made once and kept, so not to be changed."""
        return self._lists

    @cached_property
    def _lists(self) -> list[list[Any]]:
        flat, bounds = self.values.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in pairwise(bounds)]

    @staticmethod
    def even(rows: NDArray[Any]) -> Ragged:
        """Rows of equal length, from an array of shape ``(rows, length)``."""
        return Ragged(rows.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])

    @staticmethod
    def stacked(parts: Sequence[Ragged]) -> Ragged:
        """The rows of several tables, one table after another."""
        lengths = np.concatenate([part.lengths() for part in parts])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(np.concatenate([part.values for part in parts]), offsets)

    def lengths(self) -> NDArray[np.int64]:
        """Length of each row, shape ``(rows,)``."""
        return np.diff(self.offsets)

    def rows(self) -> NDArray[np.int64]:
        """The row that each flat value belongs to, shape ``(total,)``; made once and kept, read-only."""
        return self._rows

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        found = np.repeat(np.arange(len(self)), self.lengths())
        found.setflags(write=False)
        return found

    def products(self) -> NDArray[np.int64]:
        """Product of each row (1 for an empty row): element counts when rows are shapes."""
        out = np.ones(len(self), np.int64)
        np.multiply.at(out, self.rows(), self.values.astype(np.int64))
        return out

    def take(self, rows: NDArray[Any]) -> Ragged:
        """The rows with these indices, in this order."""
        begins = self.offsets[:-1][rows]
        lengths = self.offsets[1:][rows] - begins
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        at = np.repeat(begins - offsets[:-1], lengths)
        at += np.arange(len(at))
        return Ragged(self.values[at], offsets)
