"""Communication slows computation down: while a collective runs, its thread blocks hold multiprocessors.

Collectives of NCCL and RCCL are kernels.  Each of their thread blocks holds a multiprocessor for itself from its launch
to its end, waiting for peers included, so with ``b`` blocks on ``u`` multiprocessors what computes takes
``u / (u - b)`` times as long meanwhile.  ``interference.json`` has the blocks by link, with their sources.

What that leaves out: waves that no longer fit (a matrix product of exactly ``u`` tiles takes twice as long), and shared
memory bandwidth.  Transfers to and from the host use copy engines and hold nothing; sends between stages hold one block
or a few and count as nothing; devices that are no GPUs have engines of their own for collectives.

How long each operator computes beside a collective is known only when the job has been played, and depends on how long
it computes.  :func:`settle` plays until both agree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.result_cache import Repeated
from triosim.core.spans import covered, merged
from triosim.core.units import whole_ticks
from triosim.hardware.accelerator import Accelerator

TOLERANCE = 1e-4
"""Times have settled when no rank's computation changes by more than this part of the run."""

MOST_PLAYS = 8
"""What is covered wholly is right after one play; of the rest each play leaves ``1 - 1 / slowdown`` of the error."""


@dataclass(frozen=True)
class Interference:
    """What a collective costs what computes beside it on one kind of device.

    Attributes:
        slowdown: what computes takes so many times as long, at least 1.
        source: where the figure is from.
    """

    slowdown: float
    source: str


@functools.cache
def _table() -> dict:
    return json.loads((Path(__file__).parent / "interference.json").read_text())


def interference(device: Accelerator, asked: float | None = None) -> Interference:
    """The slowdown on a device.

    Args:
        device: what computes.
        asked: a slowdown to take instead; None takes that of the kind of device.
    """
    if asked is not None:
        return Interference(asked, "as given")
    if not device.name or device.kind != "gpu":
        return Interference(1.0, "no multiprocessors of a known number that collectives would hold")
    table, units = _table(), device.compute_units
    link = "PCIe" if device.link.startswith("PCIe") or not device.link else device.link
    row = table["blocks"].get(link)
    if row is None or not units or units <= 2 * row["blocks"]:
        return Interference(float(table["other"]["factor"]), table["other"]["source"])
    blocks = row["blocks"]
    return Interference(units / (units - blocks), f"{blocks} of {units} multiprocessors: {row['source']}")


class TaskTimes(Protocol):
    """When each task started and finished, ticks."""

    @property
    def start(self) -> NDArray[np.int64]:
        """Starts, waiting for peers included."""

    @property
    def finish(self) -> NDArray[np.int64]:
        """Ends."""


RunTimes = TypeVar("RunTimes", bound=TaskTimes)


@dataclass(frozen=True)
class Tasks:
    """The tasks of a job as interference sees them; those of one device are contiguous.

    Attributes:
        first: first task of each device, shape ``(devices + 1,)``.
        slowdown: of each device, shape ``(devices,)``.
        computes, moves: for each device which of its tasks compute, and which are collectives.
        amount: ticks of what computes when nothing interferes, ``after`` included.
        after: for each device the ticks at the end of its tasks in which nothing is computed any more.  Devices that
            run the same best share this, ``computes`` and ``moves``.
        stands_for: how many equal tasks each stands for; None where each is one.
        earlier: for each device the one whose tasks are the beginning of its own, -1 for none; None where none has
            one.  Collectives of the beginning may still run beside what comes later, not the other way round.
    """

    first: NDArray[np.int64]
    slowdown: NDArray[np.float64]
    computes: Sequence[NDArray[np.bool_]]
    moves: Sequence[NDArray[np.bool_]]
    amount: NDArray[np.int64]
    after: Sequence[NDArray[np.int64]]
    stands_for: NDArray[np.int64] | None = None
    earlier: NDArray[np.int64] | None = None


class Begun(NamedTuple):
    """How far settling has come, found elsewhere: on devices that stand for those that do the same.

    Attributes:
        longer: for each device what its tasks take longer than alone, ticks; equal ones are best one array.
        plays: so often they were played, these last.
    """

    longer: Sequence[NDArray[np.int64]]
    plays: int


