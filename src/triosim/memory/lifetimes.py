"""Lifetimes of what a rank keeps in memory, over the rows of its program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lifetimes:
    """One row per allocation.

    Attributes:
        bytes: size asked for, int64.
        category: :class:`triosim.trace.tables.Category` codes, int8.
        start: program row at whose start it is allocated; -1 when it is there before the iteration, int32.
        end: program row after whose end it is freed; the number of rows when it stays, int32.
        storage: storage of the step that it is or is made of, -1 for none, int32; None where nobody knows.
    """

    bytes: NDArray[np.int64]
    category: NDArray[np.int8]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    storage: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.bytes)

    def storages(self) -> NDArray[np.int32]:
        """Storage of each allocation, -1 for none."""
        return self.storage if self.storage is not None else np.full(len(self), -1, np.int32)

    @staticmethod
    def joined(parts: Sequence[Lifetimes]) -> Lifetimes:
        """Several tables as one."""
        columns = [(p.bytes, p.category, p.start, p.end, p.storages()) for p in parts]
        return Lifetimes(*(np.concatenate(column) for column in zip(*columns, strict=True)))
