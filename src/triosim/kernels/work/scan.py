"""Scans that keep a state: what one call multiplies and moves, as columns."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.operators import ScanWork, scan, selective_scan
from triosim.trace.calls import calls_of
from triosim.trace.tables import ITEM_BYTES, Trace

WIDE = 4.0
"""Bytes of states, products of a chunk's pairs and sums of decays where they are float32."""


@dataclass(frozen=True)
class ScanCalls:
    """Scans, one row per call; sizes are those of :class:`~triosim.operators.ScanWork`.

    Attributes:
        sequences, length: how many, and tokens of each.
        heads, groups: of values, and of keys and queries.
        state, head: elements of a key and of a value.
        chunk: tokens that are multiplied with each other.
        window: places of the convolution before it, 0 for none.
        delta: whether the state is corrected before it is added to, not gated afterwards.
        backward: whether it is the gradient.
        normed: whether the result is normed as it is gated.
        selective: whether each channel decays each element of its state by itself (Mamba).
        by_element: whether each element of a key decays by itself (Kimi's delta rule).
        gated: whether the call gates the result (that of the delta rule never is); else who called it does.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied.
        item: bytes of an element of it.
    """

    sequences: NDArray[np.float64]
    length: NDArray[np.float64]
    heads: NDArray[np.float64]
    groups: NDArray[np.float64]
    state: NDArray[np.float64]
    head: NDArray[np.float64]
    chunk: NDArray[np.float64]
    window: NDArray[np.float64]
    delta: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    normed: NDArray[np.bool_]
    selective: NDArray[np.bool_]
    by_element: NDArray[np.bool_]
    gated: NDArray[np.bool_]
    dtype: NDArray[np.int8]
    item: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.length)

    def take(self, rows: NDArray) -> ScanCalls:
        """These rows only."""
        return ScanCalls(*(getattr(self, field.name)[rows] for field in fields(self)))

    def tokens(self) -> NDArray[np.float64]:
        """Of all sequences."""
        return self.sequences * self.length

    def chunks(self) -> NDArray[np.float64]:
        """Of one sequence."""
        return np.ceil(self.length / self.chunk)

    def flop(self) -> NDArray[np.float64]:
        """Floating-point operations; a multiply-add counts two."""
        return np.array([_flop(ScanWork(*row)) for row in zip(*(getattr(self, name) for name in _SIZES), strict=True)])

    def keys(self) -> NDArray[np.float64]:
        """Bytes of the keys of all tokens; queries have as many."""
        return self.tokens() * self.groups * self.state * self.item

    def values(self) -> NDArray[np.float64]:
        """Bytes of the values of all tokens; results have as many."""
        return self.tokens() * self.heads * self.head * self.item

    def states(self) -> NDArray[np.float64]:
        """Elements of the states of all chunks."""
        return self.sequences * self.chunks() * self.heads * self.state * self.head

    def rows(self) -> NDArray[np.float64]:
        """Elements of what there is one of for each token and head: steps, decays, rates."""
        return self.tokens() * self.heads

    def decays(self) -> NDArray[np.float64]:
        """Elements of decays: of each token and head, or of each element of its key."""
        return self.rows() * np.where(self.by_element, self.state, 1.0)

    def bytes(self) -> NDArray[np.float64]:
        """Bytes of operands and results, each once."""
        each = np.select([self.selective, self.delta], [5, 2], 3)
        # steps of channels are as wide as values
        rows = np.where(self.selective, 0, (self.rows() + self.decays()) * self.item)
        operands = 2 * self.keys() + each * self.values() + rows
        return np.asarray(operands * np.where(self.backward, 2.0, 1.0))


_SIZES = ScanWork._fields


def _flop(one: ScanWork) -> float:
    kind = selective_scan if one.selective else scan
    return 2 * kind.forward_flop(one) + kind.repeated_flop(one) if one.backward else kind.forward_flop(one)


def scans(
    sequences: NDArray | float, length: NDArray | float, heads: NDArray | float, groups: NDArray | float,
    state: NDArray | float, head: NDArray | float, chunk: NDArray | float, window: NDArray | float = 0.0,
    dtype: str = "bfloat16", *, delta: bool = False, backward: bool = False, normed: bool = False,
    selective: bool = False, by_element: bool = False, gated: bool = True,
) -> ScanCalls:  # fmt: skip
    """Scans of one element type; numbers and arrays are broadcast against each other.

    Args:
        sequences, length, heads, groups, state, head, chunk, window, delta, backward, normed, selective, by_element,
            gated: as in :class:`ScanCalls`.
        dtype: type that is multiplied.

    Raises:
        KeyError: the type is not one of :data:`~triosim.trace.tables.DTYPES`.
    """
    sizes = np.broadcast_arrays(sequences, length, heads, groups, state, head, chunk, window)
    columns = [np.array(x, np.float64, ndmin=1) for x in sizes]
    rows = len(columns[0])
    flags = [np.full(rows, flag) for flag in (delta, backward, normed, selective, by_element, gated)]
    code, item = np.full(rows, DTYPE_CODE[dtype], np.int8), np.full(rows, float(DTYPE_BYTES[dtype]))
    row: list[Any] = [*columns, *flags, code, item]
    return ScanCalls(*row)


def of(trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8]) -> ScanCalls:
    """The scans among a trace's operators.

    Args:
        trace: operators with FLOP counted.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies (see :func:`triosim.kernels.classes.classify`).
    """
    found = np.array(calls_of(trace).work(rows, ScanWork), np.float64).reshape(len(rows), len(_SIZES)).T
    flags = (column > 0 for column in found[-5:])
    gated = found[_SIZES.index("window")] > 0  # who convolves gates as well: Mamba-2, not lightning attention
    row: list[Any] = [*found[:-5], *flags, gated, dtype.astype(np.int8), np.asarray(ITEM_BYTES[dtype], np.float64)]
    return ScanCalls(*row)