def settle(
    tasks: Tasks,
    play: Callable[[NDArray[np.int64]], RunTimes],
    end: Callable[[RunTimes], int] = lambda played: int(played.finish.max()),
    begun: Begun | None = None,
) -> RunTimes:
    """Play a job so that everything takes as long as what runs beside it lets it.

    In the result each task that computes is longer than alone by ``1 - 1 / slowdown`` of the time that collectives of
    its device run beside it.  With a slowdown of 1, or where nothing is beside a collective, it is played once.

    Args:
        tasks: what is played.
        play: plays the tasks with other amounts.
        end: when all of a played job has ended.
        begun: the last plays of the same job, which are not played again; what it says is checked like any other play.
    """
    devices = _devices(tasks)
    stretched = dict.fromkeys(devices, _NOTHING) if begun is None else _begun(devices, begun)
    played = play(_lengthened(tasks, devices, stretched))
    if not devices:
        return played
    for _ in range(MOST_PLAYS - (1 if begun is None else begun.plays)):
        wanted = _stretched(devices, played)
        if _differ(tasks, devices, wanted, stretched) <= TOLERANCE * end(played):
            break
        stretched = wanted
        del played  # so that two results of a large job are never there at once
        played = play(_lengthened(tasks, devices, stretched))
    return played


class _ExtraTicks(NamedTuple):
    """What some rows of a device take longer, ticks, ascending; the others take as long as alone."""

    rows: NDArray[np.int64]
    longer: NDArray[np.int64]

    def differs(self, other: _ExtraTicks, stands_for: NDArray[np.int64] | None = None) -> int:
        """Ticks by which the rows differ, all together, each counting as often as it stands for."""
        least = min((int(part.rows[0]) for part in (self, other) if len(part.rows)), default=0)
        most = max((int(part.rows[-1]) for part in (self, other) if len(part.rows)), default=-1)
        off = np.zeros(most - least + 1, np.int64)
        off[self.rows - least] = self.longer
        off[other.rows - least] -= other.longer
        np.abs(off, out=off)
        return int(off.sum() if stands_for is None else (off * stands_for[least : most + 1]).sum())


