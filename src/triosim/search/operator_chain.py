"""Times of the operators of a pass one after another, with the collectives between them.

A pass through a stage is a chain: operators in order on one stream, collectives of the axis that divides them on
another, each slowing down what is computed beside it.  Nothing else has a part in it until gradients are reduced or
parameters gathered, so it is played once, operator by operator, and cut where others come in.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.composition.issuing import issue_shares
from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.engine.operator_chain import pass_chain, run_operator_chain
from triosim.schedule._stage import JobFacts
from triosim.search.isolated_transfers import Call
from triosim.search.transfer_times import SharedLinks

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Spans = tuple[Int64, Int64]


class LeadingCollective(NamedTuple):
    """A collective that waits for no operator of its pass.

    Attributes:
        call: which one.
        waits: whether for what the pass receives.
    """

    call: int
    waits: bool


class CallSpan(NamedTuple):
    """A collective of a chain: the ticks at which it begins, its bytes begin to move, and it ends."""

    begin: int
    moving: int
    end: int

    def after(self, ticks: int) -> CallSpan:
        """Counted from so many ticks later."""
        return CallSpan(max(self.begin - ticks, 0), max(self.moving - ticks, 0), max(self.end - ticks, 0))


class UnusedTicks:
    """When an operator chain computes nothing.

    Args:
        works: when it computes, disjoint and ascending.
        calls: when its collectives are under way, disjoint and ascending.

    Attributes:
        exposed: ticks of the collectives in all.
    """

    def __init__(self, works: Spans, calls: Spans) -> None:
        self._ends = ends = np.sort(np.concatenate([np.zeros(1, np.int64), *works, *calls]))
        middle = (ends[1:] + ends[:-1]) / 2
        computes, moves = (_inside(middle, *spans) for spans in (works, calls))
        ticks = np.diff(ends)
        self._gap, self._exposed = (
            np.append(0, np.cumsum(np.where(kind, ticks, 0))) for kind in (~computes & ~moves, ~computes & moves)
        )
        self.exposed = int(self._exposed[-1])

    def until(self, at: Int64) -> tuple[Int64, Int64]:
        """Ticks before some moments in which nothing is done, and in which there are collectives only."""
        late = np.maximum(at - self._ends[-1], 0)
        gap, exposed = (np.rint(np.interp(at, self._ends, of)).astype(np.int64) for of in (self._gap, self._exposed))
        return gap + late, exposed


class ChainSegment(NamedTuple):
    """A stretch of a chain.

    Attributes:
        ticks: how long it is.
        slowdown: how many times longer it takes beside collectives of another axis.
        gap, exposed, collective_slowdown: as of :class:`triosim.engine.contended.ContendedFragment`.
    """

    ticks: int
    slowdown: float
    gap: int
    exposed: int
    collective_slowdown: float = 1.0


@dataclass(frozen=True)
class OperatorChainRun:
    """Times of some operators of a chain; ticks from the first.

    Attributes:
        free: when the stream is free after each operator, shape ``(operators,)``.
        idle: when it has nothing to compute.
        unused: when nothing is computed.
        calls: collectives that are called, ascending by their beginning.
        begin, end: of each of them, after those that were under way at the beginning.
        moving: when each of these begins to move bytes.
        leading: collectives that are called besides and wait for no operator.
        host: for which the host issues all of it.
        issued, host_delay: ticks after the host has begun at which it has issued each operator, and before which the
            stream is not free after it, shape ``(operators,)``.
        slowdown: of what computes beside a collective.
        tensor: how many times longer the collectives take beside those of another axis.
        waiting_exposed: as of :class:`triosim.engine.contended.ContendedFragment`.
    """

    free: Int64
    idle: Spans
    unused: UnusedTicks
    calls: Int64
    begin: Int64
    end: Int64
    moving: Int64
    leading: tuple[LeadingCollective, ...]
    host: int
    issued: Int64
    host_delay: Int64
    slowdown: float
    tensor: SharedLinks
    waiting_exposed: float

    @property
    def exposed(self) -> int:
        """Ticks of the collectives in which nothing is computed."""
        return self.unused.exposed

    def at(self, row: int) -> int:
        """When the stream is free before operator ``row``."""
        return int(self.free[row - 1]) if row else 0

    def ended(self, calls: Sequence[int]) -> int:
        """When the last of some collectives has ended, 0 where none was called."""
        return max((self._ends.get(call, 0) for call in calls), default=0)

    @cached_property
    def _ends(self) -> dict[int, int]:
        return {call: span.end for call, span in self._spans.items()}

    @cached_property
    def _spans(self) -> dict[int, CallSpan]:
        """Of each collective that is called."""
        own = slice(len(self.end) - len(self.calls), None)
        columns = (column[own].tolist() for column in (self.begin, self.moving, self.end))
        return dict(zip(self.calls.tolist(), map(CallSpan, *columns), strict=True))

    @property
    def under_way(self) -> dict[int, CallSpan]:
        """Collectives that have not ended when the last operator has, counted from then."""
        free = self.at(len(self.free))
        return {call: span.after(free) for call, span in self._spans.items() if span.end > free}

    def segments(self, first: int, last: int) -> Sequence[ChainSegment]:
        """Operators ``first .. last - 1``, cut where what they do beside another collective changes."""
        if (first, last) not in self._segments:
            found = self._between(self.at(first), self.at(last))
            self._segments[first, last] = found or [ChainSegment(0, 1.0, 0, 0)]
        return self._segments[first, last]

    @cached_property
    def _segments(self) -> dict[tuple[int, int], list[ChainSegment]]:
        return {}

    def average(self, begin: int, end: int) -> ChainSegment:
        """All between two ticks as one stretch."""
        gap, exposed = self.unused.until(np.array([begin, end]))
        slowdown = self.slowdown_between(begin, end)
        return ChainSegment(end - begin, slowdown, int(gap[1] - gap[0]), int(exposed[1] - exposed[0]))

    def slowdown_between(self, begin: int, end: int) -> float:
        """How many times longer all between two ticks takes beside collectives of another axis."""
        if not self.slows or begin == end:
            return 1.0
        return sum(one.ticks * one.slowdown for one in self._between(begin, end)) / (end - begin)

    @property
    def slows(self) -> bool:
        """Whether anything takes longer beside collectives of another axis."""
        return self.slowdown > 1 or self.tensor.met > 1

    def _between(self, begin: int, end: int) -> list[ChainSegment]:
        cuts, slowdowns, collective = self._stretches
        first, last = bisect_right(cuts, begin), bisect_left(cuts, end)
        times = [begin, *cuts[first:last], end]
        gap, exposed = (np.diff(of).tolist() for of in self.unused.until(np.array(times)))
        own = slice(first, last + 1)
        found = zip(times[:-1], times[1:], slowdowns[own], gap, exposed, collective[own], strict=False)
        return [
            ChainSegment(until - at, slows if tensor > 1 else _slowdown(until - at, slows, idle), idle, moves, tensor)
            for at, until, slows, idle, moves, tensor in found
            if until > at
        ]

    @cached_property
    def _stretches(self) -> tuple[list[int], list[float], list[float]]:
        """Where what is done beside another collective changes; how many times longer it, and that one, take before
        each of these and after the last."""
        shared = self.tensor.met > 1
        cuts = distinct(np.concatenate([self.begin, self.end, *self.idle, self.moving if shared else self.begin]))
        middle = np.concatenate([[-1.0], (cuts[1:] + cuts[:-1]) / 2, cuts[-1:] + 1.0])
        called, idle = _inside(middle, self.begin, self.end), _inside(middle, *self.idle)
        slowdown = np.where(called | idle, 1.0, self.slowdown)
        if not shared:
            return cuts.tolist(), slowdown.tolist(), [1.0] * len(slowdown)
        moves, waited = _inside(middle, self.moving, self.end), self._waited
        bound = idle | _inside(middle, self.begin[waited], self.end[waited])
        slowdown[moves & bound] = self.tensor.met
        return cuts.tolist(), slowdown.tolist(), np.where(moves, self.tensor.filled, 1.0).tolist()

    @property
    def _waited(self) -> NDArray[np.bool_]:
        """Which collectives are waited for at their end, or followed at once by one that is."""
        found = _inside(self.end - 0.5, *self.idle)
        for number in range(len(found) - 2, -1, -1):
            found[number] |= found[number + 1] and self.begin[number + 1] == self.end[number]
        return found


def _slowdown(ticks: int, slowdown: float, gap: int) -> float:
    """How many times longer all of a stretch takes, of which gaps take as long as ever."""
    return slowdown - (slowdown - 1) * gap / ticks if ticks else 1.0


def _inside(at: NDArray[np.floating[Any]], start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Which moments lie within disjoint ascending spans."""
    if not len(start):
        return np.zeros(len(at), bool)
    number = np.searchsorted(start, at, side="right") - 1
    return (number >= 0) & (at < end[np.maximum(number, 0)])


