"""Equal-cost multi-path: a hash decides."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.network.routing import Routing


@registered
@dataclass(frozen=True)
class Ecmp(Routing):
    """Each pair of nodes is hashed onto its equal best routes (RFC 2992: hash of the flow's ends, modulo their number).

    All transfers of a pair take one route, as the packets of one flow do; the hash depends on source, target and seed
    and on nothing else.

    Attributes:
        seed: another one spreads the pairs differently.
        pxn: see :class:`Routing`.
    """

    spreads: ClassVar[bool] = True
    seed: Annotated[int, AtLeast(0)] = 0
    pxn: bool = True

    def which(
        self, source: NDArray[np.int64], target: NDArray[np.int64], count: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """See :meth:`Routing.which`."""
        mixed = _mix(np.full(len(source), self.seed % 2**64, np.uint64))
        for end in (source, target):
            mixed = _mix(mixed + end.astype(np.uint64))
        return (mixed % count.astype(np.uint64)).astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step and finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
    2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
