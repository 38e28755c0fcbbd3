"""Evaluating points of an exploration, in this process or in several: the same trials in the same order."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType

from triosim.core.worker_processes import WorkerPool, ended, worker_processes
from triosim.explore.exploration import Exploration, Trial
from triosim.explore.space import Point

_explored: Exploration | None = None
"""In a worker: what is explored."""


def _begin(what: Exploration) -> None:
    """Make this process a worker; the process that began it decides what an interrupt does."""
    global _explored
    _explored = what
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _trial(point: Point) -> Trial:
    assert _explored is not None
    return _explored.trial(point)


class Trials:
    """Evaluates points, as many at a time as there are workers.

    Args:
        what: is explored; it remembers all trials, whoever made them.
        workers: processes; with one, points are evaluated here.
    """

    def __init__(self, what: Exploration, workers: int = 1) -> None:
        self.what, self.workers = what, workers
        self._pool: WorkerPool | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.end()

    def of(self, points: Sequence[Point]) -> Iterator[Trial]:
        """The trial of each point, in their order.

        Raises:
            InputError: a worker ended.
        """
        new = [point for point in dict.fromkeys(points) if point not in self.what.known]
        made: dict[Point, Future[Trial]] = {}
        if self.workers > 1 and len(new) > 1:
            self._pool = self._pool or worker_processes(self.workers, _begin, self.what)
            made = {point: self._pool.submit(_trial, point) for point in new}
        for point in points:
            if point in made:
                try:
                    self.what.known[point] = made.pop(point).result()
                except BrokenProcessPool:
                    raise ended(self.workers) from None
            yield self.what.trial(point)
