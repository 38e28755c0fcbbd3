"""Fragments: stretches of a program that are written once and repeated for every micro-batch and iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.memory.liveness import NONE_USED, BlockUses
from triosim.schedule.program import Op, Program

_COLUMNS = ("op", "stream", "operator", "seconds", "bytes", "what", "axis", "peer", "root", "tag")


class MessageTags:
    """Numbers by which the two ends of a transfer find each other, within a micro-batch."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}

    def __call__(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Fragment:
    """Instructions that are repeated.

    Attributes:
        rows: the instructions.  ``before`` counts from the first of the fragment; what
            :func:`triosim.schedule.program.of_iteration` makes of a number is a row of the iteration.
        at: instruction of each operator of the trace, counted from the first of the fragment, shape ``(operators,)``;
            that of the one before for an operator without an instruction of its own, -1 where there is none.
        uses: what its instructions use and free of memory.
        exchanged: exchange of the step -> its instruction.
        sent: storage -> the copy of what it sends to the host for good.
    """

    rows: Program
    at: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    uses: BlockUses = NONE_USED
    exchanged: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


class PlacedFragment(NamedTuple):
    """A fragment in its place.

    Attributes:
        fragment: what is placed.
        begin: first row of its iteration.
        micro_batch, iteration: which one it works on.
        tag: what is added to its tags.
    """

    fragment: Fragment
    begin: int
    micro_batch: int
    iteration: int
    tag: int


def concatenate(empty: Program, placed: Sequence[PlacedFragment]) -> Program:
    """One program of fragments, one after another; the same fragment may come many times.

    Args:
        empty: the program without instructions.
        placed: what comes when.
    """
    fragments = [p.fragment for p in placed]
    begin, micro_batch, iteration, tag = np.array([p[1:] for p in placed], np.int64).reshape(-1, 4).T
    distinct = list({id(fragment): fragment for fragment in fragments}.values())
    number = {id(fragment): i for i, fragment in enumerate(distinct)}
    of = np.array([number[id(fragment)] for fragment in fragments], np.int64)
    lengths = np.array([len(fragment) for fragment in distinct], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths)])
    length = lengths[of]
    start = np.concatenate([[0], np.cumsum(length)])
    source = np.repeat(first[of] - start[:-1], length) + np.arange(start[-1])  # row of the written fragments

    def repeated(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.repeat(values, length)

    columns = {name: np.concatenate([getattr(p.rows, name) for p in distinct])[source] for name in _COLUMNS}
    ends = (columns["op"] == Op.SEND) | (columns["op"] == Op.RECEIVE)
    columns["tag"] = columns["tag"] + np.where(ends, repeated(tag), 0)
    before = Ragged.stacked([p.rows.before for p in distinct]).take(source)
    count = before.lengths()
    values = np.where(
        before.values >= 0,
        before.values + np.repeat(repeated(start[:-1]), count),
        np.repeat(repeated(begin), count) - 1 - before.values,
    )
    return replace(
        empty,
        **columns,
        micro_batch=repeated(micro_batch).astype(np.int32),
        iteration=repeated(iteration).astype(np.int32),
        before=Ragged(values.astype(np.int32), before.offsets),
    )
