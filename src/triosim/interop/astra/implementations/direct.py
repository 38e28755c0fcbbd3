"""``direct``: every rank sends to all others at once, or to ``window`` of them at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.registry import registered
from triosim.interop.astra.edge_blocks import EdgeBlocks, Needs, Rows, all_of
from triosim.interop.astra.implementation import Implementation, Stage


@registered
class AstraDirect(Implementation):
    """One exchange for all-gather, reduce-scatter and all-to-all, two for all-reduce.

    The k-th message of a rank goes to the rank k + 1 places on.  With a window the next goes out when a message has
    come in.  What has come in at the same time is reduced at the same time.
    """

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

    def add_edges(self, blocks: EdgeBlocks, lines: NDArray, stage: Stage, start: Needs) -> Rows:
        """See :meth:`Implementation.add_edges`."""
        n = lines.shape[1]
        size = stage.size if stage.kind == "all_gather" else stage.size // n
        plain = stage.endpoint_ps
        reducing = plain + stage.reduction_ps(size)
        if stage.kind == "all_reduce":
            start = self._exchange(blocks, lines, size, stage, start, (plain, reducing))
            start = self._exchange(blocks, lines, size, stage, start, (reducing, plain))
            return blocks.rest(lines.reshape(-1), plain, start)
        later = reducing if stage.kind == "reduce_scatter" else plain
        received = self._exchange(blocks, lines, size, stage, start, (plain, later))
        return blocks.rest(lines.reshape(-1), later, received)

    def _exchange(
        self, blocks: EdgeBlocks, lines: NDArray, size: int, stage: Stage, start: Needs, pauses: tuple[int, int]
    ) -> Needs:
        """Everyone sends to everyone else; returns what each rank gets.

        Args:
            pauses: picoseconds before the messages that go out at first, and before those that wait for the window.
        """
        groups, n = lines.shape
        index = np.arange(groups * n).reshape(groups, n)
        here = lines.reshape(-1)
        window = min(self.window or n - 1, n - 1)
        received: list[tuple[Rows, int]] = []
        for k in range(n - 1):
            target = np.roll(lines, -k - 1, axis=1).reshape(-1)
            waits, pause = (start, pauses[0]) if k < window else ([received[k - window]], pauses[1])
            pause += stage.behind_ps(k, n - 1)
            sent = blocks.add(here, target, size, pause_ps=pause, needs=waits)
            received.append(all_of(sent[np.roll(index, k + 1, axis=1).reshape(-1)]))
        return received

    def fan_out(self, members: int) -> int:
        """See :meth:`Implementation.fan_out`."""
        return members - 1

    def steps(self, members: int, stage: Stage) -> tuple[int, int]:
        """See :meth:`Implementation.steps`."""
        total = (stage.size if stage.kind == "all_gather" else stage.size // members) * (members - 1)
        rounds = 2 if stage.kind == "all_reduce" else 1
        return rounds, rounds * total
