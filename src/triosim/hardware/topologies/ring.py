"""Devices in a circle."""

from __future__ import annotations

import numpy as np

from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, no_shape


@registered
class RingTopology(Topology):
    """Each device has a full-duplex link to the next, the last to the first: ``n`` links, one link for two devices."""

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins two neighbours."""
        no_shape("ring", shape)
        # Two devices have one cable between them, not one for each way round.
        left = np.arange(devices if devices > 2 else devices - 1)
        return Fabric(devices, 0, Edges.both_ways(left, (left + 1) % devices, link))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(devices, 1)
