"""Rows of which each block of a model adds the same: those of many blocks from those of three, four and five.

What a block more adds is the same rows again, or more of the same rows; it has to be so for the fourth and the fifth
block, or nothing is said.  That is found once (:class:`RowsOfBlocks`), and rows of any number of blocks are written
from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.search.block_step import LONGEST, NoBlocks

if TYPE_CHECKING:
    from triosim.search.pass_script import PortTarget

ROUNDED = 2
"""Ticks by which what a block adds may differ from what another does."""

KIND, STREAM, LABEL, TICKS, SLOWDOWN, WAITS, LEADS, GAP, EXPOSED, COLLECTIVE = range(10)
"""Columns of :attr:`BlockRows.facts`."""


@dataclass(frozen=True)
class BlockRows:
    """Rows of a pass, or of what reduces after it, or other rows that name earlier ones.

    Attributes:
        facts: what rows of a repeated block have in common, shape ``(rows, 10)``, int64: kind, stream, label, ticks and
            slowdown (its bits), as of :class:`triosim.engine.contended.ContendedFragment`, labels being numbers of
            :class:`triosim.search.block_passes.SymbolicTransferTimes`; how many rows each waits for, and whether it
            leads anywhere; gap, exposed and collective slowdown (its bits), as of the first.
        host_delay: as of the same.
        run, before: what they wait for, one row after another: which of the two runs, and which row of it.
        ports: where rows lead that send or receive, in order.
    """

    facts: NDArray[np.int64]
    host_delay: NDArray[np.int64]
    run: NDArray[np.int64]
    before: NDArray[np.int64]
    ports: tuple[PortTarget, ...]

    @staticmethod
    def of(
        kind: Sequence[int] | NDArray[np.int64], stream: Sequence[int] | int, label: Sequence[int] | NDArray[np.int64],
        ticks: Sequence[int] | NDArray[np.int64], slowdown: Sequence[float] | float, host_delay: Sequence[int] | int,
        waits: Sequence[int] | NDArray[np.int64] | int = 0, run: Sequence[int] | NDArray[np.int64] = (),
        before: Sequence[int] | NDArray[np.int64] = (), ports: Sequence[PortTarget | None] = (),
        gap: Sequence[int] | int = 0, exposed: Sequence[int] | int = 0,
        collective_slowdown: Sequence[float] | float = 1.0,
    ) -> BlockRows:  # fmt: skip
        """From columns, one number standing for as many as there are rows.

        Args:
            waits: how many of ``run`` and ``before`` each row has.
            ports: one for each row, None for those that lead nowhere; nothing where no row does.
        """
        facts = np.zeros((len(kind), 10), np.int64)
        columns = (
            (KIND, kind), (STREAM, stream), (LABEL, label), (TICKS, ticks), (WAITS, waits), (GAP, gap),
            (EXPOSED, exposed),
        )  # fmt: skip
        for number, column in columns:
            facts[:, number] = column
        facts[:, SLOWDOWN].view(np.float64)[:] = slowdown
        facts[:, COLLECTIVE].view(np.float64)[:] = collective_slowdown
        if ports:
            facts[:, LEADS] = [port is not None for port in ports]
        delays = np.zeros(len(kind), np.int64)
        delays[:] = host_delay
        return BlockRows(
            facts, delays, np.array(run, np.int64), np.array(before, np.int64),
            tuple(port for port in ports if port is not None),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def kind(self) -> NDArray[np.int64]:
        """See the class; ``rows`` of them, as all columns."""
        return self.facts[:, KIND]

    @property
    def stream(self) -> NDArray[np.int64]:
        """See the class."""
        return self.facts[:, STREAM]

    @property
    def label(self) -> NDArray[np.int64]:
        """See the class."""
        return self.facts[:, LABEL]

    @property
    def ticks(self) -> NDArray[np.int64]:
        """See the class."""
        return self.facts[:, TICKS]

    @property
    def gap(self) -> NDArray[np.int64]:
        """See the class."""
        return self.facts[:, GAP]

    @property
    def exposed(self) -> NDArray[np.int64]:
        """See the class."""
        return self.facts[:, EXPOSED]

    @property
    def slowdown(self) -> NDArray[np.float64]:
        """See the class."""
        return self.facts[:, SLOWDOWN].view(np.float64)

    @property
    def collective_slowdown(self) -> NDArray[np.float64]:
        """See the class."""
        return self.facts[:, COLLECTIVE].view(np.float64)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """How many rows all rows until and with each wait for, shape ``(rows + 1,)`` from 0."""
        return _from_zero(self.facts[:, WAITS])

    @cached_property
    def leads(self) -> NDArray[np.int64]:
        """How many rows until and with each lead anywhere, shape ``(rows + 1,)`` from 0."""
        return _from_zero(self.facts[:, LEADS])

    def led(self, first: int, last: int) -> tuple[PortTarget, ...]:
        """Where rows ``first .. last - 1`` lead."""
        return self.ports[self.leads[first] : self.leads[last]] if self.ports else ()

    def first_other(self, other: BlockRows) -> int:
        """The first row that is not like the one of another run, or their common length."""
        length = min(len(self), len(other))
        same = (self.facts[:length] == other.facts[:length]).all(axis=1)
        first = int(np.argmin(same)) if not same.all() else length
        pairs = zip(self.led(0, first), other.led(0, first), strict=True)
        port = next((number for number, (one, two) in enumerate(pairs) if one != two), -1)
        return first if port < 0 else int(np.searchsorted(self.leads, port, side="right")) - 1

    def like(self, first: int, last: int, other: BlockRows, at: int) -> bool:
        """Whether rows ``first .. last - 1`` are like as many of another run from row ``at`` on."""
        until = at + last - first
        return np.array_equal(self.facts[first:last], other.facts[at:until]) and (
            self.led(first, last) == other.led(at, until)
        )


def _from_zero(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def joined(runs: Sequence[BlockRows]) -> BlockRows:
    """Rows one after another."""
    facts, host_delay, run, before = (
        np.concatenate([getattr(one, name) for one in runs]) for name in ("facts", "host_delay", "run", "before")
    )
    return BlockRows(facts, host_delay, run, before, tuple(port for one in runs for port in one.ports))


def extrapolate(few: Sequence[int], blocks: int) -> int:
    """What a number comes to that each block adds to alike.

    Args:
        few: what it is with :data:`SHORTEST` blocks and one and two more.
        blocks: how many there are.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """
    if abs((few[2] - few[1]) - (few[1] - few[0])) > ROUNDED:
        raise NoBlocks("blocks that do not add alike")
    return few[2] + (blocks - LONGEST) * (few[2] - few[1])


@dataclass(frozen=True)
class _Moving:
    """What moves on with each block in rows that are otherwise alike.

    Attributes:
        host_delay, before: what each block more adds to these columns.
    """

    host_delay: NDArray[np.int64]
    before: NDArray[np.int64]

    @staticmethod
    def between(new: BlockRows, at: int, old: BlockRows, was: int, count: int) -> _Moving:
        """From ``count`` rows of a run to those of another."""
        return _Moving(
            new.host_delay[at : at + count] - old.host_delay[was : was + count],
            new.before[new.ends[at] : new.ends[at + count]] - old.before[old.ends[was] : old.ends[was + count]],
        )


class RowsOfBlocks:
    """Rows of any number of blocks, from those of three, four and five.

    Args:
        few: rows with :data:`SHORTEST` blocks and one and two more.
        adds: how many rows a block adds to each run that rows wait for, where what they wait for moves on by as many
            with each block or stays.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """

    def __init__(self, few: Sequence[BlockRows], adds: Sequence[int] = ()) -> None:
        least, old, new = few
        self.new, self.period = new, len(old) - len(least)
        self.grows = not self.period and len(new) == len(old)
        if self.grows:
            self._grow(least, old)
            return
        period, first = self.period, least.first_other(old)
        rest = len(least) - first
        if (
            len(new) != len(old) + period
            or first < period
            or not least.like(first, len(least), old, first + period)
            or not old.like(0, first + period, new, 0)
            or not old.like(first, first + period + rest, new, first + period)
        ):
            raise NoBlocks("rows that do not repeat")
        self.first = first
        # what follows the last block may begin like one more, so that the last repetition is a part of it
        self._head = _Moving.between(new, 0, old, 0, first)
        self._step = _Moving.between(new, first, new, first - period, period)
        self._middle = _Moving.between(new, first - period, old, first - period, period)
        self._tail = _Moving.between(new, first + period, old, first, len(old) - first)
        if adds:
            self._step = replace(self._step, before=self._moved(adds))

    def _moved(self, adds: Sequence[int]) -> NDArray[np.int64]:
        """What a block more adds to the rows that its rows wait for.

        Rows may wait for those of the block before theirs, and the first block may have more or fewer of them, so that
        only the next ones move on alike.
        """
        new, first, period, step = self.new, self.first, self.period, self._step.before
        later = _Moving.between(new, first + period, new, first, period).before
        block = np.array(adds)[new.run[new.ends[first] : new.ends[first + period]]]
        moved = np.where((step == 0) | (step == block), step, later)
        if ((moved != 0) & (moved != block)).any():
            raise NoBlocks("rows that wait for others in each block")
        return moved

    def rows(self, blocks: int) -> BlockRows:
        """Those of so many blocks."""
        more = blocks - LONGEST
        return self._grown(more) if self.grows else self._repeated(more)

    def _repeated(self, more: int) -> BlockRows:
        """The same rows again with each block more."""
        new, first, end = self.new, self.first, self.first + self.period
        copies = more + 1
        times = np.arange(copies)[:, None]
        waits, until = int(new.ends[first]), int(new.ends[end])

        def column(name: str, split: int, after: int) -> NDArray[np.int64]:
            own = getattr(new, name)
            head, step, middle, tail = (
                getattr(one, name) for one in (self._head, self._step, self._middle, self._tail)
            )
            repeats = own[split:after] + times * step + more * middle  # (copies, rows of a block)
            return np.concatenate([own[:split] + more * head, repeats.reshape(-1), own[after:] + more * tail])

        def again(table: NDArray[np.int64], split: int, after: int) -> NDArray[np.int64]:
            return np.concatenate([table[:split], *[table[split:after]] * copies, table[after:]])

        return BlockRows(
            again(new.facts, first, end), np.maximum(column("host_delay", first, end), 0),
            again(new.run, waits, until), column("before", waits, until),
            (*new.led(0, first), *new.led(first, end) * copies, *new.led(end, len(new))),
        )  # fmt: skip

    def _grow(self, least: BlockRows, old: BlockRows) -> None:
        """Rows that take longer with each block."""
        new = self.new
        same = [KIND, STREAM, LABEL, WAITS, LEADS, COLLECTIVE]
        for one in (least, old):
            if one.ports != new.ports or not (
                np.array_equal(one.facts[:, same], new.facts[:, same])
                and np.array_equal(one.run, new.run)
                and np.array_equal(one.before, new.before)
            ):
                raise NoBlocks("rows that are not alike")
        grow = [TICKS, GAP, EXPOSED]
        self._grows = new.facts[:, grow] - old.facts[:, grow]
        if (np.abs(self._grows - (old.facts[:, grow] - least.facts[:, grow])) > ROUNDED).any():
            raise NoBlocks("blocks that do not add alike")
        work = new.ticks * new.slowdown
        self._work = work, work - old.ticks * old.slowdown
        self._delay = new.host_delay - old.host_delay

    def _grown(self, more: int) -> BlockRows:
        new, (work, added) = self.new, self._work
        facts = new.facts.copy()
        ticks, gap, exposed = (new.facts[:, [TICKS, GAP, EXPOSED]] + more * self._grows).T
        slower = (ticks != 0) & (new.slowdown > 1)
        slowdown = np.where(slower, (work + more * added) / np.maximum(ticks, 1), new.slowdown)
        facts[:, TICKS], facts[:, GAP], facts[:, EXPOSED] = ticks, gap, exposed
        facts[:, SLOWDOWN].view(np.float64)[:] = np.maximum(slowdown, 1.0)
        return replace(new, facts=facts, host_delay=np.maximum(new.host_delay + more * self._delay, 0))
