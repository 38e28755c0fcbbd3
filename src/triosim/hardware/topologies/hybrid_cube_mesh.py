"""Eight GPUs as in a DGX-1: two squares with all diagonals, joined corner to corner."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topologies._bundles import bundled
from triosim.hardware.topology import Shape, Topology, no_shape

_SINGLE = [*((a + square, b + square) for square in (0, 4) for a in range(4) for b in range(a + 1, 4))]
_SINGLE += [(gpu, gpu + 4) for gpu in range(4)]
_SECOND = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]


@registered
@dataclass(frozen=True)
class HybridCubeMesh(Topology):
    """Each device is linked to the three others of its square and to one of the other square.

    With six links a device, as V100 has, eight pairs have two links (NCCL's topology of a DGX-1V); with four, as
    P100, none (NVIDIA DGX-1 with Tesla V100 system architecture, whitepaper WP-08437, figure 4).  With fewer than
    eight devices it is the first of them.

    Attributes:
        links: of one device, 6 or 4.
    """

    links: Annotated[int, AtLeast(1)] = 6

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` is one physical link."""
        no_shape("hybrid-cube-mesh", shape)
        if devices > 8:
            raise InputError(f"topology hybrid-cube-mesh joins up to 8 devices, not {devices}: take torus instead")
        if self.links not in (4, 6):
            raise InputError(f"topology hybrid-cube-mesh: links must be 4 or 6, got {self.links}")
        pairs = np.array(_SINGLE + (_SECOND if self.links == 6 else []))
        a, b = pairs[(pairs < devices).all(axis=1)].T
        return Fabric(devices, 0, bundled(a, b, link))
