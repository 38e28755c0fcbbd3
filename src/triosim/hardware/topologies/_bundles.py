"""Several links between the same two nodes, used as one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.system import Edges, Link


def bundled(a: NDArray[Any], b: NDArray[Any], link: Link) -> Edges:
    """Full-duplex links between each ``a`` and the ``b`` beside it; a pair that is named ``k`` times gets one edge each
    way with ``k`` times the bandwidth."""
    pairs, counts = np.unique(np.stack([a, b], axis=1), axis=0, return_counts=True)
    parts = []
    for count in np.unique(counts).tolist():
        some = pairs[counts == count]
        parts.append(Edges.both_ways(some[:, 0], some[:, 1], link.scaled(count)))
    return Edges.join(parts)
