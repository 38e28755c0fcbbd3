"""Always the same of the best routes."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.network.routing import Routing


@registered
@dataclass(frozen=True)
class Shortest(Routing):
    """The lowest of the best routes: from each node on to the lowest-numbered node, over the lowest-numbered edge."""

    pxn: bool = True
