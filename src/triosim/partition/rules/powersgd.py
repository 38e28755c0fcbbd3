"""PowerSGD (Vogels et al., arXiv:1905.13727): replicas add up two thin factors of each gradient instead of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.compression import CompressedCall, GradientCompression, Shapes
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import Rule


class _Bytes(NamedTuple):
    """Of a bucket: all of it, what is compressed, what is not, and the factors ``P`` and ``Q``."""

    whole: int
    compressed: int
    plain: int
    p: int
    q: int


@dataclass(frozen=True)
class LowRankFactors(GradientCompression):
    """PowerSGD with error feedback and warm start.

    As ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`` after its first iterations: of a gradient seen as a
    matrix ``M`` [n, m], ``P = M Q`` [n, rank] is all-reduced and made orthogonal, then ``Q = M^T P`` [m, rank] is
    all-reduced, and ``P Q^T`` takes the place of the gradient.
    Gradients that would hardly shrink are all-reduced first, as they are.

    Products of such a rank take as long as reading ``M`` does.  That the hook waits for the device at its end is left
    out, and so is what launching its kernels costs beyond one for each call.

    Attributes:
        rank: columns of the factors, at most the sides of a matrix.
        least: a gradient is compressed if it shrinks by more than this.
    """

    rank: int
    least: float

    def calls(self, shapes: Shapes, item: float) -> tuple[CompressedCall, ...]:
        of = self._bytes(shapes, item)
        feedback = 3 * of.whole + 2 * of.whole  # the last error is added, what comes out is kept
        made = of.compressed + of.q + of.p
        calls = (
            CompressedCall(feedback + 2 * of.plain + 2 * of.q + made, of.plain),
            CompressedCall(4 * of.plain, of.p),
            CompressedCall(2 * of.p + made, of.q),
            CompressedCall(2 * of.q + made + 3 * of.whole, 0),
        )
        return calls

    def kept(self, shapes: Shapes, item: float) -> int:
        of = self._bytes(shapes, item)
        return of.whole + of.p + of.q

    def _bytes(self, shapes: Shapes, item: float) -> _Bytes:
        compressed = plain = p = q = 0
        for shape in shapes:
            n = shape[0] if shape else 1
            m = math.prod(shape[1:])
            rank = min(n, m, self.rank)
            if (n + m) * rank * self.least < n * m:
                compressed, p, q = compressed + n * m, p + n * rank, q + m * rank
            else:
                plain += n * m
        return _Bytes(*(math.ceil(size * item) for size in (compressed + plain, compressed, plain, p, q)))


@registered
@dataclass(frozen=True)
class PowerSgd(Rule):
    """Compresses what data parallelism all-reduces.

    Attributes:
        rank: see :class:`LowRankFactors`; PyTorch's default is 1.
        min_rate: a gradient is compressed if it shrinks by more than this (PyTorch's default).
    """

    rank: Annotated[int, AtLeast(1)] = 1
    min_rate: Annotated[float, AtLeast(1)] = 2.0

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """All-reduced gradients are compressed.

        Raises:
            PlanError: gradients are not all-reduced.
        """
        if placed.states or placed.weights or placed.rooted or placed.path:
            what = placed.name if placed.states or placed.weights else "this way of data parallelism"
            raise PlanError(
                f"powersgd: it compresses gradients that replicas all-reduce, and {what} does not: leave out one"
            )
        return replace(placed, compression=LowRankFactors(self.rank, self.min_rate))
