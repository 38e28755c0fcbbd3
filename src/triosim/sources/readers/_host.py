"""What the host did while the device worked: the cost of issuing each operator, and how kernels follow each other.

A profile shows when the host was where.  Its *costs* are what is left when the times in which it only waited for the
device are taken out; with them, and without any time stamp, a step can be played again as a chain in which an operator
starts when it has been issued and the device is ready (:mod:`triosim.composition.replay`).
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

QUEUE = 1000
"""A launch blocks while about so many are under way: CUDA's queue holds 1024."""

NEAR_NS = 5_000
"""Kernels that follow each other within so many nanoseconds waited for nothing else."""

FEWEST = 20
"""Kernels from which a median is taken."""


class KernelLaunch(NamedTuple):
    """One kernel: when the call that launched it began and returned, its stream, and when it started and ended (ns)."""

    call: int
    returned: int
    stream: int
    start: int
    end: int


class LaunchGaps(NamedTuple):
    """How kernels follow calls and each other, medians in seconds; None where a profile shows too few.

    Attributes:
        delay_s: from the return of the launching call to the start of a kernel, on an idle stream.
        gap_s: from the end of a kernel to the start of the next, which had been launched before.
    """

    delay_s: float | None
    gap_s: float | None


def following(kernels: Iterable[KernelLaunch]) -> LaunchGaps:
    """How the kernels of a profile follow each other."""
    streams: dict[int, list[KernelLaunch]] = {}
    for kernel in kernels:
        streams.setdefault(kernel.stream, []).append(kernel)
    delays, gaps = [], []
    for mine in streams.values():
        mine.sort(key=lambda k: k.start)
        end = mine[0].end
        for kernel in mine[1:]:
            if kernel.call > end:
                delays.append(kernel.start - kernel.returned)
            elif kernel.returned < end - NEAR_NS and 0 <= kernel.start - end < NEAR_NS:
                gaps.append(kernel.start - end)
            end = max(end, kernel.end)

    def median(found: list[int]) -> float | None:
        return max(statistics.median(found), 0) * 1e-9 if len(found) >= FEWEST else None

    return LaunchGaps(median(delays), median(gaps))


class HostClock:
    """Goes through a step in the order in which its calls began and says what each has cost the host.

    What lies between two calls (Python, autograd, the framework's own work) is the later one's.

    Args:
        begin: when the step began, ns.
        waits: when the host waited for the device, ns; they may overlap.
    """

    def __init__(self, begin: int, waits: Iterable[tuple[int, int]]) -> None:
        self.now = begin
        self.waits: list[tuple[int, int]] = []
        for start, end in sorted(waits):
            if self.waits and start <= self.waits[-1][1]:
                self.waits[-1] = (self.waits[-1][0], max(end, self.waits[-1][1]))
            elif end > start:
                self.waits.append((start, end))

    def until(self, end: int) -> float:
        """Seconds that the host has worked since the last time that was asked for."""
        if end <= self.now:
            return 0.0
        spent = end - self.now
        for start, stop in self.waits[max(bisect_right(self.waits, (self.now, 0)) - 1, 0) :]:
            if start >= end:
                break
            spent -= max(min(stop, end) - max(start, self.now), 0)
        self.now = end
        return spent * 1e-9
