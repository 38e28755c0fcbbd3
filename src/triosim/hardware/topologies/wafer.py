"""Dies on a wafer."""

from __future__ import annotations

import math

import numpy as np

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape, Topology, TopologySize, checked_sides, format_shape


@registered
class Wafer(Topology):
    """A two-dimensional mesh of dies, each linked to its neighbours, with any number of dies: the last row may be short
    (wafer-scale GPUs: Pal and others, Architecting Waferscale Processors, HPCA 2019).

    The shape is rows x columns, ``(12, 7)``; by default as many rows as columns, or one fewer.
    """

    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """See :meth:`Topology.build`; ``link`` joins two neighbours."""
        columns = self._columns(devices, shape)
        die = np.arange(devices)
        beside = die[(die % columns != columns - 1) & (die + 1 < devices)]
        below = die[: max(devices - columns, 0)]
        links = [Edges.both_ways(beside, beside + 1, link), Edges.both_ways(below, below + columns, link)]
        return Fabric(devices, 0, Edges.join(links))

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """See :meth:`Topology.size`."""
        return TopologySize(2 * devices, devices)

    def _columns(self, devices: int, shape: Shape | None) -> int:
        if shape is None:
            return math.isqrt(devices - 1) + 1
        rows, columns = checked_sides("wafer", shape, "rows", "columns")
        least, most = (rows - 1) * columns + 1, rows * columns
        if not least <= devices <= most:
            raise InputError(
                f"topology wafer: shape {format_shape(shape)} holds {least} to {most} dies, not {devices}: "
                f"with {columns} columns give {-(-devices // columns)} rows"
            )
        return columns
