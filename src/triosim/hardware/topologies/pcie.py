"""PCIe of a server: CPU sockets, switches and devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.hardware import catalog
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape, checked_sides

FAN_OUT = 4
"""Devices under one switch by default, as in ``tree``."""


@registered
@dataclass(frozen=True)
class Pcie(Topology):
    """Devices under PCIe switches under the root complexes of CPU sockets, which a socket link joins.

    The shape is sockets x switches of a socket x devices of a switch: ``(2, 2, 2)`` is the usual server of eight.  Each
    switch has one uplink like that of a device, which its devices share; a single device needs no switch and has a port
    of the root complex.  By default two sockets from five devices up, and switches of four devices where that divides.
    A host joins at every root complex: memory is interleaved between the sockets.

    Attributes:
        socket_link: link of the catalog between two sockets.
    """

    socket_link: str = "UPI-3"

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device, a switch and a root complex."""
        sockets, switches, own = self._shape(devices, shape)
        if devices == 1:
            return Fabric.of(1)
        between = catalog.link_facts(self.socket_link).link()
        roots, number = devices + np.arange(sockets), np.arange(devices)
        parts = []
        above = roots[number // (switches * own)]
        hubs = sockets * switches if own > 1 else 0
        if hubs:
            hub = devices + sockets + np.arange(hubs)
            parts.append(Edges.both_ways(hub, roots[np.arange(hubs) // switches], replace(link, overhead=0.0)))
            above = hub[number // own]
        parts.append(Edges.both_ways(number, above, link, back=link.paid()))
        a, b = np.triu_indices(sockets, 1)
        parts.append(Edges.both_ways(roots[a], roots[b], replace(between, overhead=0.0)))
        return Fabric(devices, sockets + hubs, Edges.join(parts), tuple(roots.tolist()))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        sockets, switches, _ = self._shape(devices, shape)
        return TopologySize(devices + sockets * switches + sockets * (sockets - 1) // 2, devices)

    def _shape(self, devices: int, shape: Shape | None) -> Shape:
        if shape is None:
            sockets = 2 if devices > FAN_OUT and devices % 2 == 0 else 1
            each = devices // sockets
            shape = (sockets, each // FAN_OUT, FAN_OUT) if each % FAN_OUT == 0 else (sockets, 1, each)
        sides = checked_sides("pcie", shape, "sockets", "switches of a socket", "devices of a switch")
        return checked_shape("pcie", devices, sides)
