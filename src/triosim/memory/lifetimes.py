"""Lifetimes of what a rank keeps in memory, over the rows of its program."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass


class MemoryLocation(IntEnum):
    """Place of a block: the memory of the device, that of its host, or the NVMe drives of its server."""

    DEVICE = 0
    HOST = 1
    NVME = 2


@dataclass(frozen=True)
class Lifetimes:
    """One row per allocation.

    Attributes:
        bytes: size asked for, int64.
        category: :class:`triosim.trace.tables.Category` codes, int8.
        start: program row at whose start it is allocated; -1 when it is there before the iteration, int32.
        end: program row after whose end it is freed; the number of rows when it stays, int32.
        storage: storage of the step that it is or is made of, -1 for none, int32; None where nobody knows.
        home: :class:`MemoryLocation` codes, int8; None where all is on the device.
    """

    bytes: NDArray[np.int64]
    category: NDArray[np.int8]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    storage: NDArray[np.int32] | None = None
    home: NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.bytes)

    def storages(self) -> NDArray[np.int32]:
        """Storage of each allocation, -1 for none."""
        return self.storage if self.storage is not None else np.full(len(self), -1, np.int32)

    def at(self, home: MemoryLocation) -> Lifetimes:
        """Those that are there."""
        there = self.home if self.home is not None else np.zeros(len(self), np.int8)
        rows = np.flatnonzero(there == home)
        if len(rows) == len(self):
            return self
        storage = self.storages()[rows]
        return Lifetimes(self.bytes[rows], self.category[rows], self.start[rows], self.end[rows], storage, there[rows])

    def peak_bytes(self) -> int:
        """Most that is there at one moment, as asked for: no allocator rounds it."""
        change = np.concatenate([self.bytes, -self.bytes])
        times = np.concatenate([2 * self.start.astype(np.int64), 2 * self.end.astype(np.int64) + 1])
        return int(np.cumsum(change[np.argsort(times, kind="stable")]).max(initial=0))
