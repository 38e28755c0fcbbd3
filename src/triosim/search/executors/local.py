"""Processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool

from triosim.core.registry import registered
from triosim.core.worker_processes import ended, worker_processes
from triosim.search.executor import Executor
from triosim.search.outcome import PlanOutcome
from triosim.search.task import Numbered, PlanTask

_task: PlanTask | None = None
"""In a worker: what predicts plans."""


def _begin(task: PlanTask) -> None:
    """Make this process a worker."""
    global _task
    _task = task


def _outcomes(plans: list[Numbered]) -> list[PlanOutcome]:
    assert _task is not None
    return _task.outcomes(plans)


@registered
class Local(Executor):
    """Processes of this machine; when one ends, as without memory, the sweep does, and goes on where it was."""

    def __init__(self, task: PlanTask, workers: int) -> None:
        super().__init__(task, workers)
        self._pool = worker_processes(workers, _begin, task)

    def predict(self, batches: Iterable[list[Numbered]]) -> Iterator[list[PlanOutcome]]:
        """See :class:`Executor`."""
        try:
            for future in as_completed([self._pool.submit(_outcomes, batch) for batch in batches]):
                yield future.result()
        except BrokenProcessPool:
            raise ended(self.workers) from None

    def close(self) -> None:
        """See :class:`Executor`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
