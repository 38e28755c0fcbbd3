"""Which ranks a picture shows when it cannot show all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim.core.errors import InputError
from triosim.prediction.timeline import Timeline


def representatives(timeline: Timeline) -> list[int]:
    """One rank for each class of ranks that do the same: those whose memory is known, and the first of each stage."""
    present = np.unique(timeline.slices.rank).tolist()
    tracked = {track.rank for track in timeline.memory}
    chosen = {rank for rank in present if rank in tracked}
    stages = {timeline.rank_stage[rank] for rank in chosen}
    for rank in present:
        if timeline.rank_stage[rank] not in stages:
            stages.add(timeline.rank_stage[rank])
            chosen.add(rank)
    return sorted(chosen)


def shown(timeline: Timeline, ranks: Sequence[int] | None, limit: int) -> list[int]:
    """The ranks to show: those asked for; without that all, or the :func:`representatives` above ``limit`` slices.

    Raises:
        InputError: a rank that the timeline does not hold.
    """
    present = np.unique(timeline.slices.rank).tolist()
    if ranks is None:
        return present if len(timeline.slices) <= limit else representatives(timeline)
    missing = sorted(set(ranks) - set(present))
    if missing:
        raise InputError(
            f"rank {missing[0]} is not in the timeline: it holds {len(present)} of {len(timeline.rank_names)} ranks, "
            f"for example {', '.join(map(str, present[:5]))}"
        )
    return sorted(set(ranks))
