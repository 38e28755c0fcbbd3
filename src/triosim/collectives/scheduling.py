"""From a collective to what the engine plays: algorithm and protocol chosen, pattern made, costs of software added.

The bytes of a pattern are those on the wire, so that other traffic meets them; what software adds (steps, launch, local
copies, bandwidth that a protocol cannot use) is ``pause`` before each transfer and ``delay`` before the first.  When
nothing else uses the links, a collective takes what :mod:`triosim.collectives.cost` says, unless the links alone take
longer.

Links that somebody described by their figures go the same way.  As no library knows what to choose on them, the fastest
is taken, so that time is a continuous function of every figure.  A server of which nothing but figures is known has no
software costs but the links' own, rings and pairwise exchanges.  Where a machine is ideal (see :class:`System`), rings
besides follow the order of the members.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from triosim.collectives import pricing, tuner, uneven
from triosim.collectives.algorithm import ALGORITHMS, DEFAULTS, CollectiveSchedule, choose
from triosim.collectives.constants import PROTOCOLS, CollectiveConstants
from triosim.collectives.group import Group
from triosim.collectives.pattern import in_flight
from triosim.collectives.pricing import GroupLinks
from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.core.options import configured, options_of
from triosim.engine.graph import Pattern

CHOSEN_BY_NCCL = (*tuner.ROUNDS, "broadcast", "reduce")
"""Kinds for which NCCL chooses algorithm and protocol; the others are sends and receives."""


@dataclass(frozen=True)
class ScheduledCollective:
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
        peers: to how many a direct all-to-all lets each member send, and from how many get, at a time; all at once if
            None (see :class:`triosim.collectives.algorithms.direct.Direct`).

    Raises:
        InputError: there is no such algorithm or protocol, or peers are not at least 1.
    """

    def __init__(
        self,
        algorithm: str = "auto",
        protocol: str = "auto",
        ideal: bool = False,
        known: Sequence[CollectiveConstants] = (),
        peers: int | None = None,
    ) -> None:
        part = None if algorithm == "auto" else ALGORITHMS.get(algorithm)
        self.kinds: tuple[str, ...] = () if part is None else part.kinds
        self.algorithm = algorithm.strip().lower().replace("_", "-")
        spelled = {p.lower(): p for p in (*PROTOCOLS, "auto")}
        if protocol.lower() not in spelled:
            raise unknown("collective protocol", protocol, spelled.values())
        self.protocol = spelled[protocol.lower()]
        self.ideal = ideal
        self.known = tuple(known)
        self.peers = in_flight(peers)
        self._facts = (part, self.algorithm, self.protocol, ideal, tuple(map(id, self.known)), self.peers)

    def __eq__(self, other: object) -> bool:
        """Whether they do everything in the same way."""
        return isinstance(other, Collectives) and other._facts == self._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @kept(64)
    def schedule(self, kind: str, group: Group, size: int, root: int = 0) -> ScheduledCollective:
        """What is played for one collective.

        Args:
            kind: a kind of :data:`triosim.schedule.program.COLLECTIVES`.
            group: the members and their links.
            size: bytes of the full buffer; for all_to_all what one member sends, its own part included.
            root: of broadcast, reduce, gather and scatter.

        Raises:
            InputError: the algorithm or the protocol asked for cannot do this here.
        """
        if group.members < 2:
            alone = self._make(DEFAULTS[kind], kind, group, size, root)
            return ScheduledCollective(alone.pattern, alone.order, (), 0.0, DEFAULTS[kind], "", "")
        links = self._links(group)
        if links is None:
            return self._as_described(kind, group, size, root)

        def made(algorithm: str, protocol: str) -> ScheduledCollective:
            spread = algorithm == "tree" and group.servers > 1  # whose edges are priced, and a ring played
            pattern = self._make(algorithm, kind, group, size, root, busiest=spread)
            return self._priced(links, pattern, kind, algorithm, group, size, protocol)

        asked = self.algorithm if kind in self.kinds else "auto"
        found = [made(*choice) for choice in self._choices(kind, group, size, links)]
        fastest = found[0]
        if len(found) > 1:
            fastest = min(found, key=lambda one: self._lasts(links, one, group))
        return fastest if asked in ("auto", fastest.algorithm) else made(asked, fastest.protocol)

    def schedule_uneven(self, kind: str, group: Group, sizes: ArrayLike) -> ScheduledCollective:
        """What is played for all-gather, reduce-scatter or all-to-all with parts that differ.

        Args:
            kind: one of :data:`triosim.collectives.uneven.KINDS`.
            group: the members and their links.
            sizes: bytes of each part, as :func:`triosim.collectives.uneven.schedule` has them.

        Raises:
            InputError: sizes do not fit the kind and the group.
        """
        made = uneven.schedule(kind, sizes, self.peers)
        if made.pattern.members != group.members:
            raise InputError(f"{kind} with uneven parts: {made.pattern.members} sizes for {group.members} members")
        algorithm = "direct" if kind == "all_to_all" else "ring"
        links = self._links(group) if group.members > 1 else None
        if links is None:
            delay = max((link.overhead for link in (group.intra, group.inter) if link is not None), default=0.0)
            return ScheduledCollective(made.pattern, made.order, (), delay, algorithm, "", "")
        size = int(uneven.full_buffer(kind, sizes))
        protocol = Collectives(algorithm, self.protocol, known=self.known).schedule(kind, group, size).protocol
        return self._priced(links, made, kind, algorithm, group, size, protocol)

    def transfer(self, group: Group, size: int) -> float:
        """Seconds that software adds to one send and receive of ``size`` bytes between two members."""
        links = self._links(group)
        return group.slowest.overhead if links is None else pricing.of_transfer(links, size)

    def _make(
        self,
        algorithm: str,
        kind: str,
        group: Group | None,
        size: int,
        root: int,
        members: int = 0,
        *,
        busiest: bool = False,
    ) -> CollectiveSchedule:
        found = ALGORITHMS.get(algorithm)
        options = {"peers": self.peers} if "peers" in (options_of(found) or ()) else {}
        made = configured(found, options, f"collective algorithm {algorithm}")
        make = made.busiest if busiest else made.schedule
        return make(kind, group.members if group else members, size, root, group)

    def _links(self, group: Group) -> GroupLinks | None:
        return None if self.ideal else GroupLinks.of(group, self.known)

    @staticmethod
    def _lasts(links: GroupLinks, made: ScheduledCollective, group: Group) -> float:
        """Seconds that a collective takes when nothing else uses its links."""
        return pricing.isolated_seconds(
            links, made.algorithm, CollectiveSchedule(made.pattern, made.order), made.delay_s, group
        )

    @staticmethod
    def _priced(
        links: GroupLinks, made: CollectiveSchedule, kind: str, algorithm: str, group: Group, size: int, protocol: str
    ) -> ScheduledCollective:
        if algorithm == "nvls":
            pattern, delay = pricing.in_switch(links, made, group, size)
        elif kind in CHOSEN_BY_NCCL:
            pattern, delay = pricing.in_steps(links, made, kind, algorithm, group, size, protocol)
            if algorithm == "tree" and group.servers > 1:
                even, delay = pricing.spread(links, CollectiveSchedule(pattern, made.order), delay, group)
                return ScheduledCollective(even.pattern, even.order, (), delay, algorithm, protocol, links.source())
        else:
            pattern, delay = pricing.at_once(links, made, kind, group, size)
        return ScheduledCollective(
            pattern, made.order, _nodes(pattern, group), delay, algorithm, protocol, links.source()
        )

    def _as_described(self, kind: str, group: Group, size: int, root: int) -> ScheduledCollective:
        """No software costs but the links' own overhead, once."""
        asked = self.algorithm if kind in self.kinds else "auto"
        if asked == "auto" and group.box is not None and not self.ideal and kind in ALGORITHMS.get("bucket").kinds:
            asked = "bucket"
        algorithm = choose(kind, group.members, size, asked)
        where = None if self.ideal and not ALGORITHMS.get(algorithm).placed else group
        made = self._make(algorithm, kind, where, size, root, group.members)
        delay = max(link.overhead for link in (group.intra, group.inter) if link is not None)
        return ScheduledCollective(made.pattern, made.order, _nodes(made.pattern, group), delay, algorithm, "", "")

    def _choices(self, kind: str, group: Group, size: int, links: GroupLinks) -> list[tuple[str, str]]:
        """Algorithm and protocol: what is asked for, and NCCL's first choice of what that leaves open.  What NCCL does
        not have goes as its rings do.

        NCCL chooses by what it knows of links, not by what they reach.  For links that it does not know there are
        several, of which the fastest is to be taken.
        """
        asked = self.algorithm if kind in self.kinds else "auto"
        if kind not in CHOSEN_BY_NCCL:
            algorithm = choose(kind, group.members, size, asked) if asked != "auto" else _SENT.get(kind, DEFAULTS[kind])
            return [(algorithm, "Simple" if self.protocol == "auto" else self.protocol)]
        able = links.protocols()
        if self.protocol != "auto":
            if self.protocol not in able:
                raise InputError(
                    f"collective protocol {self.protocol} has no costs on {links.slowest.known.name} links: "
                    f"use auto or {' or '.join(able)}"
                )
            able = [self.protocol]
        if asked == "nvls":
            return [(asked, "Simple")]
        rated = group.as_rated
        found = tuner.choices(kind, rated or group, size, every=self.protocol != "auto")
        found = [c for c in found if c.protocol in able and (c.algorithm != "nvls" or links.multicast is not None)]
        same = [c for c in found if asked in ("auto", c.algorithm)] or [c for c in found if c.algorithm == "ring"]
        return [(c.algorithm, c.protocol) for c in (same[:1] if rated is not None else same)]


_SENT = {"all_to_all": "direct"}
"""What NCCL does for kinds that are sends and receives, where it is not the default of ideal links."""


def _nodes(pattern: Pattern, group: Group) -> tuple[int, ...]:
    return (group.switch,) * (pattern.places - pattern.members)
