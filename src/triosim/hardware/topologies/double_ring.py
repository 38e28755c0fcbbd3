"""Devices in two circles, side by side."""

from __future__ import annotations

import numpy as np

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, no_shape


@registered
class DoubleRing(Topology):
    """Two rings of half the devices each, and a link between each device and its like in the other ring: ``3 n / 2``
    links, of which any one may fail.

    Devices ``0 .. n / 2 - 1`` are one ring, the others the other.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins two neighbours."""
        no_shape("double-ring", shape)
        if devices == 1:
            return Fabric.of(1)
        if devices % 2:
            raise InputError(f"topology double-ring is two equal rings: give {devices + 1} devices, not {devices}")
        half = devices // 2
        left = np.arange(half if half > 2 else half - 1)  # as in a single ring, two devices have one cable
        rings = [Edges.both_ways(first + left, first + (left + 1) % half, link) for first in (0, half)]
        return Fabric(devices, 0, Edges.join([*rings, Edges.both_ways(np.arange(half), half + np.arange(half), link)]))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(devices * 3 // 2, devices)
