"""1-bit Adam and 1-bit LAMB: replicas exchange the signs of their momenta instead of adding up gradients.

Warm-up is Adam (LAMB) as it is.  After it the variance stays what it is, each replica updates its momentum by its own
gradients, and what all do with it is an all-reduce in one bit an element: signs go to whoever adds up that part, with
one scale of each rank, and the signs of the sums come back.  What each compression loses is kept and added to the next.

Sources: Tang et al., "1-bit Adam" (arXiv:2102.02888), section 3; Li et al., "1-bit LAMB" (arXiv:2104.06069), which
exchanges the same; DeepSpeed's tutorials on both (deepspeed.ai/tutorials/onebit-adam, onebit-lamb) and its
``NcclBackend.compressed_allreduce`` (``deepspeed/runtime/comm/nccl.py``), whose passes over memory are counted here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.compression import CompressedCall, GradientCompression, Shapes
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule

ITEM = 4
"""Bytes of an element of a momentum and of an error, float32."""
TO_SIGNS = 12 + 4 + 42 + 8 + 12 + 21 + 1
"""Bytes read and written of an element that is compressed, one operator after another: the error is added, the norm
found, the signs in float32 (six operators), scaled and subtracted for the new error, and made again as bits."""
FROM_SIGNS = 1 + 5 + 3 * 8
"""The same of an element that bits are turned into: unpacked, float32, moved, doubled, scaled."""
AT_ONCE = 2**62
"""Gradients that are exchanged together: all, as momenta are in one buffer."""


@dataclass(frozen=True)
class MomentumSigns(GradientCompression):
    """An all-reduce of momenta in one bit an element, for all parameters at once.

    Attributes:
        ranks: replicas; each adds up its part, which is padded to whole bytes.
    """

    ranks: int

    def calls(self, shapes: Shapes, item: float) -> tuple[CompressedCall, ...]:
        elements = self._elements(shapes)
        part, scales = elements // self.ranks, ITEM * self.ranks
        add_up = (FROM_SIGNS + ITEM) * elements + (ITEM + TO_SIGNS) * part
        return (
            CompressedCall(TO_SIGNS * elements, elements // 8, "all_to_all"),
            CompressedCall(0, scales, "all_gather"),
            CompressedCall(add_up, elements // 8, "all_gather"),
            CompressedCall(0, scales, "all_gather"),
            CompressedCall((FROM_SIGNS + 2 * ITEM) * elements, 0),
        )

    def kept(self, shapes: Shapes, item: float) -> int:
        elements = self._elements(shapes)
        return ITEM * (elements + elements // self.ranks)

    def _elements(self, shapes: Shapes) -> int:
        unit = 8 * self.ranks
        return -(-sum(math.prod(shape) for shape in shapes) // unit) * unit


@registered
@dataclass(frozen=True)
class OneBit(Rule):
    """Exchanges momenta in one bit an element, after the backward.

    Attributes:
        phase: which iterations are meant: those of the warm-up all-reduce gradients.
    """

    optimizers: ClassVar[tuple[str, ...]] = ("adam", "adamw")

    phase: Literal["compressed", "warm-up"] = "compressed"

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """No gradients are all-reduced.

        Raises:
            PlanError: something else becomes of gradients.
        """
        if placed.states or placed.weights or placed.rooted or placed.path or placed.compression or placed.apart:
            sharded = placed.states or placed.weights
            what = placed.name if sharded else "another way of exchanging gradients"
            raise PlanError(
                f"onebit: replicas have all momenta and exchange their signs, which does not go with {what}: leave out "
                "one"
            )
        if self.phase == "warm-up" or placed.ranks(mesh) == 1:
            return placed
        return replace(
            placed, compression=MomentumSigns(placed.ranks(mesh)), first_bytes=AT_ONCE, bytes=AT_ONCE, elements=0
        )  # fmt: skip
