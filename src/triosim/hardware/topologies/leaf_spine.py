"""Leaves and spines, each spine for itself."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast, GreaterThan
from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._leaves import leaves_and_spines
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_shape, checked_sides, not_twice


@registered
@dataclass(frozen=True)
class LeafSpine(Topology):
    """Devices under leaf switches, and every leaf joined to every spine: a folded Clos network of two levels (Al-Fares,
    Loukissas, Vahdat: A scalable, commodity data center network architecture, SIGCOMM 2008).

    The shape is leaves x devices of a leaf: ``(8, 32)`` is 8 leaves of 32 devices; by default as square as can be.

    With several spines a transfer crosses one of them, chosen by the routing; flows that meet on an uplink share it.
    One spine stands for all of them together, as in ``fat-tree``.

    Attributes:
        leaf: devices of a leaf, instead of a shape; the last leaf may have fewer.
        oversubscription: what the devices of a leaf can send over what its uplinks carry together.
        spines: how many; each has an equal part of a leaf's uplinks.
    """

    leaf: Annotated[int, AtLeast(1)] | None = None
    oversubscription: Annotated[float, GreaterThan(0)] = 1.0
    spines: Annotated[int, AtLeast(1)] = 1

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins a device and its leaf."""
        return leaves_and_spines(
            np.arange(devices) // self._leaf(devices, shape), self.spines, link, self.oversubscription
        )

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        own = self._leaf(devices, shape)
        leaves = -(-devices // own)
        alike = devices % own == 0
        return TopologySize(devices + leaves * self.spines, 1 if leaves == 1 else own if alike else devices)

    def _leaf(self, devices: int, shape: Shape | None) -> int:
        """Devices of a leaf."""
        if shape is not None:
            not_twice("leaf-spine", shape, leaf=self.leaf)
            checked_sides("leaf-spine", shape, "leaves", "devices of a leaf")
        return self.leaf or checked_shape("leaf-spine", devices, shape)[1]
