"""The rows of programs that belong to their common prefix: no late collective precedes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.network.lowering import Calls, JobMeetings
from triosim.schedule.program import Op, Program

LATE = 0.25
"""Collectives of an axis divide the ranks late if so large a part of each program comes before the first of them."""


class Sending(NamedTuple):
    """Rows of a program that RECEIVE from another, and the rows there that send it."""

    sender: int
    receives: NDArray[np.int64]
    sends: NDArray[np.int64]


class PrefixRows:
    """Finds the rows that no late collective comes before."""

    def __init__(self, programs: Sequence[Program], orders: Sequence[Calls], meeting: JobMeetings) -> None:
        self.programs, self.orders = programs, orders
        self.sendings = [sendings(programs, program) for program in programs]
        self.meet: dict[int, set[frozenset[int]]] = {}  # axis -> programs of its groups
        for endpoints in meeting.endpoints:
            group = frozenset(int(meeting.program[one.cell]) for one in endpoints)
            self.meet.setdefault(endpoints[0].axis, set()).add(group)

    def cut(self, most: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Rows of each program in the prefix, at most so many; None where no axis divides late."""
        begins: dict[int, float] = {}
        for program, calls in zip(self.programs, self.orders, strict=True):
            for axis, (rows, _) in calls.items():
                begins[axis] = min(begins.get(axis, 1.0), float(rows[0]) / len(program))
        late = [axis for axis, begin in begins.items() if begin >= LATE]
        if not late:
            return None
        found = [
            min([length, *(_ready(program, calls[axis][0]) for axis in late if axis in calls)])
            for length, program, calls in zip(most.tolist(), self.programs, self.orders, strict=True)
        ]
        known: list[int] = []
        while found != known:
            known = found
            found = self._together([self._waits(number, known) for number in range(len(known))])
        return np.array(found, np.int64)

    def _waits(self, number: int, cut: Sequence[int]) -> int:
        """The first row of a program that waits for something behind the cuts, its own included."""
        own, program = cut[number], self.programs[number]
        for one in self.sendings[number]:
            late = one.receives[one.sends >= cut[one.sender]]
            own = min(own, int(late.min(initial=own)))
        before = program.before
        ahead = before.rows()[before.values >= own]  # rows that wait for later ones
        return min(own, int(ahead.min(initial=own)))

    def _together(self, cut: list[int]) -> list[int]:
        """The cuts before the first collective that some member has behind its own."""
        for axis, groups in self.meet.items():
            for group in groups:
                members = [number for number in group if axis in self.orders[number]]
                rows = {number: self.orders[number][axis][0] for number in members}
                inside = min((int(np.searchsorted(rows[number], cut[number])) for number in members), default=0)
                for number in members:
                    if inside < len(rows[number]):
                        cut[number] = min(cut[number], int(rows[number][inside]))
        return cut


def _ready(program: Program, rows: NDArray[np.int64]) -> int:
    """The row behind what computes the first of what some collectives move, theirs if nothing does.

    What computes after that may run beside them, though it stands before them.
    """
    before = program.before.take(rows)
    computes = program.op[before.values] == Op.COMPUTE
    last = np.full(len(rows), -1, np.int64)
    np.maximum.at(last, before.rows()[computes], before.values[computes])
    return int(np.where(last >= 0, last + 1, rows).min())


def sendings(programs: Sequence[Program], program: Program) -> list[Sending]:
    """Who sends what a program receives."""
    receives, found = program.rows(Op.RECEIVE), []
    for stage in distinct(program.peer[receives]).tolist():
        rows = receives[program.peer[receives] == stage]
        for number, other in enumerate(programs):
            if other.stage != stage:
                continue
            sends = other.rows(Op.SEND)
            sends = sends[other.peer[sends] == program.stage]
            order = np.argsort(other.tag[sends], kind="stable")
            at = np.minimum(np.searchsorted(other.tag[sends][order], program.tag[rows]), len(sends) - 1)
            if len(sends) and np.array_equal(other.tag[sends[order[at]]], program.tag[rows]):
                found.append(Sending(number, rows, sends[order[at]]))
    return found
