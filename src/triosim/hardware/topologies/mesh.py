"""Devices on a grid."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._grid import grid
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape


@registered
class MeshTopology(Topology):
    """Rows and columns, each device linked to its neighbours: ``2 r c - r - c`` links.

    Three dimensions with a shape of three sides.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins two neighbours; the default shape is as square as can be."""
        return grid(checked_shape("mesh", devices, shape), link, wrap=False)

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(len(checked_shape("mesh", devices, shape)) * devices, devices)
