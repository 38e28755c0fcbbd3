"""The time of one call on a device, and of the host that issues it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]

WARM_UP, TIMES = 3, 11
FLUSH_BYTES = 256 << 20
"""Written between calls so that nothing of the one before is left in the last-level cache."""

IN_GRAPH = 20
"""Calls in one CUDA graph, for time without the host."""


class Timer:
    """Takes times on one device.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._flush: torch.Tensor | None = None

    def sync(self) -> None:
        """Wait until the device has done everything."""
        if self.cuda:
            torch.cuda.synchronize()

    def times(self, call: Call, times: int = TIMES, cold: bool = False) -> list[float]:
        """Seconds of each call, after warming up.

        Args:
            call: issues the work.
            times: how often.
            cold: whether caches are emptied before each.
        """
        for _ in range(WARM_UP):
            call()
        self.sync()
        return [self._once(call, cold) for _ in range(times)]

    def median(self, call: Call, times: int = TIMES, cold: bool = False) -> float:
        """Median of :meth:`times`."""
        return statistics.median(self.times(call, times, cold))

    def host(self, call: Call, times: int = TIMES) -> float:
        """Median seconds until the host has issued the work, the device being idle before."""
        found = []
        for _ in range(times):
            self.sync()
            begun = time.perf_counter()
            call()
            found.append(time.perf_counter() - begun)
        self.sync()
        return statistics.median(found)

    def in_graph(self, call: Call) -> float | None:
        """Seconds of a call inside a CUDA graph, warm and without the host; None where there are no graphs."""
        if not self.cuda:
            return None
        replay = graph(call, IN_GRAPH)
        return self.median(replay, 7) / IN_GRAPH

    def _once(self, call: Call, cold: bool) -> float:
        if cold and self.cuda:
            if self._flush is None:
                self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.device)
            self._flush.zero_()
        if not self.cuda:
            begun = time.perf_counter()
            call()
            return time.perf_counter() - begun
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3


def graph(call: Call, times: int) -> Call:
    """A CUDA graph of a call, ``times`` over."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        for _ in range(times):
            call()
    return made.replay
