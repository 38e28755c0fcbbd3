"""Communication of a job: collectives and transfers on the links of a System, for the network layer to place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.group import Group
from triosim.collectives.groups import describe
from triosim.collectives.measured import MeasuredCollectives
from triosim.collectives.scheduling import Collectives
from triosim.core.caching import kept
from triosim.core.units import picoseconds
from triosim.hardware.system import System
from triosim.network.routes import Router
from triosim.network.traffic import RoutedCollective


class CollectiveCommunication:
    """Collectives as :class:`Collectives` does them, with groups described by the System they are on.

    Args:
        system, router: the machine.
        collectives: how they are done.
        measured: what they take beside their links, where that was measured on the machine itself.
        more_s: seconds that each collective takes more, as measured iterations show (a residual of composition).
    """

    def __init__(
        self,
        system: System,
        router: Router,
        collectives: Collectives,
        measured: MeasuredCollectives | None = None,
        more_s: float = 0.0,
    ) -> None:
        self.system, self.router, self.collectives, self.measured = system, router, collectives, measured
        self.more_s = more_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectiveCommunication) and other._facts == self._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple:
        """What answers depend on; measured tables are those of the very object."""
        return (
            self.router,
            self.collectives,
            self.measured if self.measured is None else id(self.measured),
            self.more_s,
        )

    def collective(self, kind: str, devices: NDArray[np.int64], size: int, root: int) -> RoutedCollective:
        """See :class:`triosim.network.traffic.CommunicationModel`."""
        made = self.collectives.schedule(kind, self._group(devices), size, root)
        delay = made.delay_s if self.measured is None else self.measured.collective(kind, devices, size)
        # The network of a group in one server is that server's switch, wherever the group is.
        places = (0,) * len(made.nodes)
        ticks = picoseconds(delay + self.more_s, f"what software adds to an {kind} of {size} bytes")
        return RoutedCollective(made.pattern, made.order, ticks, places, made.algorithm, made.protocol, made.source)

    def transfer(self, source: int, target: int, size: int) -> int:
        """See :class:`triosim.network.traffic.CommunicationModel`."""
        if self.measured is not None:
            added = self.measured.transfer(size)
        else:
            added = self.collectives.transfer(self._group(np.array([source, target])), size)
        return picoseconds(added, f"what software adds to a transfer of {size} bytes")

    def _group(self, devices: NDArray[np.int64]) -> Group:
        return _described(self.router, np.asarray(devices, np.int64).tobytes())


@kept(512)
def _described(router: Router, devices: bytes) -> Group:
    return describe(router.system, router, np.frombuffer(devices, np.int64))
