"""What compresses gradients before replicas add them up: which collectives take the place of an all-reduce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

Shapes = Sequence[tuple[int, ...]]


class CompressedCall(NamedTuple):
    """A collective of what a bucket was compressed to.

    Attributes:
        touched: bytes that are read and written before it.
        sent: bytes that it moves, as of its kind; 0 for none.
        what: kind of collective.
    """

    touched: int
    sent: int
    what: str = "all_reduce"


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
