"""The interface of network models: which flow ends when, while flows share a network.

A model knows links and flows and nothing else.  It is asked once at each instant at which flows start or end, with all
that changed at that instant.  Two kinds can be written:

* :class:`Sharing`: links are shared, each flow has a rate until the next change.  ``rates`` answers with those that
  change; the arithmetic of when a flow ends is done here, exactly.
* :class:`NetworkModel`: anything else.  ``change`` answers with the ticks at which flows end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import index
from typing import NamedTuple, SupportsIndex

from triosim.core.errors import InputError
from triosim.core.registry import Registry
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.graph import CAPACITY_PER_BYTE, EngineNetwork

WORK_PER_BYTE = CAPACITY_PER_BYTE * PICOSECONDS_PER_SECOND
"""What serving one byte takes, in units of (1/1024 byte per second) x (1 picosecond)."""

NEVER = -1
"""The end of a flow that stands still."""


class Flow(NamedTuple):
    """A transfer that joins the network.

    Attributes:
        number: by which the engine knows it; never used twice in a run.  Numbers go up with the tick of joining, and at
            one tick in the order of the graph: transfers inside collectives by instance and edge, then TRANSFER tasks
            by row.  So they are the same on every engine, and a model that must serve one of two equal flows first
            can go by them.
        links: of its route, in order, at least one, none twice, only those that limit.
        weights: beside ``links``: how many times it counts on each.
        work: what is to be served, bytes x :data:`WORK_PER_BYTE` (less what was served before it joined).
        latency: of its route in ticks.
    """

    number: int
    links: tuple[int, ...]
    weights: tuple[int, ...]
    work: int
    latency: int


class NetworkModel(ABC):
    """When flows end.  One subclass a file in ``engine/solvers``.

    An answer must not depend on the order in which flows are listed, and on their numbers only where flows are equal
    in everything else.

    Attributes:
        alone_at_capacity: whether a flow that shares none of its links always runs at the smallest capacity among
            them (divided by its weight there, rounded down, at least 1), whatever it was doing before; rates depend on
            nothing but which flows are on which links; and ``pays_latency`` is False.  Only then may the engine
            advance a collective that is alone without asking, and let its flows join with what is left of them when
            it no longer is.
        weighted: whether weights are understood; only then may a job be folded.
        pays_latency: whether the model counts the latency of routes itself.  If not, a flow joins when its latency
            has passed.  (What never comes to a model, having no bytes or no link that limits, waits for its latency
            in any case.)
        wake: tick at which the model wants to be asked again although no flow starts or ends then, or None.  It is
            read after each question; a wish of before is forgotten.
    """

    alone_at_capacity: bool = False
    weighted: bool = False
    pays_latency: bool = False
    wake: int | None = None

    @abstractmethod
    def start(self, network: EngineNetwork) -> None:
        """A run begins at tick 0 with no flows: forget everything before."""

    @abstractmethod
    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        """What changes at tick ``now``.

        Args:
            now: the tick, in picoseconds; never decreases.
            joined: flows that start now.
            left: numbers of flows that ended now, at the tick that this model named.

        Returns:
            ``(number, tick)`` for each flow whose end is new or another than before, every one that joined
            among them: later than ``now``, or :data:`NEVER` while it stands still.
        """


SOLVERS = Registry("triosim.engine.solvers", "triosim.solvers", "network model", NetworkModel)
"""Network models by name."""


class Sharing(NetworkModel):
    """Links are shared and a flow has one rate between two changes.

    Rates are whole multiples of 1/1024 byte per second.
    """

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`; ``capacity`` holds that of each link."""
        self.capacity: list[int] = network.capacity.tolist()
        self._served: dict[int, tuple[int, int, int, int]] = {}  # flow -> (most, rate, work left, since)

    @abstractmethod
    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        """The rates that change at tick ``now`` and hold until a later call changes them.

        Returns:
            rate of each flow whose rate changes, at least of every one that joined.  At rate 0 a flow stands still.
            Anything but a whole number from 0 to the smallest capacity on the flow's route is an InputError.  What
            flows get of a link together is not checked: a model may leave contention out (``uncontended``).
        """

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        """See :meth:`NetworkModel.change`: a flow with ``left`` work at ``rate`` ends ``ceil(left / rate)`` later."""
        served = self._served
        for number in left:
            del served[number]
        for flow in joined:
            served[flow.number] = (max(min(self.capacity[link] for link in flow.links), 1), 0, flow.work, now)
        ends = []
        for number, given in self.rates(now, joined, left).items():
            most, rate, work, since = served[number]
            new = given if type(given) is int and 0 <= given <= most else self._rate(given, most)
            work -= rate * (now - since)
            served[number] = (most, new, work, now)
            ends.append((number, now - (-work // new) if new else NEVER))
        return ends

    def _rate(self, given: object, most: int) -> int:
        said = f"network model {type(self).__name__} gave a transfer the rate {given!r}"
        if not isinstance(given, SupportsIndex) or index(given) < 0:
            raise InputError(f"{said}: rates are whole numbers of 1/1024 byte per second, 0 or more")
        if index(given) > most:
            raise InputError(f"{said} over a link of {most}, in 1/1024 byte per second: give at most what the link has")
        return index(given)
