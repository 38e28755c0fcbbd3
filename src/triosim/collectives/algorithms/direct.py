"""Direct: every part goes straight to where it belongs, all at once."""

from __future__ import annotations

from triosim.collectives.algorithm import Algorithm, Schedule, part, rooted
from triosim.engine.graph import Send, Steps
from triosim.registry import registered


@registered
class Direct(Algorithm):
    """N - 1 transfers to or from the root, or from everyone to everyone, that start together and share their links."""

    kinds = ("gather", "scatter", "all_to_all")

    def schedule(self, kind: str, members: int, size: int, root: int = 0) -> Schedule:
        """See :meth:`Algorithm.schedule`."""
        each, others = part(size, members), members - 1
        if kind == "all_to_all":
            steps = Steps(members, others, each, Send.SHIFT, shift=1, stride=1, wait=False)
            return Schedule(steps, tuple(range(members)))
        if kind == "gather":
            return Schedule(Steps(members, min(others, 1), each, Send.TO_FIRST), rooted(members, root))
        return Schedule(Steps(members, others, each, Send.FROM_FIRST, wait=False), rooted(members, root))
