"""Rows of which each block of a model adds the same: those of many blocks from those of three, four and five.

What a block more adds is the same rows again, or more of the same rows; it has to be so for the fourth and the fifth
block, or nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.search.block_step import LONGEST, NoBlocks

if TYPE_CHECKING:
    from triosim.search.contracted_passes import PortTarget

ROUNDED = 2
"""Ticks by which what a block adds may differ from what another does."""


@dataclass(frozen=True)
class BlockRows:
    """Rows of a pass, or of what reduces after it, or other rows that name earlier ones.

    Attributes:
        kind, stream, label, ticks, slowdown, host_delay: as of :class:`triosim.engine.contended.ContendedFragment`,
            labels being numbers of :class:`triosim.search.block_passes.SymbolicTransferTimes`.
        ends: how many rows all rows until and with each wait for, shape ``(rows + 1,)`` from 0.
        run, before: what they wait for: which of the two runs, and which row of it.
        ports: where rows lead that send or receive, None for others.
    """

    kind: NDArray[np.int64]
    stream: NDArray[np.int64]
    label: NDArray[np.int64]
    ticks: NDArray[np.int64]
    slowdown: NDArray[np.float64]
    host_delay: NDArray[np.int64]
    ends: NDArray[np.int64]
    run: NDArray[np.int64]
    before: NDArray[np.int64]
    ports: tuple[PortTarget | None, ...]

    @staticmethod
    def of(
        rows: Sequence[tuple], before: Sequence[Sequence[tuple[int, int]]], ports: Sequence[PortTarget | None]
    ) -> BlockRows:
        """From rows of kind, stream, label, ticks, slowdown and what is host_delay."""
        given = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
        columns: dict[str, NDArray[Any]] = {
            name: np.array(column, np.float64 if name == "slowdown" else np.int64)
            for name, column in zip(_COLUMNS, given, strict=True)
        }
        flat = [pair for own in before for pair in own]
        waits = np.array(flat, np.int64).reshape(len(flat), 2)
        ends = np.cumsum([0, *map(len, before)], dtype=np.int64)
        return BlockRows(**columns, ends=ends, run=waits[:, 0], before=waits[:, 1], ports=tuple(ports))

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def waits(self) -> NDArray[np.int64]:
        """How many rows each waits for."""
        return np.diff(self.ends)

    def first_other(self, other: BlockRows) -> int:
        """The first row that is not like the one of another run, or their common length."""
        length = min(len(self), len(other))
        same = np.array([a == b for a, b in zip(self.ports, other.ports, strict=False)], bool)
        for name in _LIKE:
            same &= getattr(self, name)[:length] == getattr(other, name)[:length]
        return int(np.argmin(same)) if not same.all() else length

    def like(self, first: int, last: int, other: BlockRows, at: int) -> bool:
        """Whether rows ``first .. last - 1`` are like as many of another run from row ``at`` on."""
        here, there = slice(first, last), slice(at, at + last - first)
        return self.ports[here] == other.ports[there] and all(
            np.array_equal(getattr(self, name)[here], getattr(other, name)[there]) for name in _LIKE
        )

    def moved(
        self, first: int, last: int, by: Sequence[tuple[BlockRows, int, BlockRows, int, int]], copies: int = 1
    ) -> BlockRows:
        """Rows ``first .. last - 1``, so many copies one after another.

        Args:
            by: runs and rows of two of them, and how often what is between them is added; -1 for as often as there are
                copies before.
        """
        count = last - first
        times = np.arange(copies)[:, None]
        host_delay = np.tile(self.host_delay[first:last], (copies, 1))
        flat = slice(self.ends[first], self.ends[last])
        before = np.tile(self.before[flat], (copies, 1))
        for new, at, old, was, often in by:
            factor = times if often < 0 else often
            host_delay = host_delay + factor * (new.host_delay[at : at + count] - old.host_delay[was : was + count])
            one, other = (run.before[run.ends[b] : run.ends[b + count]] for run, b in ((new, at), (old, was)))
            before = before + factor * (one - other)
        same: dict[str, NDArray[Any]] = {name: np.tile(getattr(self, name)[first:last], copies) for name in _SAME}
        ends = np.cumsum(np.append(0, np.tile(self.waits[first:last], copies)))
        return BlockRows(
            **same, host_delay=np.maximum(host_delay, 0).reshape(-1), ends=ends, run=np.tile(self.run[flat], copies),
            before=before.reshape(-1), ports=self.ports[first:last] * copies,
        )  # fmt: skip

    @staticmethod
    def joined(runs: Sequence[BlockRows]) -> BlockRows:
        """One after another."""
        columns: dict[str, NDArray[Any]] = {
            name: np.concatenate([getattr(run, name) for run in runs]) for name in (*_COLUMNS, "run", "before")
        }
        ends = np.cumsum(np.concatenate([[0], *(run.waits for run in runs)])).astype(np.int64)
        return BlockRows(**columns, ends=ends, ports=tuple(port for run in runs for port in run.ports))


_SAME = ("kind", "stream", "label", "ticks", "slowdown")
_COLUMNS = (*_SAME, "host_delay")
_LIKE = (*_SAME, "waits")
"""What rows of a repeated block have in common, besides where they lead."""


def extrapolate(few: Sequence[int], blocks: int) -> int:
    """What a number comes to that each block adds to alike; arguments as of :func:`extrapolate_rows`.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """
    if abs((few[2] - few[1]) - (few[1] - few[0])) > ROUNDED:
        raise NoBlocks("blocks that do not add alike")
    return few[2] + (blocks - LONGEST) * (few[2] - few[1])


def extrapolate_rows(few: Sequence[BlockRows], blocks: int) -> BlockRows:
    """Rows of many blocks from those of :data:`SHORTEST` and one and two more.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """
    least, old, new = few
    period, more = len(old) - len(least), blocks - LONGEST
    if not period and len(new) == len(old):
        return _grown(few, more)
    first = least.first_other(old)
    rest = len(least) - first
    if (
        len(new) != len(old) + period
        or first < period
        or not least.like(first, len(least), old, first + period)
        or not old.like(0, first + period, new, 0)
        or not old.like(first, first + period + rest, new, first + period)
    ):
        raise NoBlocks("rows that do not repeat")
    # what follows the last block may begin like one more, so that the last repetition is a part of it
    grows = (new, first - period, old, first - period, more)
    return BlockRows.joined([
        new.moved(0, first, [(new, 0, old, 0, more)]),
        new.moved(first, first + period, [(new, first, new, first - period, -1), grows], more + 1),
        new.moved(first + period, len(new), [(new, first + period, old, first, more)]),
    ])  # fmt: skip


def _grown(few: Sequence[BlockRows], more: int) -> BlockRows:
    """Rows that take longer with each block."""
    least, old, new = few
    same = ("kind", "stream", "label", "run", "before", "ends")
    for one in (least, old):
        if one.ports != new.ports or not all(np.array_equal(getattr(one, n), getattr(new, n)) for n in same):
            raise NoBlocks("rows that are not alike")
    added = new.ticks - old.ticks
    if (np.abs(added - (old.ticks - least.ticks)) > ROUNDED).any():
        raise NoBlocks("blocks that do not add alike")
    ticks = new.ticks + more * added
    work = new.ticks * new.slowdown
    grown = work + more * (work - old.ticks * old.slowdown)
    slowdown = np.where((ticks != 0) & (new.slowdown > 1), grown / np.maximum(ticks, 1), new.slowdown)
    host_delay = np.maximum(new.host_delay + more * (new.host_delay - old.host_delay), 0)
    return replace(new, ticks=ticks, slowdown=np.maximum(slowdown, 1.0), host_delay=host_delay)
