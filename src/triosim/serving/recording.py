"""What happens in a run, step by step: for timelines and reports.

A replica that is recorded plays every step by itself, in Python; what comes of the run is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch
from triosim.serving.step_times import StepShape


@dataclass(frozen=True)
class StepColumns:
    """Steps, one row for each step and pipeline stage, in the order in which they were scheduled; all int64.

    Attributes:
        replica, stage: that computed it.
        begin, end: picoseconds.
        tokens: computed, drafts included.
        decodes: requests that had their prompts already.
        prompts, prompt_tokens: requests that had not, and their tokens in this step.
    """

    replica: NDArray[np.int64]
    stage: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    tokens: NDArray[np.int64]
    decodes: NDArray[np.int64]
    prompts: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.replica)


@dataclass(frozen=True)
class RunRecord:
    """A run.

    Attributes:
        steps: of all replicas.
        kv_replica, kv_time, kv_blocks: blocks held in a replica's cache from a time (ps) on; int64.
        away_row, away_begin, away_end: requests that had given way or lost their replica, by their rows in the table,
            from their last step to their next; ps, int64.
    """

    steps: StepColumns
    kv_replica: NDArray[np.int64]
    kv_time: NDArray[np.int64]
    kv_blocks: NDArray[np.int64]
    away_row: NDArray[np.int64]
    away_begin: NDArray[np.int64]
    away_end: NDArray[np.int64]


class RunRecorder:
    """Is told by replicas of their steps, and keeps them."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, ...]] = []
        self._held: list[tuple[int, int, int]] = []
        self._last: dict[int, int] = {}  # replica -> blocks held
        self._restarts: dict[int, int] = {}  # row of a request -> restarts when it was last in a step
        self._away: list[tuple[int, int, int]] = []

    def begins(
        self, replica: int, batch: Batch, shape: StepShape, spans: Sequence[tuple[int, int]], cache: KVCache
    ) -> None:
        """A step is scheduled, whose requests hold their blocks.

        Args:
            replica: its number.
            batch, shape: of the step.
            spans: picoseconds at which each stage begins and ends it.
            cache: of the replica.
        """
        tokens = sum(count for count, _ in shape.chunks)
        for stage, (begin, end) in enumerate(spans):
            self._steps.append((replica, stage, begin, end, shape.tokens, shape.decodes, len(shape.chunks), tokens))
        now = spans[0][0]
        self.holds(replica, now, cache)
        restarts = self._restarts
        for request, _ in batch:
            if request.restarts != restarts.get(request.row, 0):
                restarts[request.row] = request.restarts
                if 0 <= request.last_end < now:
                    self._away.append((request.row, request.last_end, now))

    def holds(self, replica: int, now: int, cache: KVCache) -> None:
        """What a replica's requests hold has changed."""
        blocks = cache.blocks - cache.free
        if self._last.get(replica) != blocks:
            self._last[replica] = blocks
            self._held.append((replica, now, blocks))

    def fails(self, replica: int, now: int, in_flight: int, cache: KVCache) -> None:
        """What a replica computes ends here.

        Args:
            replica: its number.
            now: picoseconds.
            in_flight: steps that have not ended, each counted on every stage.
            cache: of the replica.
        """
        at = len(self._steps)
        while in_flight:
            at -= 1
            step = self._steps[at]
            if step[0] == replica:
                in_flight -= 1
                self._steps[at] = (*step[:2], min(step[2], now), min(step[3], now), *step[4:])
        self.holds(replica, now, cache)

    def record(self) -> RunRecord:
        """All that was told."""

        def columns(rows: Sequence[tuple[int, ...]], count: int) -> tuple[NDArray[np.int64], ...]:
            return tuple(np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, count).T))

        steps = columns(self._steps, 8)
        return RunRecord(StepColumns(*steps), *columns(self._held, 3), *columns(self._away, 3))
