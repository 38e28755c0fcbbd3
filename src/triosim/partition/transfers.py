"""The transfers inside a step, as columns: what changes the placement of a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all",
)  # fmt: skip
"""Kinds of collective.  ``bytes`` is that of the full (gathered, unscattered) buffer; for all_to_all what one rank
sends, its own part included."""

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = map(
    COLLECTIVES.index, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)


class Transfer(NamedTuple):
    """One of them, see :class:`Transfers`."""

    after: int
    before: int
    what: int
    axis: int
    bytes: int
    value: int
    beside: bool = False
    pieces: int = 1
    copied: bool = False


BESIDE_WEIGHTS = 0
"""Pieces of a transfer that is made at once, beside the weight gradients of the layers that made what is sent."""


@dataclass(frozen=True)
class Transfers:
    """Collectives inside a step, in the order in which they are issued.

    Attributes:
        after: operator row after which it is issued: the one that makes what is sent, -1 for right before ``before``,
            int32.
        before: first operator row that needs the result (rows of the trace when nothing does), int32.
        what: row of :data:`COLLECTIVES`, int8.
        axis: row of the mesh's axes, int8.
        bytes: full buffer, int64.
        value: value of the undivided step that is sent, -1 for what is none (sums within a loss), int32.
        beside: whether it runs beside the others, on a communicator of its own, bool.
        pieces: how it is made beside products: 1 not at all; several for as many pieces, each while the products that
            read what is gathered, or the one that makes what is scattered, work on another; :data:`BESIDE_WEIGHTS` for
            at once, beside the gradients of the layers' weights, int16.  Products that make weight gradients come after
            those that are done in pieces.
        copied: whether copy engines make it, which take no multiprocessors, bool.
    """

    after: NDArray[np.int32]
    before: NDArray[np.int32]
    what: NDArray[np.int8]
    axis: NDArray[np.int8]
    bytes: NDArray[np.int64]
    value: NDArray[np.int32]
    beside: NDArray[np.bool_]
    pieces: NDArray[np.int16]
    copied: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.after)

    def take(self, rows: NDArray[np.int64]) -> Transfers:
        """The transfers in some rows of this table."""
        return Transfers(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def with_more(self, others: Transfers) -> Transfers:
        """With those of another axis; where both are due the others come after."""
        columns = {f.name: np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(self)}
        order = np.lexsort((columns["before"], columns["after"]))
        return Transfers(**{name: column[order] for name, column in columns.items()})

    def followed_by(self, rows: Sequence[Transfer]) -> Transfers:
        """With more at the end, whatever their place, so that these keep their numbers."""
        if not rows:
            return self
        columns = zip(fields(self), zip(*rows, strict=True), strict=True)
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return Transfers(**{
            f.name: np.concatenate([known[f.name], np.array(column, known[f.name].dtype)]) for f, column in columns
        })  # fmt: skip

    @staticmethod
    def of(rows: Iterable[Transfer]) -> Transfers:
        """From rows in any order; they are sorted by ``after``, then ``before``."""
        rows = sorted(rows, key=lambda row: (row.after, row.before))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(Transfer._fields)
        after, before, what, axis, size, value, beside, pieces, copied = columns
        return Transfers(
            np.array(after, np.int32), np.array(before, np.int32), np.array(what, np.int8), np.array(axis, np.int8),
            np.array(size, np.int64), np.array(value, np.int32), np.array(beside, bool), np.array(pieces, np.int16),
            np.array(copied, bool),
        )  # fmt: skip
