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
from triosim.sources.readers._host import QUEUE, KernelLaunch, blocked


@dataclass(frozen=True)
class StepMark:
    """A step as the profiler marked it on some thread: its label, and when it began and ended (ns)."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class DeviceColumns:
    """All that a profile shows of devices, in the order of the file; times in ns.

    Attributes:
        device, stream: where it ran.
        start, duration: when.
        call, returned: when the call that launched it began and returned; ``call`` is ``start`` where it is not known.
        linked: whether it is known.
        communication: whether it is a communication kernel.
    """

    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    call: NDArray[np.int64]
    returned: NDArray[np.int64]
    linked: NDArray[np.bool_]
    communication: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, kept: NDArray[np.bool_]) -> DeviceColumns:
        """Some rows of it."""
        return DeviceColumns(**{name: column[kept] for name, column in vars(self).items()})

    def blocked(self) -> list[tuple[int, int]]:
        """Calls that found the queue of launches full; see :func:`~triosim.sources.readers._host.blocked`."""
        call, ends = np.sort(self.call[self.linked]), np.sort((self.start + self.duration)[self.linked])
        if not np.any(np.arange(len(call)) - np.searchsorted(ends, call, "right") >= QUEUE):
            return []
        columns = (self.call, self.returned, self.stream, self.start, self.start + self.duration)
        return blocked([KernelLaunch(*row) for row in zip(*(c[self.linked].tolist() for c in columns), strict=True)])


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
    devices, of = np.unique(work.device, return_inverse=True)
    busy = np.zeros(len(devices), np.int64)
    np.add.at(busy, of, work.duration)
    if not len(devices):
        return None, work, ()
    most = int(np.argmax(busy))
    kept = int(devices[most])
    if len(devices) == 1:
        return kept, work, ()
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

    def sums(times: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> list[int]:
        """How many of some times lie in each step, or their weights added up."""
        at = np.searchsorted(starts, times, "right") - 1
        inside = (at >= 0) & (times < until[at])
        total = np.zeros(steps, np.int64)
        np.add.at(total, at[inside], 1 if weights is None else weights[inside])
        return [int(t) for t in total]

    shared = [0] * steps
    if functions and len(seen.functions):
        covered = np.isin(seen.functions, column(n for n in functions if n > 0))
        shared = sums(seen.calls[covered])
    if len(work):
        kernels = work.only(~work.communication)
        times, counts = sums(kernels.call, kernels.duration), sums(kernels.call)
    else:
        times, counts = [end - m.start for m, end in zip(marks, ends, strict=True)], sums(seen.calls)
    usual = statistics.median(counts)
    complete = [i for i, count in enumerate(counts) if count >= 0.9 * usual]
    if max(shared) > 0:
        complete = [i for i in range(steps) if shared[i] >= 0.9 * max(shared)]
    return sorted(complete, key=lambda i: times[i])[(len(complete) - 1) // 2]


def column(times: Iterable[int]) -> NDArray[np.int64]:
    """Whole numbers as a column; what is too large for one, as only damaged files have it, is the largest."""
    return np.fromiter((min(time, 2**63 - 1) for time in times), np.int64)
