"""How the ranks of a job talk: collectives and transfers on the links of a System, for the network layer to place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.group import Group
from triosim.collectives.groups import describe
from triosim.collectives.measured import Measured
from triosim.collectives.scheduling import Collectives
from triosim.core.units import picoseconds
from triosim.hardware.system import System
from triosim.network.routes import Router
from triosim.network.traffic import Scheduled


class CollectiveMeans:
    """Collectives as :class:`Collectives` does them, with groups described by the System they are on.

    Args:
        system, router: the machine.
        collectives: how they are done.
        measured: what they take beside their links, where that was measured on the machine itself.
        more_s: seconds that each collective takes more, as measured iterations show (a residual of composition).

    Attributes:
        sources: where the costs of what was used are from, in words.
    """

    def __init__(
        self,
        system: System,
        router: Router,
        collectives: Collectives,
        measured: Measured | None = None,
        more_s: float = 0.0,
    ) -> None:
        self.system, self.router, self.collectives, self.measured = system, router, collectives, measured
        self.more_s = more_s
        self._groups: dict[bytes, Group] = {}
        self.sources: dict[str, None] = {measured.source: None} if measured is not None else {}

    def collective(self, kind: str, devices: NDArray[np.int64], size: int, root: int) -> Scheduled:
        """See :class:`triosim.network.traffic.Means`."""
        made = self.collectives.schedule(kind, self._group(devices), size, root)
        if made.source:
            self.sources[made.source] = None
        delay = made.delay_s if self.measured is None else self.measured.collective(kind, devices, size)
        # The network of a group in one server is that server's switch, wherever the group is.
        places = (0,) * len(made.nodes)
        ticks = picoseconds(delay + self.more_s, f"what software adds to an {kind} of {size} bytes")
        return Scheduled(made.pattern, made.order, ticks, places, made.algorithm, made.protocol)

    def transfer(self, source: int, target: int, size: int) -> int:
        """See :class:`triosim.network.traffic.Means`."""
        if self.measured is not None:
            added = self.measured.transfer(size)
        else:
            added = self.collectives.transfer(self._group(np.array([source, target])), size)
        return picoseconds(added, f"what software adds to a transfer of {size} bytes")

    def _group(self, devices: NDArray[np.int64]) -> Group:
        key = devices.tobytes()
        if key not in self._groups:
            self._groups[key] = describe(self.system, self.router, devices)
        return self._groups[key]
