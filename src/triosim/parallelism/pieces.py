"""Pieces: stretches of a program that are written once and repeated for every micro-batch and iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.parallelism.gathering import Marks
from triosim.parallelism.occupancy import Ran
from triosim.parallelism.program import Op, Program

_COLUMNS = ("op", "stream", "operator", "seconds", "bytes", "what", "axis", "peer", "root", "tag")


class Tags:
    """Numbers by which the two ends of a transfer find each other, within a micro-batch."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}

    def __call__(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Piece:
    """Instructions that are repeated.

    Attributes:
        rows: the instructions.  ``before`` counts from a row that :func:`lay_out` is told, usually the first of the
            piece; below 0 it is ``-1 - r`` for row r of the iteration.
        ran: where each operator is in it.
        marks: where parameters are gathered and gradients scattered in it.
    """

    rows: Program
    ran: Ran = field(default_factory=lambda: Ran(np.zeros(0, np.int64), {}))
    marks: Marks = field(default_factory=Marks)

    def __len__(self) -> int:
        return len(self.rows)


class Placed(NamedTuple):
    """A piece in its place.

    Attributes:
        piece: what is placed.
        base: row from which it counts what must have finished before.
        begin: first row of its iteration.
        micro_batch, iteration: which one it works on.
        tag: what is added to its tags.
    """

    piece: Piece
    base: int
    begin: int
    micro_batch: int
    iteration: int
    tag: int


def lay_out(empty: Program, placed: Sequence[Placed]) -> Program:
    """One program of pieces, one after another; the same piece may come many times.

    Args:
        empty: the program without instructions.
        placed: what comes when.
    """
    pieces = [p.piece for p in placed]
    base, begin, micro_batch, iteration, tag = np.array([p[1:] for p in placed], np.int64).reshape(-1, 5).T
    distinct = list({id(piece): piece for piece in pieces}.values())
    number = {id(piece): i for i, piece in enumerate(distinct)}
    of = np.array([number[id(piece)] for piece in pieces], np.int64)
    lengths = np.array([len(piece) for piece in distinct], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths)])
    length = lengths[of]
    start = np.concatenate([[0], np.cumsum(length)])
    source = np.repeat(first[of] - start[:-1], length) + np.arange(start[-1])  # row of the written pieces

    def repeated(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.repeat(values, length)

    columns = {name: np.concatenate([getattr(p.rows, name) for p in distinct])[source] for name in _COLUMNS}
    ends = (columns["op"] == Op.SEND) | (columns["op"] == Op.RECEIVE)
    columns["tag"] = columns["tag"] + np.where(ends, repeated(tag), 0)
    before = Ragged.stacked([p.rows.before for p in distinct]).take(source)
    count = before.lengths()
    values = np.where(
        before.values >= 0,
        before.values + np.repeat(repeated(base), count),
        np.repeat(repeated(begin), count) - 1 - before.values,
    )
    return replace(
        empty,
        **columns,
        micro_batch=repeated(micro_batch).astype(np.int32),
        iteration=repeated(iteration).astype(np.int32),
        before=Ragged(values.astype(np.int32), before.offsets),
    )
