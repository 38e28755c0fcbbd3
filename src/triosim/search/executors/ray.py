"""Workers of a Ray cluster: of the one that ``RAY_ADDRESS`` names, else of one started on this machine for the sweep.

A worker that ends, with its machine or by itself, is started anew, and what it was doing is done again: predictions are
pure, so nothing is lost and nothing counts twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.search.executor import Executor
from triosim.search.outcome import PlanOutcome
from triosim.search.task import Numbered, PlanTask

ALWAYS = -1
"""Ray's word for starting and trying again without end."""


class RayWorker:
    """Predicts plans in a process of the cluster."""

    task: PlanTask | None = None

    def outcomes(self, held: list[Any], plans: list[Numbered]) -> list[PlanOutcome]:
        """What some plans give.

        Args:
            held: one reference to the task, which is fetched once: what plans share is known by being the same object.
            plans: with their numbers.
        """
        if self.task is None:
            import ray

            self.task = ray.get(held[0])
        assert self.task is not None
        return self.task.outcomes(plans)


@registered
class Ray(Executor):
    """Workers of a Ray cluster, one core each."""

    def __init__(self, task: PlanTask, workers: int) -> None:
        super().__init__(task, workers)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it would speak of its next version
        try:
            import ray
        except ImportError:
            raise InputError("executor ray needs Ray: pip install 'triosim[ray]', or leave --executor out") from None
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            self._start()
        worker: Any = ray.remote(num_cpus=1, max_restarts=ALWAYS, max_task_retries=ALWAYS)(RayWorker)
        self._held = [ray.put(task)]
        self._workers = [worker.remote() for _ in range(workers)]

    def _start(self) -> None:
        """Join the cluster that the environment names, or start one on this machine.

        Raises:
            InputError: it does not answer.
        """
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        where = os.environ.get("RAY_ADDRESS")
        try:
            if where:
                self._ray.init(address=where, **quiet)
            else:
                self._ray.init(num_cpus=self.workers, include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            what = f"the Ray cluster at {where} (RAY_ADDRESS)" if where else "a Ray cluster on this machine"
            raise InputError(f"executor ray: {what} does not start or answer: {error}".splitlines()[0]) from error

    def predict(self, batches: Iterable[list[Numbered]]) -> Iterator[list[PlanOutcome]]:
        """See :class:`Executor`."""
        waiting, idle = iter(batches), list(self._workers)
        under_way: dict[Any, Any] = {}
        try:
            while True:
                while idle and (batch := next(waiting, None)) is not None:
                    worker = idle.pop()
                    under_way[worker.outcomes.remote(self._held, batch)] = worker
                if not under_way:
                    return
                done, _ = self._ray.wait(list(under_way))
                for one in done:
                    idle.append(under_way.pop(one))
                    yield self._ray.get(one)
        except self._ray.exceptions.RayError as error:
            raise InputError(f"executor ray: the cluster ended before all was done: {error}".splitlines()[0]) from error

    def close(self) -> None:
        """See :class:`Executor`."""
        if self._started:
            self._ray.shutdown()
            return
        for worker in self._workers:
            self._ray.kill(worker)
