"""The Step: what one rank computes for one micro-batch, and what it exchanges with its tensor-parallel peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.workload.trace import Trace


@dataclass(frozen=True)
class Exchanges:
    """Collectives inside a step, in the order in which they are issued.

    Attributes:
        after: operator row that produces what is exchanged, int32.
        before: first operator row that needs the result (rows of the trace when nothing does), int32.
        what: row of :data:`triosim.parallelism.program.COLLECTIVES`, int8.
        axis: row of :data:`triosim.parallelism.program.AXES`, int8.
        bytes: full buffer, int64.
    """

    after: NDArray[np.int32]
    before: NDArray[np.int32]
    what: NDArray[np.int8]
    axis: NDArray[np.int8]
    bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.after)

    @staticmethod
    def of(rows: list[tuple[int, int, int, int, int]]) -> Exchanges:
        """From rows of (after, before, what, axis, bytes), sorted by ``after``."""
        rows = sorted(rows, key=lambda r: (r[0], r[1]))
        after, before, what, axis, size = zip(*rows, strict=True) if rows else ((),) * 5
        return Exchanges(
            np.array(after, np.int32),
            np.array(before, np.int32),
            np.array(what, np.int8),
            np.array(axis, np.int8),
            np.array(size, np.int64),
        )


@dataclass(frozen=True)
class Step:
    """One rank's share of one micro-batch.

    Attributes:
        trace: the operators with the shapes that this rank has; row for row those of the whole trace.
        exchanges: collectives between them.
        notes: what the user should know about how the step was divided.
    """

    trace: Trace
    exchanges: Exchanges
    notes: tuple[str, ...] = ()
