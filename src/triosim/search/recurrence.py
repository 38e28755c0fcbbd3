"""Lower bound of operators and the collectives that they wait for and that slow them down, as a recurrence.

Operators run one after another, collectives on a stream of their own.  Where a collective is issued as soon as its
operator has run, and no operator waits for anything else, let ``q(p)`` be how far collectives are when ``p`` seconds of
operators have run.  While one is under way what computes takes ``s`` times as long
(:mod:`triosim.composition.interference`), so ``q`` rises by at most ``s`` for each second of operators; where one of
these waits for collective ``n`` it rises to the end of that, and what it rises by is *exposed*.  Whatever else delays
operators or collectives only lowers ``q(p)``, and so exposes no less.

With ``W`` seconds of operators, ``C`` of collectives and ``E`` of them exposed, ``C - E`` are beside operators, or
beside nothing.  So all of it takes at least ``W + E + (1 - 1 / s) (C - E)``, however it is delayed.  After each
operator is a gap before the next may begin, which no collective makes longer: gaps count to ``W``, and are taken off
``C - E``.

Of a block that is repeated each copy exposes as much as the one that was read if all that is under way is as far behind
at its end as it was at its begin, and never less than where nothing is under way at its begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.composition.interference import interference
from triosim.core.dataclass import dataclass
from triosim.partition.gradients import reduced_gradients
from triosim.partition.transfers import ALL_GATHER
from triosim.prediction.staged_job import StagedJob
from triosim.schedule._stage import JobFacts
from triosim.schedule.costs import ScheduleCosts

STEADY = 0.98
"""Part of what collectives slow down that is counted: times settle to some 1e-4 of an iteration."""


@dataclass
class RecurrenceState:
    """State of a recurrence.

    Attributes:
        clock: end of the compute stream, seconds.
        busy: end of the last collective.
        done: ends of collectives that are needed later, by number, as issued.
        hidden: longest that the collectives have been behind the computation.
        works, calls, exposed: seconds of operators with the gaps after them, of collectives, and of these exposed.
        gaps: seconds of the gaps, which nothing slows down.
    """

    clock: float = 0.0
    busy: float = 0.0
    done: dict[int, float] = field(default_factory=dict)
    hidden: float = 0.0
    works: float = 0.0
    calls: float = 0.0
    exposed: float = 0.0
    gaps: float = 0.0

    def behind(self) -> list[float]:
        """How long all that what follows may wait for is behind the computation."""
        return [max(0.0, end - self.clock) for end in (self.busy, *self.done.values())]

    def counts(self, other: RecurrenceState, times: float) -> None:
        """Count what another one has run so many times as well.

        What takes at least how long is asked of the sums: collectives of one piece may lie in the gaps of the next.
        """
        self.works += times * other.works
        self.calls += times * other.calls
        self.exposed += times * other.exposed
        self.gaps += times * other.gaps

    def least(self, slowdown: float) -> float:
        """What all of it takes at least."""
        beside = max(0.0, self.calls - self.exposed - self.gaps)
        return self.works + self.exposed + STEADY * (1 - 1 / slowdown) * beside


@dataclass(frozen=True)
class RepeatedBlock:
    """Operators of a block that stands for others that follow it.

    Attributes:
        member: which operators of the trace, shape ``(operators,)``.
        size: how many there are among the forward ones, or among the others.
        more: blocks that it stands for beside itself.
    """

    member: NDArray[np.bool_]
    size: int
    more: int


class _CallsAt(NamedTuple):
    """Collectives around an operator, by number.

    Attributes:
        issued: those that are issued right before it.
        needed: those that it needs.
        follow: those that are issued after it.
    """

    issued: Sequence[int]
    needed: tuple[int, ...]
    follow: tuple[int, ...]


class PassRecurrence:
    """The operators of a step and its collectives.

    Args:
        made: the job, on one stage.
        alone_s: what a collective takes where nothing else moves, by number of the transfer.
    """

    def __init__(self, made: StagedJob, alone_s: list[float]) -> None:
        trace = made.step.trace
        job = facts(made)
        once = job.once
        self._alone_s = alone_s
        self._calls = {
            row: _CallsAt(
                job.issued_before.get(row, ()),
                tuple(number for number in job.needed_before.get(row, ()) if number not in once),
                tuple(number for number in job.issued_after.get(row, ()) if number not in once),
            )
            for row in np.flatnonzero(job.around).tolist()
        }
        self._around = job.around
        self._operates = ~trace.operators.view
        transfers = made.step.transfers
        self._made = np.where(transfers.what == ALL_GATHER, transfers.after, -1).tolist()
        self._read = transfers.before.tolist()
        launching = made.launching
        self.gap_s = 0.0 if launching.mode in ("none", "graph") else launching.gap_s
        device = made.system.models[made.models[0]]
        self.slowdown = interference(device, made.fidelity.slowdown).slowdown

    def read(
        self, at: RecurrenceState, rows: NDArray[np.int64], seconds: NDArray[np.float64],
        inside: NDArray[np.bool_] | None = None, slowdown: float | None = None,
    ) -> RecurrenceState:  # fmt: skip
        """Go on by some operators.

        Args:
            at: where it is; goes on itself.
            rows: of the trace, ascending.
            seconds: of each operator of the trace; what is a view takes nothing.
            inside: operators of the same part of a pipeline, and a last that is True; what another part made is
                gathered where it is read.  All if None.
            slowdown: of what computes beside a collective, the device's if None.
        """
        alone, calls, done = self._alone_s, self._calls, at.done
        slowdown = self.slowdown if slowdown is None else slowdown
        places = self._around[rows].nonzero()[0]
        own = np.where(self._operates[rows], seconds[rows], 0.0)
        gaps = np.where(own > 0, self.gap_s, 0.0)
        ends = np.zeros(len(rows) + 1)
        (own + gaps).cumsum(out=ends[1:])
        clock, busy, hidden, before = at.clock, at.busy, at.hidden, 0.0
        spans = zip(rows[places].tolist(), ends[places].tolist(), ends[places + 1].tolist(), strict=True)
        for row, begin, end in spans:
            clock = _ran(clock, begin - before, busy, slowdown)
            issued, needed, follow = calls[row]
            for number in issued:
                busy = done[number] = max(busy, clock) + alone[number]
                at.calls += alone[number]
            for number in needed:
                if inside is not None and self._made[number] >= 0 and not inside[self._made[number]]:
                    busy = done[number] = max(busy, clock) + alone[number]
                    at.calls += alone[number]
                came = done.pop(number, 0.0)
                if came > clock:
                    at.exposed += came - clock
                    clock = came
            clock = _ran(clock, end - begin, busy, slowdown)
            before = end
            for number in follow:
                if inside is None or not self._elsewhere(number, inside):
                    busy = done[number] = max(busy, clock) + alone[number]
                    at.calls += alone[number]
            hidden = max(hidden, busy - clock)
        at.clock, at.busy, at.hidden = _ran(clock, float(ends[-1]) - before, busy, slowdown), busy, hidden
        at.works += float(ends[-1])
        at.gaps += float(gaps.sum())
        return at

    def seconds(
        self, rows: NDArray[np.int64], seconds: NDArray[np.float64], inside: NDArray[np.bool_], block: RepeatedBlock,
        slowdown: float | None = None,
    ) -> float:  # fmt: skip
        """What operators take at least, nothing being under way when the first begins.

        Args:
            rows, seconds, inside, slowdown: as of :meth:`read`; without slowdown it is what they take at least until
                the last has run, otherwise until the collectives have ended too.
            block: what stands for more than it is, where all of it is among the operators.
        """
        slows = self.slowdown if slowdown is None else slowdown
        own = np.flatnonzero(block.member[rows]) if block.more else np.zeros(0, np.int64)
        if not block.more or len(own) < block.size:
            return self.read(RecurrenceState(), rows, seconds, inside, slows).least(slows)
        first, last = int(own[0]), int(own[-1]) + 1
        at = self.read(RecurrenceState(), rows[:first], seconds, inside, slows)
        begun, exposed = at.behind(), at.exposed
        self.read(at, rows[first:last], seconds, inside, slows)
        more, ended = self.read(RecurrenceState(), rows[first:last], seconds, inside, slows), at.behind()
        if len(begun) == len(ended) and np.allclose(begun, ended, rtol=1e-6, atol=1e-9):
            more.exposed = at.exposed - exposed
        else:
            at.busy, at.done = 0.0, {}
        self.read(at, rows[last:], seconds, inside, slows).counts(more, block.more)
        return at.least(slows)

    def _elsewhere(self, number: int, inside: NDArray[np.bool_]) -> bool:
        """Whether what is gathered is read by another part, which then gathers it."""
        return self._made[number] >= 0 and not inside[self._read[number]]


def _ran(clock: float, works: float, busy: float, slowdown: float) -> float:
    """When operators have run that begin at ``clock`` and take ``works`` beside nothing, collectives until ``busy``."""
    beside = busy - clock
    if beside <= 0:
        return clock + works
    return clock + works * slowdown if works * slowdown <= beside else busy + works - beside / slowdown


def facts(made: StagedJob) -> JobFacts:
    """What is known of a job before its programs are written."""
    return JobFacts(
        made.step, ScheduleCosts(made.times.seconds), made.stages, made.schedule, made.plan, made.mesh,
        reduced_gradients(made.step.trace, made.plan.stack),
    )  # fmt: skip
