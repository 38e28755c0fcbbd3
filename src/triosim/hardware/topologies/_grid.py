"""Grids of devices in any number of dimensions, with or without links around the edges."""

from __future__ import annotations

import math

import numpy as np

from triosim.hardware.system import Edges, Fabric, Link
from triosim.hardware.topology import Shape


def grid(shape: Shape, link: Link, wrap: bool) -> Fabric:
    """Devices on a grid, numbered along the last dimension first, each joined to its neighbours.

    With ``wrap`` the last device along a dimension is joined to the first, except along a side of two (they are
    neighbours already) or one.
    """
    count = math.prod(shape)
    places = np.arange(count).reshape(shape)
    parts = []
    for axis, side in enumerate(shape):
        along = np.moveaxis(places, axis, 0)
        a, b = along[:-1], along[1:]
        if wrap and side > 2:
            a, b = along, np.roll(along, -1, axis=0)
        parts.append(Edges.both_ways(a.reshape(-1), b.reshape(-1), link))
    return Fabric(places.size, 0, Edges.join(parts), torus=tuple(shape) if wrap else ())