def _by_row(table: Mapping[int, Sequence[int]], count: int) -> Ragged:
    """Numbers of each of so many rows, few of which have any."""
    lengths = np.zeros(count, np.int64)
    rows = sorted(table)
    lengths[rows] = [len(table[row]) for row in rows]
    return Ragged(np.array([n for row in rows for n in table[row]], np.int32), np.append(0, np.cumsum(lengths)))


class OperatorChain:
    """The operators of a job as links of chains.

    Args:
        job: what is run.
        launching: what launching costs.
        slowdown: of what computes beside a collective.
        ticks: of a collective that is alone.
        tensor: as of :class:`OperatorChainRun`.
        lags: ticks before the bytes of a collective move.
        seconds: of each operator, where that is not what the job says.
    """

    def __init__(
        self, job: JobFacts, launching: HostCosts, slowdown: float, ticks: dict[Call, int], tensor: SharedLinks,
        lags: dict[Call, int], seconds: NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        trace, count = job.step.trace, len(job.phase)
        self.job, self.slowdown, self.tensor = job, slowdown, tensor
        hosted = self.hosted = launching.mode != "none"
        seconds = np.array(job.seconds) if seconds is None else seconds
        self.gap = picoseconds(launching.gap_s, "the gap") if hosted else 0
        self.ticks = picoseconds(seconds, "an operator")
        self.gaps = np.where(seconds > 0, self.gap, 0).astype(np.int64)
        self.issue = np.zeros(count, np.int64)
        if hosted:
            self.issue = picoseconds(issue_shares(trace, launching), "issuing an operator")
        self.launch = picoseconds(launching.launch_s, "launching") if hosted else 0
        send_s = launching.launch_s if launching.send_s is None else launching.send_s
        self.send_launch = picoseconds(send_s, "launching") if hosted else 0
        self.skips = np.array(job.skipped, np.int8)
        self.calls: list[Call] = [(what, size, axis) for size, what, axis in job.exchanged]
        self.call_ticks = np.array([ticks[call] for call in self.calls], np.int64)
        self.lags = np.array([lags[call] for call in self.calls], np.int64)
        needs = {row: calls for row, calls in job.needed_before.items() if row < count}
        lists = [_by_row(table, count) for table in (job.issued_after, job.issued_before, needs)]
        self._columns = (
            self.ticks, self.gaps, self.issue, self.skips,
            *(column for table in lists for column in (table.offsets, table.values)), self.call_ticks,
            self.launch, slowdown,
        )  # fmt: skip
        self._always = np.array([number not in job.once for number in range(len(self.calls))], np.int8)
        self._all = np.ones(len(self.calls), np.int8)
        self._none = np.full(len(self.calls), -1, np.int64)
        self._played: dict[tuple[bytes, bool, tuple[tuple[int, CallSpan], ...]], OperatorChainRun] = {}

    @cached_property
    def native(self) -> Any:
        """What runs scripts in C++, None where there was no compiler."""
        more = self.lags, self._always, self.gap, self.send_launch, self.tensor.met, self.tensor.filled, self.hosted
        return pass_chain(self._columns, more)

    def play(self, rows: Sequence[int], final: bool, before: Mapping[int, CallSpan] | None = None) -> OperatorChainRun:
        """Some operators one after another.

        Args:
            rows: of the trace, ascending.
            final: whether gradients are complete then and exchanged along the axis that divides operators.
            before: collectives that were called before, one after another.
        """
        at = np.array(rows, np.int32)
        key = at.tobytes(), final, tuple(before.items()) if before else ()
        if key not in self._played:
            self._played[key] = self._play(rows, at, final, before)
        return self._played[key]

    def _play(
        self, rows: Sequence[int], at: Int32, final: bool, before: Mapping[int, CallSpan] | None
    ) -> OperatorChainRun:
        called = self._all if final else self._always
        leading = tuple(self.leading(rows, final))
        if leading:
            called = called.copy()
            called[[call for call, _ in leading]] = 0
        under_way = self._none
        if before:
            under_way = under_way.copy()
            under_way[list(before)] = [span.end for span in before.values()]
        begin, done, _, *moves = run_operator_chain(self._columns, at, called, under_way)
        skips = self.skips[at].astype(bool)
        free = np.maximum.accumulate(np.where(skips, done, done + self.gaps[at]))
        calls = np.flatnonzero(moves[0] >= 0)
        calls = calls[np.argsort(moves[0][calls], kind="stable")]
        earlier = np.array(list(before.values()) if before else [], np.int64).reshape(-1, len(CallSpan._fields))
        own = [moves[0][calls], np.minimum(moves[0][calls] + self.lags[calls], moves[1][calls]), moves[1][calls]]
        call_begin, moving, call_end = (np.concatenate(both) for both in zip(earlier.T, own, strict=True))
        unused = UnusedTicks((begin[~skips], done[~skips]), (call_begin, call_end))
        issued = host_delay = np.zeros(len(at), np.int64)
        waiting_exposed = 0.0
        if self.hosted:
            late, done, issued, *moved = run_operator_chain(self._columns, at, called, self._none, hosted=True)
            issued = issued + self.launch * len(leading)
            host_delay = np.maximum.accumulate(np.where(skips, done, done + self.gaps[at])) + self.launch * len(leading)
            waits = int(host_delay[-1] - free[-1]) if len(at) else 0
            if waits > 0 and len(calls):
                order = calls[np.argsort(moved[0][calls], kind="stable")]
                waited = UnusedTicks((late[~skips], done[~skips]), (moved[0][order], moved[1][order]))
                waiting_exposed = min(max((waited.exposed - unused.exposed) / waits, 0.0), 1.0)
        was_free = np.concatenate([np.zeros(1, np.int64), free[:-1]])
        idle = np.flatnonzero((begin > was_free) & ~skips)
        host = int(self.issue[at].sum()) + self.launch * (len(calls) + len(leading))
        return OperatorChainRun(
            free, (was_free[idle], begin[idle]), unused, calls, call_begin, call_end, moving, leading, host, issued,
            host_delay, self.slowdown, self.tensor, waiting_exposed,
        )  # fmt: skip

    def follow(self, calls: dict[int, CallSpan], more: Sequence[int]) -> dict[int, CallSpan]:
        """Collectives, and others that begin at once and go after them."""
        found, at = dict(calls), max((span.end for span in calls.values()), default=0)
        for call in more:
            until = at + int(self.call_ticks[call])
            found[call] = CallSpan(at, min(at + int(self.lags[call]), until), until)
            at = until
        return found

    def beside(self, ticks: int, gap: int, calls: Sequence[CallSpan]) -> list[ChainSegment]:
        """What else is computed from tick 0 on, and the gap after it, cut where collectives begin, move and end.

        Args:
            ticks: how long it takes beside none.
            gap: ticks of the gap.
            calls: collectives, one after another.
        """
        found, at, left = list[ChainSegment](), 0, float(ticks)
        for span in calls:
            for until, slows, met, filled in (
                (span.begin, 1.0, self.slowdown, 1.0), (span.moving, self.slowdown, 1.0, 1.0),
                (span.end, self.slowdown, self.tensor.met, self.tensor.filled),
            ):  # fmt: skip
                took = min(until - at, math.floor(left * slows + 0.5))
                if took > 0:
                    found.append(ChainSegment(took, met, 0, 0, filled))
                    at, left = at + took, left - took / slows
        last = math.floor(max(left, 0.0) + 0.5)
        if last + gap or not found:
            found.append(ChainSegment(last + gap, _slowdown(last + gap, self.slowdown, gap), gap, 0))
        return found

    def leading(self, rows: Sequence[int], final: bool) -> list[LeadingCollective]:
        """Collectives of some operators that wait for none of them; ``final`` as of :meth:`play`."""
        return leading_calls(self.job, rows, final)


def leading_calls(job: JobFacts, rows: Sequence[int], final: bool) -> list[LeadingCollective]:
    """Collectives of some operators that wait for none of them.

    Args:
        job: that the operators are of.
        rows: of the trace, ascending.
        final: whether gradients are complete then and exchanged along the axis that divides operators.
    """
    found = list[LeadingCollective]()
    for row in rows:
        found += [
            LeadingCollective(call, True) for call in job.issued_before.get(row, ()) if final or call not in job.once
        ]
        if not job.skipped[row]:
            break
        found += [
            LeadingCollective(call, False) for call in job.issued_after.get(row, ()) if final or call not in job.once
        ]
    return found


def leads(job: JobFacts, rows: Sequence[int]) -> bool:
    """Whether a pass of some operators calls a collective before anything that it receives is there."""
    return any(not waits for _, waits in leading_calls(job, rows, False))
