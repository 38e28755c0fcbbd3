"""What operators take one after another with the collectives that they wait for: the recurrence behind all least times.

With ``t`` the end of the compute stream and ``d_n`` that of collective ``n``, reading operators in order gives
``t = max(t, d_n of all that are needed) + seconds`` and ``d_n = max(d of the last, t at its issue) + alone_n``.  It is
made of sums and maxima: all times later by ``c`` before some operators are later by ``c`` after them, and none that is
later before is earlier after.

So where the operators of one block are read and nothing came earlier by them than by ``c`` after it was before it, each
further block of this kind makes all later by ``c`` at least; and by what it takes where nothing is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triosim.partition.gradients import gradients
from triosim.partition.transfers import ALL_GATHER
from triosim.prediction.prepare import Arranged
from triosim.schedule._stage import JobFacts
from triosim.schedule.costs import ScheduleCosts


@dataclass
class UnderWay:
    """Where a recurrence is.

    Attributes:
        clock: end of the compute stream, seconds.
        busy: end of the last collective.
        done: ends of collectives that are needed later, by number, as issued.
        hidden: longest that the collectives have been behind the computation.
    """

    clock: float = 0.0
    busy: float = 0.0
    done: dict[int, float] = field(default_factory=dict)
    hidden: float = 0.0

    def ends(self) -> list[float]:
        """All that what follows may wait for."""
        return [max(self.clock, end) for end in (self.clock, self.busy, *self.done.values())]

    def delay(self, seconds: float) -> None:
        """Make all later."""
        self.clock += seconds
        self.busy += seconds
        self.done = {number: end + seconds for number, end in self.done.items()}


@dataclass(frozen=True)
class Block:
    """Operators of a block that stands for others that follow it.

    Attributes:
        member: which operators of the trace, shape ``(operators,)``.
        size: how many there are among the forward ones, or among the others.
        more: blocks that it stands for beside itself.
    """

    member: NDArray[np.bool_]
    size: int
    more: int


class Recurrence:
    """The operators of a step and its collectives.

    Args:
        made: the job, on one stage.
        alone_s: what a collective takes where nothing else moves, by number of the transfer.
    """

    def __init__(self, made: Arranged, alone_s: list[float]) -> None:
        trace = made.step.trace
        job = facts(made)
        self.alone_s, self._once = alone_s, job.once
        self._after, self._before, self._needed = job.issued_after, job.issued_before, job.needed_before
        self._around = job.around
        self.operates = ~trace.operators.view
        transfers = made.step.transfers
        self._made = np.where(transfers.what == ALL_GATHER, transfers.after, -1).tolist()
        self._read = transfers.before.tolist()

    def read(
        self, at: UnderWay, rows: NDArray[np.int64], seconds: NDArray[np.float64],
        inside: NDArray[np.bool_] | None = None,
    ) -> UnderWay:  # fmt: skip
        """Go on by some operators.

        Args:
            at: where it is; goes on itself.
            rows: of the trace, ascending.
            seconds: of each operator of the trace; what is a view takes nothing.
            inside: operators of the same part of a pipeline, and a last that is True; what another part made is
                gathered where it is read.  All if None.
        """
        alone, once, done = self.alone_s, self._once, at.done
        places = np.flatnonzero(self._around[rows])
        ends = np.concatenate([[0.0], np.cumsum(np.where(self.operates[rows], seconds[rows], 0.0))])
        clock, busy, hidden, before = at.clock, at.busy, at.hidden, 0.0
        spans = zip(rows[places].tolist(), ends[places].tolist(), ends[places + 1].tolist(), strict=True)
        for row, begin, end in spans:
            clock += begin - before
            for number in self._before.get(row, ()):
                busy = done[number] = max(busy, clock) + alone[number]
            for number in self._needed.get(row, ()):
                if number not in once:
                    if inside is not None and self._made[number] >= 0 and not inside[self._made[number]]:
                        busy = done[number] = max(busy, clock) + alone[number]
                    clock = max(clock, done.pop(number, 0.0))
            clock += end - begin
            before = end
            for number in self._after.get(row, ()):
                if number not in once and not (inside is not None and self._elsewhere(number, inside)):
                    busy = done[number] = max(busy, clock) + alone[number]
            hidden = max(hidden, busy - clock)
        at.clock, at.busy, at.hidden = clock + float(ends[-1]) - before, busy, hidden
        return at

    def seconds(
        self, rows: NDArray[np.int64], seconds: NDArray[np.float64], inside: NDArray[np.bool_], block: Block
    ) -> float:
        """What operators take at least, nothing being under way when the first begins.

        Args:
            rows, seconds, inside: as of :meth:`read`.
            block: what stands for more than it is, where all of it is among the operators.
        """
        own = np.flatnonzero(block.member[rows]) if block.more else np.zeros(0, np.int64)
        if not block.more or len(own) < block.size:
            return self.read(UnderWay(), rows, seconds, inside).clock
        first, last = int(own[0]), int(own[-1]) + 1
        at = self.read(UnderWay(), rows[:first], seconds, inside)
        before = at.ends()
        self.read(at, rows[first:last], seconds, inside)
        after = at.ends()
        alone = self.read(UnderWay(), rows[first:last], seconds, inside).clock
        each = min(b - a for a, b in zip(before, after, strict=True)) if len(before) == len(after) else 0.0
        if each >= alone:
            at.delay(block.more * each)
        else:
            at.clock += block.more * alone
        return self.read(at, rows[last:], seconds, inside).clock

    def _elsewhere(self, number: int, inside: NDArray[np.bool_]) -> bool:
        """Whether what is gathered is read by another part, which then gathers it."""
        return self._made[number] >= 0 and not inside[self._read[number]]


def facts(made: Arranged) -> JobFacts:
    """What is known of a job before its programs are written."""
    return JobFacts(
        made.step, ScheduleCosts(made.times.seconds), made.stages, made.schedule, made.plan, made.mesh,
        gradients(made.step.trace),
    )  # fmt: skip
