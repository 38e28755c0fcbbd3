"""One played job: when its tasks ran, and how its ranks spent the time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.result_cache import Repeated
from triosim.core.spans import covered, merged
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.graph import GraphRun
from triosim.memory.footprint import Footprint
from triosim.network.lowering import LoweredJob
from triosim.schedule.program import Op, Program

S = 1 / PICOSECONDS_PER_SECOND
TRANSFERS = (Op.COLLECTIVE, Op.SEND, Op.FETCH, Op.STORE)
"""What a rank moves; what it receives is its neighbour's."""


@dataclass(frozen=True)
class Run:
    """One played job: its programs, its graph and the times of its tasks."""

    programs: Sequence[Program]
    lowered: LoweredJob
    played: GraphRun
    iterations: int

    @cached_property
    def end(self) -> int:
        """End of the run in picoseconds."""
        return int(self.played.finish.max(initial=0))

    @cached_property
    def spent(self) -> tuple[RankTimeUse, ...]:
        """How each cell spent the run."""
        known: dict[int, RankTimeUse] = {}
        for cell, first in enumerate(self.alike):
            if cell == first:
                known[cell] = occupied(self, cell)
        return tuple(known[first] for first in self.alike)

    @cached_property
    def active(self) -> int:
        """Picoseconds with at least one device or transfer busy."""
        return active(self)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each cell the first that ran the same program at the same times; what arrived did so too."""
        known, found, firsts = Repeated(), list[int](), list[int]()
        for cell, program in enumerate(self.lowered.program.tolist()):
            own, sends = self.tasks(cell), senders(self, cell)
            columns = [times[at] for times in self._times for at in (own, sends)]
            number = known.number(program, columns)
            if number == len(firsts):
                firsts.append(cell)
            found.append(firsts[number])
        return tuple(found)

    @property
    def _times(self) -> tuple[NDArray[np.int64], ...]:
        """When tasks started, began to move or compute, and ended."""
        return self.played.start, self.played.begin, self.played.finish

    @cached_property
    def sends(self) -> NDArray[np.int64]:
        """Tasks that send from stage to stage, ascending."""
        rows = self.lowered.by_cell([program.rows(Op.SEND) for program in self.programs])
        return np.concatenate([own + first for own, first in zip(rows, self.lowered.first[:-1].tolist(), strict=True)])

    def pair(self, cell: int) -> NDArray[np.int64]:
        """For each task of a cell the number of its transfer, which its sending and its arrival share; else -1."""
        program, begin = self.program(cell), self.tasks(cell).start
        sends, receives = program.rows(Op.SEND), program.rows(Op.RECEIVE)
        found = np.full(len(program), -1, np.int64)
        found[sends] = np.searchsorted(self.sends, sends + begin)
        found[receives] = np.searchsorted(self.sends, senders(self, cell))
        return found

    def tasks(self, cell: int) -> slice:
        """Tasks of a cell of ranks."""
        return slice(int(self.lowered.first[cell]), int(self.lowered.first[cell + 1]))

    def program(self, cell: int) -> Program:
        """Program of a cell."""
        return self.programs[self.lowered.program[cell]]

    def first_cell(self, program: Program) -> int:
        """The cell of the lowest rank that runs a program."""
        return int(self.lowered.cell[program.ranks.min()])

    def cells(self, number: int) -> list[int]:
        """Cells that run a program."""
        return np.flatnonzero(self.lowered.program == number).tolist()

    @property
    def played_tasks(self) -> int:
        """Tasks in the graph."""
        return len(self.lowered.graph)

    @property
    def flows(self) -> int:
        """Transfers, those in collectives included."""
        return self.played.flows

    def stands_for(self, number: int) -> NDArray[np.int64] | None:
        """How many equal instructions each of a program stands for; None where each is one."""
        return None

    def memory(self, number: int, footprint: Footprint) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When the memory of the first rank of a class changes, ticks, and bytes that it holds from then on."""
        return memory_times(self, self.programs[number], footprint), footprint.total

    def began(self, number: int, row: int) -> tuple[int, int]:
        """When an instruction of a program began on its first rank, ticks; and the row where that instruction is."""
        return int(self.played.start[self.tasks(self.first_cell(self.programs[number])).start + row]), row

    def length(self, number: int) -> int:
        """Instructions of a program."""
        return len(self.programs[number])


