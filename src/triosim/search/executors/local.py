"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.search.executor import Executor
from triosim.search.outcome import PlanOutcome
from triosim.search.task import Numbered, PlanTask

_task: PlanTask | None = None
"""In a worker: what predicts plans."""


def _begin(task: PlanTask) -> None:
    """Make this process a worker."""
    global _task
    _task = task
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A worker whose sweep was killed would wait for ever."""
    parent.join()
    os._exit(1)


def _outcomes(plans: list[Numbered]) -> list[PlanOutcome]:
    assert _task is not None
    return _task.outcomes(plans)


@registered
class Local(Executor):
    """Processes of this machine; when one ends, as without memory, the sweep does, and goes on where it was."""

    def __init__(self, task: PlanTask, workers: int) -> None:
        super().__init__(task, workers)
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (task,))

    def predict(self, batches: Iterable[list[Numbered]]) -> Iterator[list[PlanOutcome]]:
        """See :class:`Executor`."""
        try:
            for future in as_completed([self._pool.submit(_outcomes, batch) for batch in batches]):
                yield future.result()
        except BrokenProcessPool:
            raise InputError(
                f"one of {self.workers} workers ended before it was done, as a machine does that runs out of memory: "
                "use fewer"
            ) from None

    def close(self) -> None:
        """See :class:`Executor`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
