"""Which step of a profile is taken, and of which device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.sources.readers._host import QUEUE

_PIECE = 1 << 16
"""Rows of a column that are looked at together."""


@dataclass(frozen=True)
class StepMark:
    """A step as the profiler marked it on some thread: its label, and when it began and ended (ns)."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class DeviceColumns:
    """All that a profile shows of devices, in the order of the file; times in ns.

    Large profiles have millions of rows: columns are of the narrowest type that holds them (:func:`narrow`).

    Attributes:
        device, stream: where it ran.
        start, duration: when.
        call, calling: when the call that launched it began, and how long it took; ``start`` and 0 where it is not
            known.
        linked: whether it is known.
        communication: whether it is a communication kernel.
    """

    device: NDArray[np.signedinteger]
    stream: NDArray[np.signedinteger]
    start: NDArray[np.int64]
    duration: NDArray[np.signedinteger]
    call: NDArray[np.int64]
    calling: NDArray[np.signedinteger]
    linked: NDArray[np.bool_]
    communication: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, kept: NDArray[np.bool_]) -> DeviceColumns:
        """Some rows of it."""
        return DeviceColumns(**{name: column[kept] for name, column in vars(self).items()})

    def blocked(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Calls that found the queue of launches full: when they waited for a place in it between two times, ns.

        Such a call lasts until a kernel ends; what it costs otherwise is the median of the calls that did not wait.
        """
        call = self.call[self.linked]
        ends = np.sort((self.start + self.duration)[self.linked])
        if not np.any(np.arange(len(call)) - np.searchsorted(ends, np.sort(call), "right") >= QUEUE):
            return []
        columns = (self.duration, self.start, self.stream, self.calling)  # the order of equally early calls
        order = np.lexsort((*(c[self.linked] for c in columns), call))
        call, calling = call[order], self.calling[self.linked][order]
        full = np.arange(len(call)) - np.searchsorted(ends, call, "right") >= QUEUE
        usual = np.median(calling[~full]) if not full.all() else 0
        waited, returned = call + int(usual), call + calling
        full &= (calling > usual) & (waited < end) & (returned > begin)
        return list(zip(waited[full].tolist(), returned[full].tolist(), strict=True))


@dataclass(frozen=True)
class ProfileOverview:
    """Contents of a profile: marks, device work, calls and functions.

    Attributes:
        marks: its steps, in the order of the file.
        work: what ran on devices.
        calls: when each call began, ns.
        functions: the number of each call in an execution trace, below 1 for none; empty without such a trace.
        shapes: whether calls were recorded with the shapes of their inputs.
    """

    marks: tuple[StepMark, ...]
    work: DeviceColumns
    calls: NDArray[np.int64]
    functions: NDArray[np.int64]
    shapes: bool


@dataclass(frozen=True)
class StepChoice:
    """The step of a profile that is read.

    Attributes:
        labels: of all steps, in order.
        label: of the one taken; ``"all"``, or ``""`` where none is marked.
        begin, end: host times between which it lies, ns.
        device: the device, None where nothing ran on any.
        work: all that ran on that device.
        shapes: as in :class:`ProfileOverview`.
        notes: what was left out.
    """

    labels: tuple[str, ...]
    label: str
    begin: int
    end: int
    device: int | None
    work: DeviceColumns
    shapes: bool
    notes: tuple[str, ...]


def choose(
    path: Path,
    seen: ProfileOverview,
    step: str,
    functions: Mapping[int, Any] | None,
    whole: Callable[[], tuple[int, int]],
) -> StepChoice:
    """The step that ``step`` names.

    Args:
        path: the file, for messages.
        seen: what it shows.
        step: a label, ``"median"`` or ``"all"``.
        functions: of an execution trace, by number; None without one.
        whole: the host times between which the whole file lies, asked for where all of it is taken.

    Raises:
        InputError: there is no such step.
    """
    device, work, notes = _one_device(seen.work)
    widest: dict[str, StepMark] = {}
    for mark in seen.marks:
        known = widest.get(mark.label)
        if known is None or mark.end - mark.start > known.end - known.start:
            widest[mark.label] = mark
    marks = sorted(widest.values(), key=lambda m: m.start)
    labels = tuple(m.label for m in marks)
    if step not in ("median", "all") and step not in labels:
        have = f"it has the steps {', '.join(labels)}" if labels else "it marks no steps (ProfilerStep#N)"
        raise InputError(f"{path} has no step {step}: {have}; give one of them, median or all")
    if step == "all" or not marks:
        begin, end = whole()
        return StepChoice(labels, "all" if marks else "", begin, end, device, work, seen.shapes, notes)
    ends = [*(m.start for m in marks[1:]), marks[-1].end]  # a step ends where the next begins
    at = labels.index(step) if step in labels else _median(seen, work, marks, ends, functions)
    return StepChoice(labels, labels[at], marks[at].start, ends[at], device, work, seen.shapes, notes)


def _one_device(work: DeviceColumns) -> tuple[int | None, DeviceColumns, tuple[str, ...]]:
    """Keep the device that worked most; a trace is of one."""
    devices = np.unique(work.device)
    if len(devices) < 2:
        return (int(devices[0]) if len(devices) else None), work, ()
    busy = np.zeros(len(devices), np.int64)
    np.add.at(busy, np.searchsorted(devices, work.device), work.duration)
    most = int(np.argmax(busy))
    kept = int(devices[most])
    others = int(busy.sum() - busy[most])
    note = (
        f"the file shows devices {', '.join(map(str, devices.tolist()))}: only device {kept} is kept, "
        f"{others * 1e-6:.3f} ms of kernels on the others are not"
    )
    return kept, work.only(work.device == kept), (note,)


def _median(
    seen: ProfileOverview,
    work: DeviceColumns,
    marks: list[StepMark],
    ends: list[int],
    functions: Mapping[int, Any] | None,
) -> int:
    """The complete step with the median device time (the lower of two).

    A step is complete when it has at least nine tenths of the usual number of kernels (of calls, without kernels).
    With an execution trace the choice is among the steps that it covers.
    """
    starts, until = column([m.start for m in marks]), column(ends)
    steps = len(marks)

    def sums(times: NDArray[np.int64], counted: NDArray[np.bool_], weights: NDArray[np.signedinteger]) -> list[int]:
        """Weights of those of some times that count, added up over each step."""
        total = np.zeros(steps, np.int64)
        for begin in range(0, len(times), _PIECE):  # not in columns as long as the file's
            piece = slice(begin, begin + _PIECE)
            found, weight = times[piece][counted[piece]], weights[piece][counted[piece]]
            at = np.searchsorted(starts, found, "right") - 1
            inside = (at >= 0) & (found < until[at])
            np.add.at(total, at[inside], weight[inside])
        return [int(t) for t in total]

    def count(times: NDArray[np.int64], counted: NDArray[np.bool_]) -> list[int]:
        return sums(times, counted, np.ones(len(times), np.int8))

    shared = [0] * steps
    if functions and len(seen.functions):
        shared = count(seen.calls, np.isin(seen.functions, column(n for n in functions if n > 0)))
    if len(work):
        kernels = ~work.communication
        times, counts = sums(work.call, kernels, work.duration), count(work.call, kernels)
    else:
        times = [end - m.start for m, end in zip(marks, ends, strict=True)]
        counts = count(seen.calls, np.ones(len(seen.calls), np.bool_))
    usual = statistics.median(counts)
    complete = [i for i, count in enumerate(counts) if count >= 0.9 * usual]
    if max(shared) > 0:
        complete = [i for i in range(steps) if shared[i] >= 0.9 * max(shared)]
    return sorted(complete, key=lambda i: times[i])[(len(complete) - 1) // 2]


def column(times: Iterable[int]) -> NDArray[np.int64]:
    """Whole numbers as a column; what is too large for one, as only damaged files have it, is the largest."""
    return np.fromiter((min(time, 2**63 - 1) for time in times), np.int64)


def narrow(values: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
    """A column in the narrowest type that holds its values."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    kinds = (np.int8, np.int16, np.int32, np.int64)
    return values.astype(next(k for k in kinds if np.iinfo(k).min <= least and most <= np.iinfo(k).max))
