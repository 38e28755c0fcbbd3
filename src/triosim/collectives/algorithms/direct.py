"""Direct: every part goes straight to where it belongs, all at once."""

from __future__ import annotations

from triosim.collectives.algorithm import Algorithm, Schedule, part, rooted
from triosim.collectives.group import Group
from triosim.collectives.pattern import exchange, from_first, to_first
from triosim.registry import registered


@registered
class Direct(Algorithm):
    """N - 1 transfers to or from the root, or from everyone to everyone, that start together and share their links."""

    kinds = ("gather", "scatter", "all_to_all")

    def schedule(self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None) -> Schedule:
        """See :meth:`Algorithm.schedule`."""
        each = part(size, members)
        if kind == "all_to_all":
            return Schedule(exchange(members, each), tuple(range(members)))
        return Schedule((to_first if kind == "gather" else from_first)(members, each), rooted(members, root))
