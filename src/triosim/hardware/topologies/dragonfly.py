"""Groups of routers that look like one router of many ports each."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topologies._bundles import bundled
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape, checked_sides, nearest_shape


@registered
@dataclass(frozen=True)
class Dragonfly(Topology):
    """Routers of a group are joined to each other, and each group to every other group (Kim, Dally, Scott, Abts:
    Technology-driven, highly-scalable dragonfly topology, ISCA 2008).

    The shape is groups x routers of a group x devices of a router, ``g x a x p`` in the paper.  By default the one
    closest to the paper's balance, a = 2 p = 2 h with g = a h + 1.  Every link, local and global, is like that of a
    device; several between two routers are one edge with the sum of their bandwidth.

    The global links of a group are dealt out to the other groups in equal numbers, the first to the group after it and
    so on round, and to its routers in order; what does not divide is left unused.

    Attributes:
        global_links: of each router (``h``); by default just enough to reach every other group.
    """

    global_links: Annotated[int, AtLeast(1)] | None = None

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device and its router, or two routers."""
        groups, routers, own = self._shape(devices, shape)
        if devices == 1:
            return Fabric.of(1)
        number = np.arange(devices)
        down = Edges.both_ways(number, devices + number // own, link, back=link.paid())
        wire = replace(link, overhead=0.0)
        first = devices + routers * np.arange(groups)[:, None]
        a, b = np.triu_indices(routers, 1)
        local = Edges.both_ways((first + a).reshape(-1), (first + b).reshape(-1), wire)
        return Fabric(
            devices, groups * routers, Edges.join([down, local, *self._global(groups, routers, devices, wire)])
        )

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        groups, routers, own = self._shape(devices, shape)
        across = groups * routers * (self.global_links or -(-max(groups - 1, 1) // routers)) // 2
        return TopologySize(devices + groups * routers * (routers - 1) // 2 + across, routers * own)

    def _shape(self, devices: int, shape: Shape | None) -> Shape:
        if shape is None:
            p = (devices / 4) ** 0.25  # devices = g a p = (2 p^2 + 1) 2 p p
            shape = nearest_shape(devices, (2 * p * p + 1, 2 * p, p))
        sides = checked_sides("dragonfly", shape, "groups", "routers of a group", "devices of a router")
        return checked_shape("dragonfly", devices, sides)

    def _global(self, groups: int, routers: int, devices: int, wire: Link) -> list[Edges]:
        """The links between groups: port k of a group leads to the group ``k % (groups - 1) + 1`` further round."""
        others = groups - 1
        if not others:
            return []
        wanted = self.global_links or -(-others // routers)
        if routers * wanted < others:
            raise InputError(
                f"topology dragonfly: {routers} routers of {wanted} global links reach {routers * wanted} of {others} "
                f"other groups: give at least {-(-others // routers)} global_links"
            )
        ports = routers * wanted // others * others
        group, port = (side.reshape(-1) for side in np.meshgrid(np.arange(groups), np.arange(ports), indexing="ij"))
        ahead = port % others + 1
        back = port - (ahead - 1) + (others - ahead)  # the port by which the other group leads back here
        other = (group + ahead) % groups
        once = group < other

        def router(group: NDArray[Any], port: NDArray[Any]) -> NDArray[Any]:
            number: NDArray[Any] = devices + group * routers + port * routers // ports
            return number

        return [bundled(router(group, port)[once], router(other, back)[once], wire)]
