"""``halvingDoubling``: partners at doubling distances swap halves, then gather them on the way back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.registry import registered
from triosim.interop.astra.edge_blocks import EdgeBlocks, Needs, Rows, all_of
from triosim.interop.astra.implementation import Implementation, Stage


@registered
class AstraHalvingDoubling(Implementation):
    """Log2 N steps reduce-scatter or gather, twice as many do both.

    ASTRA-sim charges for reducing before the steps 2 to log2 N, each time for a message as large as the one that goes
    out then; what came in the last reducing step is reduced for nothing (found from its runs; kept to agree with it).
    """

    kinds = ("all_reduce", "all_gather", "reduce_scatter")

    def add_edges(self, blocks: EdgeBlocks, lines: NDArray, stage: Stage, start: Needs) -> Rows:
        """See :meth:`Implementation.add_edges`."""
        groups, n = lines.shape
        here = lines.reshape(-1)
        waits: Needs = start
        for number, (distance, size) in enumerate(_exchanges(stage, n)):
            reduces = stage.kind != "all_gather" and 0 < number < n.bit_length() - 1
            pause = stage.endpoint_ps + stage.behind_ps() + (stage.reduction_ps(size) if reduces else 0)
            partner = np.arange(n) ^ distance
            sent = blocks.add(here, lines[:, partner].reshape(-1), size, pause_ps=pause, needs=waits)
            back = (np.arange(groups)[:, None] * n + partner).reshape(-1)
            waits = [all_of(sent[back])]
        return blocks.rest(here, stage.endpoint_ps, waits)

    def steps(self, members: int, stage: Stage) -> tuple[int, int]:
        """See :meth:`Implementation.steps`."""
        sizes = [size for _, size in _exchanges(stage, members)]
        return len(sizes), sum(sizes)

    def checked(self, members: int) -> str:
        """See :meth:`Implementation.checked`."""
        return "" if members & (members - 1) == 0 else f"needs a power of two of ranks, not {members}"


def _exchanges(stage: Stage, members: int) -> list[tuple[int, int]]:
    """(distance, bytes) of each step."""
    rounds = members.bit_length() - 1
    if stage.kind == "all_gather":
        return [(members >> (k + 1), stage.size << k) for k in range(rounds)]
    halving = [(1 << k, stage.size >> (k + 1)) for k in range(rounds)]
    return halving if stage.kind == "reduce_scatter" else halving + halving[::-1]
