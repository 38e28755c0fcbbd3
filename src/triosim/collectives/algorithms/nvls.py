"""NVLS: the switch adds up what all members hold, and sends the sum to all (NVLink SHARP).

Every member owns one part of the buffer.  It reads the sum of that part from the switch, which fetches the part from
all members, and writes it to the switch, which passes it on to all.  So each member sends the whole buffer and its part
once, and receives as much (NVIDIA, "NVLink SHARP", PTX ``multimem``).
"""

from __future__ import annotations

import numpy as np

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.group import Group
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.engine.graph import Pattern

CHUNKS = 16
"""Pieces in which the buffer goes up and down, so that both ways are used at once."""


@registered
class Nvls(Algorithm):
    """All-reduce in the switch that joins all members: an edge up and an edge down for each, and between them one of no
    bytes within the switch, which waits for all that go up and for which all wait that go down."""

    kinds = ("all_reduce",)
    placed = True

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`.

        Raises:
            InputError: no switch joins all members.
        """
        if members > 1 and (group is None or group.switch < 0):
            raise InputError(
                "collective algorithm 'nvls' needs one switch that joins all members of the group: "
                "use auto, ring or tree"
            )
        n = members if members > 1 and size else 0
        sums = 1 if n else 0  # edges within the switch
        member, switch = np.arange(n), np.full(n, members)
        within = np.full(sums, members)
        moved = np.full(n, part(size + part(size, members), CHUNKS))
        edges = 2 * n + sums
        waits = np.concatenate([np.zeros(n), np.full(sums, n), np.ones(n)])  # how many others each edge needs
        needs = Ragged(
            np.append(member, np.full(n, n)).astype(np.int32), np.append(0, np.cumsum(waits)).astype(np.int64)
        )
        pattern = Pattern(
            members,
            np.concatenate([member, within, switch]).astype(np.int32),
            np.concatenate([switch, within, member]).astype(np.int32),
            np.concatenate([moved, np.zeros(sums), moved]).astype(np.int64),
            np.full(edges, CHUNKS, np.int32),
            needs,
            np.zeros(len(needs.values), np.int32),
            np.zeros(edges, np.int64),
            members + 1,
        )
        return CollectiveSchedule(pattern, tuple(range(members)))
