"""Who predicts the plans of a sweep or a search when several processes share them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType

from triosim.core.registry import Registry
from triosim.search.outcome import PlanOutcome
from triosim.search.task import Numbered, PlanTask


class Executor(ABC):
    """Workers that predict batches of plans; each keeps what plans share, in caches of its own.

    Args:
        task: predicts a batch, wherever it is.
        workers: how many predict at a time.
    """

    def __init__(self, task: PlanTask, workers: int) -> None:
        self.task, self.workers = task, workers

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def predict(self, batches: Iterable[list[Numbered]]) -> Iterator[list[PlanOutcome]]:
        """What the plans of each batch give, whichever batch is done first; each exactly once.

        Raises:
            InputError: workers ended, and what they were doing cannot be done by others.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers, whatever they are doing."""


EXECUTORS = Registry("triosim.search.executors", "triosim.executors", "executor", Executor)
