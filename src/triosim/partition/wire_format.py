"""Wire formats of parameters and gradients that replicas exchange, where they are not those in which they are kept.

Source: Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training" (arXiv:2306.10209):
quantized weights (section 3.1), a second copy of the parameters within a server for the backward (3.2), and gradients
that are quantized, exchanged within a server, added up, and so between servers (3.3).  Scales of blocks are left out.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class WireFormat:
    """What is sent instead of parameters and gradients as they are.

    Attributes:
        weight_bits: of an element of a gathered parameter; 0 for its own.
        gradient_bits: of an element of a gradient, which is then exchanged by all-to-alls instead of reduce-scattered;
            0 for its own, reduce-scattered.
        within, between: axes of the all-to-alls, of the ranks of a server and of those of the same place on all; ``""``
            where there is one of them only.
        again: axis along which the backward gathers, within which every rank keeps a shard for it; ``""`` for none.
    """

    weight_bits: int = 0
    gradient_bits: int = 0
    within: str = ""
    between: str = ""
    again: str = ""

    @property
    def hops(self) -> tuple[str, ...]:
        """Axes along which gradients are exchanged, in order; empty where they are reduce-scattered."""
        return tuple(axis for axis in (self.within, self.between) if axis and self.gradient_bits)
