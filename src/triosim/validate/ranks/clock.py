"""Wall and processor time of what a process does."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch


class ElapsedSeconds(NamedTuple):
    """Seconds on the wall, and of the process on processors (all its threads)."""

    wall_s: float
    cpu_s: float


class DeviceTimer:
    """Takes the time between two calls; on a GPU until it has done everything.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._wall = self._cpu = 0

    def start(self) -> None:
        """Time runs from now."""
        self._settle()
        self._wall, self._cpu = time.perf_counter_ns(), time.process_time_ns()

    def stop(self) -> ElapsedSeconds:
        """What has been spent since :meth:`start`."""
        self._settle()
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        return ElapsedSeconds((wall - self._wall) * 1e-9, (cpu - self._cpu) * 1e-9)

    def _settle(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
