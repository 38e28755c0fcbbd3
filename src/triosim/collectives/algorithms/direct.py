"""Direct: every part goes straight to where it belongs, all at once."""

from __future__ import annotations

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part, rooted
from triosim.collectives.group import Group
from triosim.collectives.pattern import exchange, from_first, to_first
from triosim.core.dataclass import dataclass
from triosim.core.registry import registered


@registered
@dataclass(frozen=True)
class Direct(Algorithm):
    """N - 1 transfers to or from the root, or from everyone to everyone, that start together and share their links.

    Attributes:
        peers: to how many each member of an all-to-all sends at a time, and from how many it gets; all at once if
            None.  NCCL has at most 8 sends and 8 receives in one batch of work of a channel
            (``NCCL_MAX_DEV_WORK_P2P_PER_BATCH`` in its ``src/include/device.h``), and its channels work side by side.
    """

    peers: int | None = None

    kinds = ("gather", "scatter", "all_to_all")

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`."""
        each = part(size, members)
        if kind == "all_to_all":
            return CollectiveSchedule(exchange(members, each, self.peers), tuple(range(members)))
        return CollectiveSchedule((to_first if kind == "gather" else from_first)(members, each), rooted(members, root))
