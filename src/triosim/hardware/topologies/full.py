"""Every device joined to every other."""

from __future__ import annotations

import numpy as np

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, no_shape

MOST_DEVICES = 4096
"""More would be over eight million links, which no machine has and no memory wants."""


@registered
class Full(Topology):
    """A full-duplex link between each pair of devices: ``n (n - 1) / 2`` links."""

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins one pair."""
        no_shape("full", shape)
        if devices > MOST_DEVICES:
            raise InputError(f"topology full joins up to {MOST_DEVICES} devices, not {devices}: take switch instead")
        a, b = np.triu_indices(devices, 1)
        return Fabric(devices, 0, Edges.both_ways(a, b, link))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(devices * (devices - 1) // 2 if devices <= MOST_DEVICES else 0, 1)
