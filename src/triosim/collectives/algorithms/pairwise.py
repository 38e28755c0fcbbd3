"""Pairwise exchange: in step s everyone sends to the member s + 1 places on, so that nobody gets from two at once."""

from __future__ import annotations

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.group import Group
from triosim.collectives.pattern import rounds
from triosim.core.registry import registered


@registered
class Pairwise(Algorithm):
    """All-to-all in N - 1 steps, each a permutation (Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005)."""

    kinds = ("all_to_all",)

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`."""
        return CollectiveSchedule(rounds(members, part(size, members)), tuple(range(members)))
