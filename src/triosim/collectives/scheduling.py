"""From a collective to what the engine plays: algorithm and protocol chosen, pattern made, software costs put on it.

The bytes of a pattern are those on the wire, so that other traffic meets them; what software adds (steps, launch, local
copies, bandwidth that a protocol cannot use) is ``pause`` before each transfer and ``delay`` before the first.  When
nothing else uses the links, a collective takes what :mod:`triosim.collectives.cost` says, unless the links alone take
longer.

A group whose links the user described by their figures is ideal: no software costs but the links' own, rings and
pairwise exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from triosim.collectives import pricing, tuner, uneven
from triosim.collectives.algorithm import ALGORITHMS, DEFAULTS, Schedule, choose
from triosim.collectives.constants import PROTOCOLS, Constants
from triosim.collectives.evened import FOLLOWED_SERVERS, evened
from triosim.collectives.group import Group
from triosim.collectives.pricing import Links
from triosim.engine.graph import Pattern
from triosim.errors import InputError, unknown

CHOSEN_BY_NCCL = (*tuner.ROUNDS, "broadcast", "reduce")
"""Kinds for which NCCL chooses algorithm and protocol; the others are sends and receives."""


@dataclass(frozen=True)
class Scheduled:
    """A collective ready to be played.

    Attributes:
        pattern: who sends how much to whom; pauses in picoseconds.
        order: which member of the group sits at each position, shape ``(members,)``.
        nodes: node of the system at each further position of the pattern.
        delay_s: seconds from the arrival of the last member to the first transfer.
        algorithm: its name.
        protocol: ``"LL"``, ``"LL128"`` or ``"Simple"``; ``""`` on ideal links.
        source: where the costs are from, in words; ``""`` on ideal links.
    """

    pattern: Pattern
    order: tuple[int, ...]
    nodes: tuple[int, ...]
    delay_s: float
    algorithm: str
    protocol: str
    source: str


class Collectives:
    """How collectives are done: what the user asks for, or what NCCL would choose.

    Args:
        algorithm: a name, used for the kinds that it does, or ``"auto"``.
        protocol: one of :data:`triosim.collectives.constants.PROTOCOLS`, or ``"auto"``.
        ideal: whether all links are taken as ideal.
        known: constants instead of those that come with the program, for every link of their family.

    Raises:
        InputError: there is no such algorithm or protocol.
    """

    def __init__(
        self, algorithm: str = "auto", protocol: str = "auto", ideal: bool = False, known: Sequence[Constants] = ()
    ) -> None:
        self.kinds: tuple[str, ...] = () if algorithm == "auto" else ALGORITHMS.get(algorithm).kinds
        self.algorithm = algorithm.strip().lower().replace("_", "-")
        spelled = {p.lower(): p for p in (*PROTOCOLS, "auto")}
        if protocol.lower() not in spelled:
            raise unknown("collective protocol", protocol, spelled.values())
        self.protocol = spelled[protocol.lower()]
        self.ideal = ideal
        self.known = known

    def schedule(self, kind: str, group: Group, size: int, root: int = 0) -> Scheduled:
        """What is played for one collective.

        Args:
            kind: a kind of :data:`triosim.parallelism.program.COLLECTIVES`.
            group: the members and their links.
            size: bytes of the full buffer; for all_to_all what one member sends, its own part included.
            root: of broadcast, reduce, gather and scatter.

        Raises:
            InputError: the algorithm or the protocol asked for cannot do this here.
        """
        if group.members < 2:
            made = _make(DEFAULTS[kind], kind, group, size, root)
            return Scheduled(made.pattern, made.order, (), 0.0, DEFAULTS[kind], "", "")
        links = self._links(group)
        if links is None:
            return self._ideal(kind, group, size, root)
        algorithm, protocol = self._choose(kind, group, size, links)
        made = _make(algorithm, kind, group, size, root)
        return self._priced(links, made, kind, algorithm, group, size, protocol)

    def schedule_uneven(self, kind: str, group: Group, sizes: ArrayLike) -> Scheduled:
        """What is played for all-gather, reduce-scatter or all-to-all with parts that differ.

        Args:
            kind: one of :data:`triosim.collectives.uneven.KINDS`.
            group: the members and their links.
            sizes: bytes of each part, as :func:`triosim.collectives.uneven.schedule` has them.

        Raises:
            InputError: sizes do not fit the kind and the group.
        """
        made = uneven.schedule(kind, sizes)
        if made.pattern.members != group.members:
            raise InputError(f"{kind} with uneven parts: {made.pattern.members} sizes for {group.members} members")
        algorithm = "direct" if kind == "all_to_all" else "ring"
        links = self._links(group) if group.members > 1 else None
        if links is None:
            delay = max((link.overhead for link in (group.intra, group.inter) if link is not None), default=0.0)
            return Scheduled(made.pattern, made.order, (), delay, algorithm, "", "")
        size = int(uneven.full_buffer(kind, sizes))
        protocol = Collectives(algorithm, self.protocol, known=self.known)._choose(kind, group, size, links)[1]
        return self._priced(links, made, kind, algorithm, group, size, protocol)

    def transfer(self, group: Group, size: int) -> float:
        """Seconds that software adds to one send and receive of ``size`` bytes between two members."""
        links = self._links(group)
        return group.slowest.overhead if links is None else pricing.of_transfer(links, size)

    def _links(self, group: Group) -> Links | None:
        return None if self.ideal else Links.of(group, self.known)

    @staticmethod
    def _priced(
        links: Links, made: Schedule, kind: str, algorithm: str, group: Group, size: int, protocol: str
    ) -> Scheduled:
        if algorithm == "nvls":
            pattern, delay = pricing.in_switch(links, made, group, size)
        elif kind in CHOSEN_BY_NCCL:
            pattern, delay = pricing.in_steps(links, made, kind, algorithm, group, size, protocol)
            if algorithm == "tree" and group.servers == group.members > FOLLOWED_SERVERS:
                pattern, later = evened(pattern, links.slowest.link)
                delay += later
        else:
            pattern, delay = pricing.at_once(links, made, kind, group, size)
        return Scheduled(pattern, made.order, _nodes(pattern, group), delay, algorithm, protocol, links.source())

    def _ideal(self, kind: str, group: Group, size: int, root: int) -> Scheduled:
        algorithm = choose(kind, group.members, size, self.algorithm if kind in self.kinds else "auto")
        named = all(link is None or link.name for link in (group.intra, group.inter))
        plain = group if algorithm in _PLACED or (named and not self.ideal) else None
        made = _make(algorithm, kind, plain, size, root, group.members)
        delay = max(link.overhead for link in (group.intra, group.inter) if link is not None)
        return Scheduled(made.pattern, made.order, _nodes(made.pattern, group), delay, algorithm, "", "")

    def _choose(self, kind: str, group: Group, size: int, links: Links) -> tuple[str, str]:
        """Algorithm and protocol: what is asked for, and NCCL's first choice of what that leaves open."""
        asked = self.algorithm if kind in self.kinds else "auto"
        if kind not in CHOSEN_BY_NCCL:
            algorithm = choose(kind, group.members, size, asked) if asked != "auto" else _SENT.get(kind, DEFAULTS[kind])
            return algorithm, "Simple" if self.protocol == "auto" else self.protocol
        able = links.protocols()
        if self.protocol != "auto":
            if self.protocol not in able:
                raise InputError(
                    f"collective protocol {self.protocol} has no costs on {links.slowest.known.name} links: "
                    f"use auto or {' or '.join(able)}"
                )
            able = [self.protocol]
        found = [c for c in tuner.choices(kind, group, size, every=self.protocol != "auto") if c.protocol in able]
        found = [c for c in found if c.algorithm != "nvls" or links.multicast is not None]
        if asked == "nvls":
            return asked, "Simple"
        same = [c for c in found if asked in ("auto", c.algorithm)]
        best = (same or [c for c in found if c.algorithm == "ring"])[0]  # what NCCL does not have goes as its rings do
        return (best.algorithm if asked == "auto" else asked), best.protocol


_PLACED = ("tree", "hierarchical", "nvls")
"""Algorithms that need to know where members sit also on ideal links."""

_SENT = {"all_to_all": "direct"}
"""What NCCL does for kinds that are sends and receives, where it is not the default of ideal links."""


def _make(algorithm: str, kind: str, group: Group | None, size: int, root: int, members: int = 0) -> Schedule:
    made = ALGORITHMS.get(algorithm)()
    return made.schedule(kind, group.members if group else members, size, root, group)


def _nodes(pattern: Pattern, group: Group) -> tuple[int, ...]:
    return (group.switch,) * (pattern.places - pattern.members)
