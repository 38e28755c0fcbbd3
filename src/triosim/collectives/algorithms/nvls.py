"""NVLS: the switch adds up what all members hold, and sends the sum to all (NVLink SHARP).

Every member owns one part of the buffer.  It reads the sum of that part from the switch, which fetches the part from
all members, and writes it to the switch, which passes it on to all.  So each member sends the whole buffer and its part
once, and receives as much (NVIDIA, "NVLink SHARP", PTX ``multimem``).
"""

from __future__ import annotations

import numpy as np

from triosim.collectives.algorithm import Algorithm, Schedule, part
from triosim.collectives.group import Group
from triosim.columns import Ragged
from triosim.engine.graph import Pattern
from triosim.errors import InputError
from triosim.registry import registered

CHUNKS = 16
"""Pieces in which the buffer goes up and down, so that both ways are used at once."""


@registered
class Nvls(Algorithm):
    """All-reduce in the switch that joins all members: an edge up and an edge down for each."""

    kinds = ("all_reduce",)

    def schedule(self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None) -> Schedule:
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
        member, switch = np.arange(n, dtype=np.int32), np.full(n, members, np.int32)
        moved = part(size + part(size, members), CHUNKS)
        needs = Ragged(np.tile(member, n), np.concatenate([np.zeros(n), np.arange(n + 1) * n]).astype(np.int64))
        pattern = Pattern(
            members, np.concatenate([member, switch]), np.concatenate([switch, member]),
            np.full(2 * n, moved, np.int64), np.full(2 * n, CHUNKS, np.int32), needs,
            np.zeros(n * n, np.int32), np.zeros(2 * n, np.int64), members + 1,
        )  # fmt: skip
        return Schedule(pattern, tuple(range(members)))
