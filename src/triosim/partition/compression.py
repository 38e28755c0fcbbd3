"""What compresses gradients before replicas add them up: which collectives take the place of an all-reduce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

Shapes = Sequence[tuple[int, ...]]


class CompressedCall(NamedTuple):
    """An all-reduce of what a bucket was compressed to.

    Attributes:
        touched: bytes that are read and written before it.
        sent: bytes that are all-reduced; 0 for none.
    """

    touched: int
    sent: int


class GradientCompression(ABC):
    """How the gradients of a bucket are compressed.  It works beside the backward, on the stream of the collectives."""

    @abstractmethod
    def calls(self, shapes: Shapes, item: float) -> tuple[CompressedCall, ...]:
        """What is done to a bucket, in order.

        Args:
            shapes: of its gradients.
            item: bytes of an element.
        """

    @abstractmethod
    def kept(self, shapes: Shapes, item: float) -> int:
        """Bytes that it keeps of a bucket from one iteration to the next."""
