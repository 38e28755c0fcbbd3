"""Operators bound by the bytes that they move: elementwise, copies, reductions, softmax, normalization and the like.

A trace counts the tensors of a call, each once.  What kernels move differs where they write indices, fill before they
scatter, read rows here and there, or go over their input several times: each kind of operator says how
(:meth:`triosim.operators.Kind.traffic`).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.operators import STREAMS as KINDS
from triosim.operators import traffic
from triosim.trace.calls import calls_of
from triosim.trace.tables import Trace

CODE = {name: code for code, name in enumerate(KINDS)}


@dataclass(frozen=True)
class Stream:
    """What operators move, one row per call.

    Attributes:
        kind: index into :data:`KINDS` (:data:`triosim.operators.STREAMS`), int8.
        read, written: bytes.
        rows: what costs a unit time one by one: rows that are summed over (positions of a softmax or layer norm,
            channels of a batch norm), and elements that a pooling finds the window of; 1 where there is nothing such.
        row_bytes: bytes of one row; 0 where there are none.
        kernels: how many kernels the call launches.
    """

    kind: NDArray[np.int8]
    read: NDArray[np.float64]
    written: NDArray[np.float64]
    rows: NDArray[np.float64]
    row_bytes: NDArray[np.float64]
    kernels: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.kind)

    def flop(self) -> NDArray[np.float64]:
        """Not counted: these operators wait for memory."""
        return np.zeros(len(self))

    def bytes(self) -> NDArray[np.float64]:
        """Bytes read and written."""
        return self.read + self.written

    def take(self, rows: NDArray) -> Stream:
        """These rows only."""
        return Stream(*(getattr(self, field.name)[rows] for field in fields(self)))


def of(trace: Trace, rows: NDArray[np.int64], kernels: NDArray | None = None) -> Stream:
    """What a trace's operators move; any operator can be asked for, those of no kind for their tensors once.

    Args:
        trace: operators with bytes counted.
        rows: operators to be taken.
        kernels: how many kernels each of ``rows`` launches, 1 if not known: then as many as the kind takes.
    """
    calls = calls_of(trace)
    numbers, at = np.unique(calls.row[rows], return_inverse=True)
    found = [traffic(calls.unique[number]) for number in numbers.tolist()]
    columns = np.array([(CODE[one.stream], *one[1:]) for one in found], np.float64).reshape(len(found), 6)[at.ravel()]
    code, read, wrote, count, length, launches = columns.T
    known = np.ones(len(rows)) if kernels is None else np.asarray(kernels, float)
    launched = np.where((known > 1) & (launches > 0), known, launches)
    return Stream(code.astype(np.int8), read, wrote, count, length, launched)


def rowwise(name: str, rows: NDArray, length: NDArray, item: float = 4.0, reads: int = 1) -> Stream:
    """Operators of one kind that read ``reads`` tensors of ``rows x length`` elements and write one."""
    rows, length = np.asarray(rows, float), np.asarray(length, float)
    size = rows * length * item
    summed = name in ("softmax", "layer_norm", "batch_norm", "half_batch_norm", "nhwc_norm")
    ones = np.ones(len(rows))
    return Stream(
        np.full(len(rows), CODE[name], np.int8), reads * size, size, rows if summed else ones,
        length * item if summed else 0.0 * ones, ones,
    )  # fmt: skip
