"""What a run took: told beside a result and never in it, so that equal input gives equal results."""

from __future__ import annotations

import time

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class Stats:
    """What a prediction took.

    Attributes:
        wall_s, cpu_s: seconds on the wall, and of the process on all processors.
        engine: name of the engine that played.
    """

    wall_s: float
    cpu_s: float
    engine: str


class Stopwatch:
    """Takes the time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stats(self, engine: str) -> Stats:
        """What has been spent since."""
        return Stats(time.perf_counter() - self._wall, time.process_time() - self._cpu, engine)
