"""One switch for the first NICs of all servers, one for the second NICs, and so on."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast, GreaterThan
from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._leaves import leaves_and_spines
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape, checked_sides, not_twice

RAILS = 8
"""NICs of a server at most, where nothing says how many: a DGX or HGX has one for each of eight GPUs."""


@registered
@dataclass(frozen=True)
class RailOptimised(Topology):
    """NIC i of every server of a group is on rail switch i of that group; spines join all rail switches (NVIDIA DGX
    SuperPOD reference architecture: a scalable unit of 32 servers has 8 leaves, one for each NIC).

    Devices are numbered along the NICs of a server first.  The shape is groups x servers of a group; by default one
    group.  Transfers between NICs of the same number stay in one switch.

    Attributes:
        server: NICs of one server, which is the number of rails; by default those that the server has,
            or up to 8.
        group: servers of a group, instead of a shape; the last group may have fewer.
        oversubscription: what the NICs of a rail switch can send over what its uplinks carry together.
        spines: how many; one stands for all of them together.
    """

    server: Annotated[int, AtLeast(1)] | None = None
    group: Annotated[int, AtLeast(1)] | None = None
    oversubscription: Annotated[float, GreaterThan(0)] = 1.0
    spines: Annotated[int, AtLeast(1)] = 1

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a NIC and its rail switch."""
        rails, own = self._shape(devices, shape)
        number = np.arange(devices)
        group = number // (rails * own)
        return leaves_and_spines(group * rails + number % rails, self.spines, link, self.oversubscription)

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        rails, own = self._shape(devices, shape)
        groups = -(-devices // (rails * own))
        alike = devices % (rails * own) == 0
        return TopologySize(
            devices + groups * rails * self.spines, 1 if groups == 1 else rails * own if alike else devices
        )

    def _shape(self, devices: int, shape: Shape | None) -> tuple[int, int]:
        """NICs of a server, and servers of a group."""
        rails = min(self.server, devices) if self.server else max(n for n in range(1, RAILS + 1) if devices % n == 0)
        if devices % rails:
            raise InputError(
                f"topology rail-optimised: {devices} devices are not servers of {rails}: give a multiple, or server"
            )
        servers = devices // rails
        if shape is not None:
            not_twice("rail-optimised", shape, group=self.group)
            checked_sides("rail-optimised", shape, "groups", "servers of a group")
        return rails, self.group or checked_shape("rail-optimised", servers, shape or (1, servers), of="servers")[1]
