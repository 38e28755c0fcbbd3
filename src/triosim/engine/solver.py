"""The interface of sharing solvers: which flow runs at which rate while links are shared.

A solver knows links and flows and nothing else.  It is asked once at each instant at which flows start or
end, with all that changed at that instant, and answers with the rates that change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from triosim.registry import Registry

SOLVERS = Registry("triosim.engine.solvers", "triosim.solvers", "sharing solver")
"""Sharing solvers by name."""


class Solver(ABC):
    """Shares links among flows.  One subclass a file in ``engine/solvers``.

    Flows are known by whole numbers that the engine hands out; a number is never used twice in a run.  Rates and
    capacities are whole multiples of 1/1024 byte per second.  An answer must not depend on the numbers of
    flows or on the order in which they are listed.

    Attributes:
        alone_at_capacity: whether a flow that shares none of its links always runs at the smallest capacity among
            them.  Only then may the engine advance a collective that is alone without asking.
        wake: tick at which the solver wants to be asked again although no flow starts or ends then, or None.
    """

    alone_at_capacity: bool = True
    wake: int | None = None

    @abstractmethod
    def start(self, capacity: Sequence[int]) -> None:
        """A run begins at tick 0 with no flows: forget everything before.

        Args:
            capacity: of each link; links that never limit are never among the links of a flow.
        """

    @abstractmethod
    def share(self, now: int, joined: Mapping[int, Sequence[int]], left: Collection[int]) -> Mapping[int, int]:
        """The rates that change at tick ``now`` and hold until a later call changes them.

        Args:
            now: the tick, in picoseconds; never decreases.
            joined: flows that start to share now, each with its links (at least one, none twice, all limited).
            left: flows that ended now.

        Returns:
            Rate of each flow whose rate changes, at least of every one that joined.  A flow at rate 0 stands still.
        """
