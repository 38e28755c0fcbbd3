"""Devices on a grid whose edges meet."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._grid import grid
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape


@registered
class Torus(Topology):
    """A mesh in which the ends of each row and column are linked too.

    A row of ``k`` devices has ``k`` links, a row of two has one, a row of one none.  Three dimensions with a shape of
    three sides, as in TPU v4 and v5p.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins two neighbours; the default shape is as square as can be."""
        return grid(checked_shape("torus", devices, shape), link, wrap=True)

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(len(checked_shape("torus", devices, shape)) * devices, devices)
