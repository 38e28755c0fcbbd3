"""Devices around one switch."""

from __future__ import annotations

import numpy as np

from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, no_shape


@registered
class Switch(Topology):
    """Each device has one full-duplex link to a switch that never limits: ``n`` links.

    ``link`` is what one device can send and at the same time receive.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device and the switch."""
        no_shape("switch", shape)
        if devices == 1:
            return Fabric.of(1)
        ports = np.arange(devices)
        return Fabric(devices, 1, Edges.both_ways(ports, np.full(devices, devices), link, back=link.paid()))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(devices, 1)