_NOTHING = _ExtraTicks(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class _Work:
    """What devices run that run the same: rows that compute and rows of collectives, ascending, and ticks.

    Attributes:
        number: of this among all that devices run.
        computes, moves: the rows.
        alone, after: of each that computes, what it takes when nothing interferes, and what comes after it.
        slowdown: of the device.
    """

    number: int
    computes: NDArray[np.int64]
    moves: NDArray[np.int64]
    alone: NDArray[np.int64]
    after: NDArray[np.int64]
    slowdown: float

    def stretched(
        self, start: NDArray[np.int64], finish: NDArray[np.int64], before: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> _ExtraTicks:
        """What each row takes longer beside the collectives, as they ran.

        What a collective covers wholly it will cover when it is stretched too, unless that is too long: the next play
        says.

        Args:
            start, finish: of the rows.
            before: starts and ends of collectives of the beginning.
        """
        ran = merged(
            np.concatenate([before[0], start[self.moves]]), np.concatenate([before[1], finish[self.moves]])
        )  # fmt: skip
        begin, worked = start[self.computes], finish[self.computes] - self.after
        at = _touched(begin, worked, *ran)
        begin, worked, alone = begin[at], worked[at], self.alone[at]
        beside = covered(begin, worked, *ran)
        slowdown = self.slowdown
        longer = np.where(beside == worked - begin, alone * (slowdown - 1), beside * (1 - 1 / slowdown))
        return _ExtraTicks(
            self.computes[at], whole_ticks(longer, "what a collective adds to an operator beside it")
        )  # fmt: skip


class _Device(NamedTuple):
    """Where the tasks of a device are, what they are, and the device that they go on from, -1 for none."""

    begin: int
    end: int
    work: _Work
    earlier: int

    def times(self, played: TaskTimes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When its rows started and finished."""
        return played.start[self.begin : self.end], played.finish[self.begin : self.end]


def _devices(tasks: Tasks) -> dict[int, _Device]:
    """The devices that are slowed down, by number."""
    found: dict[int, _Device] = {}
    kinds, repeated, known = Repeated(), Repeated(), list[_Work]()
    seen: dict[tuple[int, ...], int] = {}
    first = tasks.first.tolist()
    for number in np.flatnonzero(tasks.slowdown > 1).tolist():
        own, slowdown = slice(first[number], first[number + 1]), float(tasks.slowdown[number])
        columns = (tasks.computes[number], tasks.moves[number], tasks.after[number])
        shared = tuple(map(id, columns))
        if shared not in seen:
            seen[shared] = kinds.number((), columns)
        which = repeated.number((slowdown, seen[shared]), (tasks.amount[own],))
        if which == len(known):
            computes, moves = np.flatnonzero(columns[0]), np.flatnonzero(columns[1])
            after = columns[2][computes]
            known.append(_Work(which, computes, moves, tasks.amount[own][computes] - after, after, slowdown))
        earlier = -1 if tasks.earlier is None else int(tasks.earlier[number])
        found[number] = _Device(own.start, own.stop, known[which], earlier)
    return found


def _begun(devices: Mapping[int, _Device], begun: Begun) -> dict[int, _ExtraTicks]:
    """What the rows of each device took longer in the last of the plays that have been."""
    known: dict[int, _ExtraTicks] = {}
    for longer in begun.longer:
        if id(longer) not in known:
            rows = np.flatnonzero(longer)
            known[id(longer)] = _ExtraTicks(rows, longer[rows])
    return {number: known[id(begun.longer[number])] for number in devices}


def _lengthened(
    tasks: Tasks, devices: Mapping[int, _Device], stretched: Mapping[int, _ExtraTicks]
) -> NDArray[np.int64]:  # fmt: skip
    """Ticks of all tasks, those of some rows longer than alone."""
    if not any(len(one.rows) for one in stretched.values()):
        return tasks.amount
    amount = tasks.amount.copy()
    for number, one in stretched.items():
        amount[devices[number].begin + one.rows] += one.longer
    return amount


def _stretched(devices: Mapping[int, _Device], played: TaskTimes) -> dict[int, _ExtraTicks]:
    """What the rows of each device take longer.  Devices that run the same at the same times share the answer."""
    repeated, known = Repeated(), list[_ExtraTicks]()
    found = {}
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for number, device in devices.items():
        start, finish = device.times(played)
        which = repeated.number((device.work.number, device.earlier), (start, finish))
        if which == len(known):
            before = none
            if device.earlier in devices:
                earlier = devices[device.earlier]
                began, ended = earlier.times(played)
                before = began[earlier.work.moves], ended[earlier.work.moves]
            known.append(device.work.stretched(start, finish, before))
        found[number] = known[which]
    return found


def _differ(
    tasks: Tasks, devices: Mapping[int, _Device], now: Mapping[int, _ExtraTicks], then: Mapping[int, _ExtraTicks]
) -> int:
    """The most ticks by which two answers differ on one device, its beginning included."""
    known: dict[tuple[int, int], int] = {}
    off: dict[int, int] = {}
    for number, device in devices.items():
        key = (id(now[number]), id(then[number]))
        if tasks.stands_for is not None:
            off[number] = now[number].differs(then[number], tasks.stands_for[device.begin : device.end])
        else:
            if key not in known:
                known[key] = now[number].differs(then[number])
            off[number] = known[key]
    return max(off[number] + off.get(device.earlier, 0) for number, device in devices.items())


def _touched(
    begin: NDArray[np.int64], end: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows of the intervals from ``begin`` to ``end`` that some of the disjoint ascending ones may meet.

    What a stream runs in order is ascending at both ends, so that each of the few meets a range of rows; all rows
    where it is not.
    """
    if not (np.all(begin[1:] >= begin[:-1]) and np.all(end[1:] >= end[:-1])):
        return np.arange(len(begin))
    low, high = np.searchsorted(end, start, side="right"), np.searchsorted(begin, stop, side="left")
    met = low < high
    ends = len(begin) + 1
    change = np.bincount(low[met], minlength=ends) - np.bincount(high[met], minlength=ends)
    return np.flatnonzero(np.cumsum(change))
