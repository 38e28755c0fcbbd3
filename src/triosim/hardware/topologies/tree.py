"""A tree of switches whose links are all alike, as PCIe is."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._levels import levels
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape

FAN_OUT = 4
"""Nodes under one switch by default: a 96- or 98-lane PCIe switch (Broadcom PEX8796, PEX88096) serves four x16 devices
beside its x16 uplink and one x16 slot for a NIC, which is how 8-GPU PCIe servers are built."""


@registered
class TreeTopology(Topology):
    """A root and switches; every link has the same bandwidth, so devices share the uplink of their switch.

    The shape is the fan-outs from the root down: ``(2, 4)`` is a root with two switches of four devices each, ``(4,)``
    four devices at the root itself.  By default as many levels as a fan-out of 4 needs, evenly filled.  A host joins at
    the root.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device and a switch or two switches."""
        counts = [devices]
        if shape is None:
            while counts[-1] > 1 or len(counts) == 1:
                counts.append(-(-counts[-1] // FAN_OUT))
        else:
            for fan_out in reversed(checked_shape("tree", devices, shape)):
                counts.append(counts[-1] // fan_out)
        return levels(counts, [link] * (len(counts) - 1))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(2 * devices, devices)