@dataclass(frozen=True)
class RankTimeUse:
    """Time of each rank of a cell by what it did, picoseconds.

    Attributes:
        compute, communication, host: time with the compute stream, a transfer, or the host busy.
        exposed_communication: communication while it did not compute.
        exposed_host: the host working while there was neither computation nor communication.
        idle: none of these.
    """

    compute: int
    communication: int
    host: int
    exposed_communication: int
    exposed_host: int
    idle: int


def seconds(ticks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Picoseconds as seconds."""
    return np.asarray(ticks * S, np.float64)


Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Disjoint intervals, ascending."""


def busy(run: Run, cell: int, op: Op) -> Spans:
    """When a cell ran instructions of a kind."""
    rows = run.program(cell).rows(op) + run.tasks(cell).start
    return merged(run.played.start[rows], run.played.finish[rows])


def union(*spans: Spans) -> Spans:
    """The union of some."""
    return merged(*(np.concatenate(pair) for pair in zip(*spans, strict=True)))


def total_ticks(spans: Spans) -> int:
    """Ticks in all."""
    return int((spans[1] - spans[0]).sum())


def occupied(run: Run, cell: int) -> RankTimeUse:
    """How each rank of a cell spent the run."""
    computing, issuing = busy(run, cell, Op.COMPUTE), busy(run, cell, Op.ISSUE)
    moving = merged(*transfers(run, cell))
    compute, host, communication = total_ticks(computing), total_ticks(issuing), total_ticks(moving)
    both = communication + compute - int(covered(*moving, *computing).sum())
    all_three = both + host - int(covered(*issuing, *union(computing, moving)).sum())
    return RankTimeUse(compute, communication, host, both - compute, all_three - both, run.end - all_three)


def transfers(run: Run, cell: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When transfers of a cell were in flight: its collectives, what it sent, fetched and received."""
    rows = run.program(cell).rows(*TRANSFERS) + run.tasks(cell).start
    own = np.concatenate([rows, senders(run, cell)])
    return run.played.begin[own], run.played.finish[own]


def senders(run: Run, cell: int) -> NDArray[np.int32]:
    """Tasks that send what a cell receives."""
    arrivals = run.program(cell).rows(Op.RECEIVE) + run.tasks(cell).start
    before = run.lowered.graph.before
    found: NDArray[np.int32] = before.values[before.offsets[arrivals + 1] - 1]
    return found


def active(run: Run) -> int:
    """Picoseconds with at least one device or transfer busy."""
    return total_ticks(any_busy(run))


def any_busy(run: Run) -> Spans:
    """When at least one device or transfer was busy."""
    found = []
    for cell in sorted(set(run.alike)):
        at, program = run.tasks(cell).start, run.program(cell)
        for when, ops in ((run.played.start, (Op.COMPUTE,)), (run.played.begin, TRANSFERS)):
            rows = program.rows(*ops) + at
            found.append(merged(when[rows], run.played.finish[rows]))
    return union(*found)


def memory_times(run: Run, program: Program, footprint: Footprint) -> NDArray[np.int64]:
    """Ticks at which the memory of the first rank of a class changes; what comes with a row comes when the row begins
    or has ended."""
    if not len(footprint.rows) or not len(program):
        return np.zeros(len(footprint.rows), np.int64)
    first = run.tasks(run.first_cell(program)).start
    inside = (footprint.rows >= 0) & (footprint.rows < len(program))
    task = first + np.clip(footprint.rows, 0, len(program) - 1)
    when = np.where(footprint.ended, run.played.finish[task], run.played.start[task])
    return np.maximum.accumulate(np.where(inside, when, 0))
