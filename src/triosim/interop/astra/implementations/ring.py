"""``ring``: every rank sends to the next only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.registry import registered
from triosim.interop.astra.edge_blocks import EdgeBlocks, Needs, Rows, all_of
from triosim.interop.astra.implementation import Implementation, Stage


@registered
class AstraRing(Implementation):
    """N - 1 steps reduce-scatter or gather, 2 (N - 1) do both; all-to-all passes N (N - 1) / 2 messages along the ring.

    A step costs the endpoint delay, and in the reducing steps what reducing the message that came costs.
    """

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

    def add_edges(self, blocks: EdgeBlocks, lines: NDArray, stage: Stage, start: Needs) -> Rows:
        """See :meth:`Implementation.add_edges`."""
        groups, n = lines.shape
        here = lines.reshape(-1)
        previous = np.roll(np.arange(groups * n).reshape(groups, n), 1, axis=1).reshape(-1)
        following = np.roll(lines, -1, axis=1).reshape(-1)
        size = _message(stage, n)
        segments, last = _segments(stage, n, size)
        waits: Needs = start
        edges: Rows | None = None
        for count, pause in segments:
            edges = blocks.add_following(
                here, following, size, count=count, pause_ps=pause, needs=waits, before=previous
            )
            waits = [all_of(edges), all_of(edges[previous])]
        return blocks.rest(here, last, waits[1:] if edges is not None else waits)

    def steps(self, members: int, stage: Stage) -> tuple[int, int]:
        """See :meth:`Implementation.steps`."""
        size = _message(stage, members)
        count = sum(count for count, _ in _segments(stage, members, size)[0])
        return count, count * size


def _message(stage: Stage, members: int) -> int:
    return stage.size if stage.kind == "all_gather" else stage.size // members


def _segments(stage: Stage, members: int, size: int) -> tuple[list[tuple[int, int]], int]:
    """(messages, picoseconds before each) one after another, and the pause after the last one has come."""
    others, behind, last = members - 1, stage.behind_ps(), stage.endpoint_ps
    plain = last + behind
    reducing = plain + stage.reduction_ps(size)
    segments, last = {
        "all_reduce": ([(1, plain), (others, reducing), (others - 1, plain)], last),
        "reduce_scatter": ([(1, plain), (others - 1, reducing)], reducing - behind),
        "all_gather": ([(others, plain)], last),
        "all_to_all": ([(members * others // 2, plain)], last),
    }[stage.kind]
    return [(count, pause) for count, pause in segments if count > 0], last
