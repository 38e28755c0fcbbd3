"""The interface of collective algorithms: a kind, a group and a size in, a pattern that the engine can play out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from triosim.core.errors import InputError
from triosim.core.registry import Registry

if TYPE_CHECKING:
    from triosim.collectives.group import Group
    from triosim.engine.graph import Pattern

DEFAULTS = {
    "all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "ring", "reduce": "ring",
    "gather": "direct", "scatter": "direct", "all_to_all": "pairwise",
}  # fmt: skip
"""The algorithm of each kind of collective on ideal links unless the user says otherwise."""


class CollectiveSchedule(NamedTuple):
    """A collective ready to be played.

    Attributes:
        pattern: who sends how much to whom, and what waits for what.
        order: which member of the group sits at each position of the pattern, shape ``(members,)``.  Positions beyond
            them are the group's switch.
    """

    pattern: Pattern
    order: tuple[int, ...]


class Algorithm(ABC):
    """One way to do collectives.  One subclass a file in ``collectives/algorithms``.

    Attributes:
        kinds: the kinds of :data:`triosim.schedule.program.COLLECTIVES` that it does.
        placed: whether it needs to know where members sit also on ideal links.
    """

    kinds: ClassVar[tuple[str, ...]]
    placed: ClassVar[bool] = False

    @abstractmethod
    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """The pattern of one collective.

        Args:
            kind: one of ``kinds``.
            members: members of the group; with one nothing is sent.
            size: bytes of the full buffer: gathered, unscattered, and for all_to_all what one member sends, its own
                part included.
            root: of broadcast, reduce, gather and scatter, the member that has or gets the full buffer.
            group: where the members are; all in one server if not given.

        Raises:
            InputError: the algorithm cannot do this kind for such a group.
        """

    def busiest(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """The same with fewer edges where they are not needed to price it: all of a member that sends most in its
        server, and all of one that sends most to other servers.

        Its edges have the bytes and counts of those of :meth:`schedule`; what they wait for may be left out, so that it
        must not be played.
        """
        return self.schedule(kind, members, size, root, group)


ALGORITHMS = Registry("triosim.collectives.algorithms", "triosim.collectives", "collective algorithm", Algorithm)
"""Collective algorithms by name."""


def choose(kind: str, members: int, size: int, algorithm: str = "auto") -> str:
    """The name of the algorithm for a collective.

    Args:
        kind, members, size: the collective; see :meth:`Algorithm.schedule`.
        algorithm: one that the user asks for, or ``"auto"`` for the default of the kind.

    Raises:
        InputError: there is no such algorithm, or it cannot do this kind.
    """
    if algorithm == "auto":
        return DEFAULTS[kind]
    if kind not in ALGORITHMS.get(algorithm).kinds:
        able = [name for name in ALGORITHMS if kind in ALGORITHMS.get(name).kinds]
        raise InputError(f"collective algorithm {algorithm!r} does not do {kind}: use auto or {' or '.join(able)}")
    return algorithm


def part(size: int, members: int) -> int:
    """Bytes of one member's part of a buffer, rounded up."""
    return -(-size // members)


def rooted(members: int, root: int) -> tuple[int, ...]:
    """The members in ring order, the root first."""
    return tuple((root + i) % members for i in range(members))
