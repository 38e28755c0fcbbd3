"""Leaves and spines with as much bandwidth up as down."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.options import GreaterThan
from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._levels import levels
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape


@registered
@dataclass(frozen=True)
class FatTree(Topology):
    """Devices under leaf switches under a spine; the uplinks of a switch together carry what its devices can send, or
    a part of it.

    The uplinks of one switch are one edge with the sum of their bandwidth, and the spine is one node: what packet
    spraying or a conflict-free static map of flows reaches.  Unequal loads that hashing puts on parallel uplinks are
    not modelled.

    The shape is the fan-outs from the spine down: ``(8, 32)`` is 8 leaves of 32 devices.  By default two levels, as
    square as can be; more levels with a longer shape.

    Attributes:
        oversubscription: of each switch below the spine, what comes from below over what its uplinks carry.
    """

    oversubscription: Annotated[float, GreaterThan(0)] = 1.0

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device and its leaf."""
        # A switch with one node below it would only add a hop.
        fan_outs = [f for f in reversed(checked_shape("fat-tree", devices, shape)) if f > 1]
        counts, links = [devices], list[Link]()
        for fan_out in fan_outs:
            thinned = self.oversubscription ** len(links)
            links.append(link.scaled(devices // counts[-1], thinned))
            counts.append(counts[-1] // fan_out)
        return replace(levels(counts, links), roots=())

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        fan_outs = [f for f in checked_shape("fat-tree", devices, shape) if f > 1]
        return TopologySize(2 * devices, devices // max(fan_outs[:1], default=1))
