"""Leaf switches under a spine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.system import Edges, Fabric, Link


def leaves_and_spines(leaf: NDArray[Any], spines: int, link: Link, oversubscription: float) -> Fabric:
    """Devices at leaf switches, each leaf joined to each spine; spines are numbered before leaves.

    The uplinks of a leaf together carry what its devices can send, divided by ``oversubscription``, in equal parts to
    each spine.  A single leaf has no spine above it.

    Args:
        leaf: of each device, shape ``(devices,)``; the fullest says what the uplinks of each carry.
        spines: how many.
        link: between a device and its leaf.
    """
    devices, leaves = len(leaf), int(leaf.max()) + 1
    if devices == 1:
        return Fabric.of(1)
    spines = spines if leaves > 1 else 0
    down = Edges.both_ways(np.arange(devices), devices + spines + leaf, link, back=link.paid())
    up, spine = (side.reshape(-1) for side in np.meshgrid(np.arange(leaves), np.arange(spines), indexing="ij"))
    uplink = replace(link.scaled(int(np.bincount(leaf).max()) / max(spines, 1), oversubscription), overhead=0.0)
    above = [Edges.both_ways(devices + spines + up, devices + spine, uplink)] if spines else []
    return Fabric(devices, spines + leaves, Edges.join([down, *above]))
