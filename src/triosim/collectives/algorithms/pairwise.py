"""Pairwise exchange: in step s everyone sends to the member s + 1 places on, so that nobody gets from two at once."""

from __future__ import annotations

from triosim.collectives.algorithm import Algorithm, Schedule, part
from triosim.engine.graph import Send, Steps
from triosim.registry import registered


@registered
class Pairwise(Algorithm):
    """All-to-all in N - 1 steps, each a permutation (Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005)."""

    kinds = ("all_to_all",)

    def schedule(self, kind: str, members: int, size: int, root: int = 0) -> Schedule:
        """See :meth:`Algorithm.schedule`."""
        steps = Steps(members, members - 1, part(size, members), Send.SHIFT, shift=1, stride=1)
        return Schedule(steps, tuple(range(members)))
