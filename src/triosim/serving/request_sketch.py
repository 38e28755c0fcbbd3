"""What is added up of requests as they end, where there are too many to keep a row of each.

Means and counts are exact, quantiles from sketches of relative error 0.001 (:mod:`triosim.serving.quantiles`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.serving.quantiles import Samples
from triosim.serving.requests import RequestTable

MOST_ROWS = 2_000_000
"""Requests of which a row each is kept: 40 bytes."""


class RequestSketch:
    """Told of requests as they end.

    Args:
        table: what arrives.
        limits: seconds by name of what requests must keep to be good, of ``ttft``, ``tpot``, ``e2e`` and ``queueing``.
        first: whether the first token counts among those of a TPOT.
        replicas: how many there are.
        front: picoseconds between clients and engines, which tokens come later.

    Attributes:
        samples: picoseconds of ``ttft``, ``tpot``, ``e2e`` and ``queueing``.
        good: requests that keep all limits.
        begin, end: picoseconds of the first arrival and the last token.
        delayed: requests that waited between their steps.
        restarts: of requests by the replica that ended them.
        queued, took: seconds that these queued and were there, likewise.
    """

    def __init__(
        self, table: RequestTable, limits: Mapping[str, float], first: bool, replicas: int, front: int
    ) -> None:  # fmt: skip
        self._output, self._limits, self._less, self._front = table.output, limits, 0 if first else 1, front
        self.samples = {name: Samples.sketched() for name in ("ttft", "tpot", "e2e", "queueing")}
        self.good = self.delayed = 0
        self.begin, self.end = int(table.arrived.max()), 0
        self.restarts = np.zeros(replicas, np.int64)
        self.queued, self.took = np.zeros(replicas), np.zeros(replicas)

    def add(
        self,
        row: NDArray[np.int64],
        replica: NDArray[np.int64],
        arrived: NDArray[np.int64],
        scheduled: NDArray[np.int64],
        first_token: NDArray[np.int64],
        finished: NDArray[np.int64],
        waited: NDArray[np.int64],
        restarts: NDArray[np.int64],
    ) -> None:
        """Requests that have ended, as engines see them: columns of equal length, in any order."""
        first_token, finished = first_token + self._front, finished + self._front
        second = float(PICOSECONDS_PER_SECOND)
        tokens = self._output[row] - self._less
        several = tokens > 0
        spans = {
            "ttft": first_token - arrived, "e2e": finished - arrived, "queueing": scheduled - arrived,
            "tpot": (finished - first_token)[several],
        }  # fmt: skip
        good = np.ones(len(row), bool)
        for name, ticks in spans.items():
            seconds = ticks / second
            if name == "tpot":
                seconds = seconds / tokens[several]
                ticks = np.rint(ticks / tokens[several]).astype(np.int64)
            self.samples[name].add_many(ticks)
            if name in self._limits:
                kept = seconds <= self._limits[name]
                good[several if name == "tpot" else slice(None)] &= kept
        self.good += int(good.sum())
        self.begin, self.end = min(self.begin, int(arrived.min())), max(self.end, int(finished.max()))
        self.delayed += int((waited > 0).sum())
        count = len(self.restarts)
        self.restarts += np.bincount(replica, restarts, count).astype(np.int64)
        self.queued += np.bincount(replica, spans["queueing"] / second, count)
        self.took += np.bincount(replica, spans["e2e"] / second, count)
