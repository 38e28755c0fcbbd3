"""Trees of switches over devices, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim.hardware.system import Edges, Fabric, Link


def levels(counts: Sequence[int], links: Sequence[Link]) -> Fabric:
    """A tree from its numbers of nodes, devices first and the one root last.

    Nodes of a level are shared out among the nodes above as evenly as can be, neighbours together.  Switches are
    numbered from the root down.

    Args:
        counts: nodes of each level, ``counts[0]`` the devices, ``counts[-1]`` 1.
        links: link from each level to the one above, ``len(counts) - 1`` of them.  Every edge carries its latency
            except those from a switch down to a device (see :mod:`triosim.hardware.topology`); the overhead is carried
            by the edges from devices up.
    """
    devices = counts[0]
    switches = sum(counts[1:])
    if devices == 1:
        return Fabric.of(1)
    first = [0, *(devices + sum(counts[level + 1 :]) for level in range(1, len(counts)))]
    parts = []
    for level, link in enumerate(links):
        below = np.arange(counts[level])
        above = first[level + 1] + below * counts[level + 1] // counts[level]
        if level == 0:
            parts.append(Edges.both_ways(below, above, link, back=link.paid()))
        else:
            parts.append(Edges.both_ways(first[level] + below, above, replace(link, overhead=0.0)))
    return Fabric(devices, switches, Edges.join(parts), roots=(first[-1],))
