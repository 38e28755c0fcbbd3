"""How ASTRA-sim does one collective along one dimension: which messages a rank sends, and what each waits for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.registry import Registry
from triosim.interop.astra.edge_blocks import PER_NS, EdgeBlocks, Needs, Rows


@dataclass(frozen=True)
class MessageCosts:
    """What messages cost an NPU itself.

    Attributes:
        endpoint_ns: handing one over, or taking it.
        memory_bandwidth: bytes per nanosecond of local memory (decimal GB/s), 0 where it is not given.
    """

    endpoint_ns: int
    memory_bandwidth: float

    def reduction_ns(self, size: int) -> int:
        """Reducing a message of ``size`` bytes: two reads and a write of local memory, each rounded down to a
        nanosecond (found from ASTRA-sim's runs: exact)."""
        return 3 * math.floor(size / self.memory_bandwidth) if self.memory_bandwidth else 0


@dataclass(frozen=True)
class Stage:
    """One collective of one chunk along one dimension.

    Attributes:
        kind: one of :data:`triosim.interop.astra.system.KINDS`.
        size: bytes that one rank brings: its part for an all-gather, else its full buffer.
        costs: of messages at each NPU.
        stagger_ps: picoseconds between messages that a rank sends at once, so that a network that serves one after
            the other takes them in the order in which they were sent; 0 where links are shared.
        turn: which of the chunks that begin together in this dimension it is, 0 for the first.
    """

    kind: str
    size: int
    costs: MessageCosts
    stagger_ps: int = 0
    turn: int = 0

    @property
    def endpoint_ps(self) -> int:
        """Handing over one message."""
        return self.costs.endpoint_ns * PER_NS

    def behind_ps(self, message: int = 0, messages: int = 1) -> int:
        """How long after the first of the messages sent at once this one goes out, less than a nanosecond.

        Args:
            message: which of them it is.
            messages: how many this rank sends at once for one chunk.
        """
        return min(self.turn * messages + message, PER_NS - 1) * self.stagger_ps

    def reduction_ps(self, size: int) -> int:
        """Reducing one message of ``size`` bytes."""
        return self.costs.reduction_ns(size) * PER_NS


class Implementation(ABC):
    """One way to do collectives.  One subclass a file in ``implementations``.

    Args:
        window: sends of a rank under way at once, 0 for all; only ``direct`` has one.

    Attributes:
        kinds: the collectives that it does.
    """

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, window: int = 0) -> None:
        self.window = window

    @abstractmethod
    def add_edges(self, blocks: EdgeBlocks, lines: NDArray, stage: Stage, start: Needs) -> Rows:
        """Add the messages of one stage.

        Args:
            blocks: the pattern under construction.
            lines: positions of the groups that do this at the same time, shape ``(groups, n)``, each in its order.
            stage: what is to be done.
            start: what the first messages of each position wait for, in the order of ``lines.reshape(-1)``.

        Returns:
            an edge of no bytes at each position, in the same order, delivered when the position has finished.
        """

    @abstractmethod
    def steps(self, members: int, stage: Stage) -> tuple[int, int]:
        """How many messages follow one another in a group of ``members``, and their bytes in all, for putting stages in
        order."""

    def fan_out(self, members: int) -> int:
        """How many others a rank sends to at once."""
        return 1

    def checked(self, members: int) -> str:
        """Why it cannot be done among ``members`` ranks, or ``""``."""
        return ""


IMPLEMENTATIONS = Registry(
    "triosim.interop.astra.implementations", "triosim.astra", "collective implementation", Implementation
)
"""ASTRA-sim's implementations by the names of its system file."""


def result_size(kind: str, size: int, members: int) -> int:
    """Bytes that a rank holds after a stage, the size of the next one."""
    if kind == "reduce_scatter":
        return size // members
    return size * members if kind == "all_gather" else size
