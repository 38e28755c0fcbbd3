"""From a collective to what the engine plays: algorithm and protocol chosen, pattern made, software costs put on it.

The bytes of a pattern are those on the wire, so that other traffic meets them; what software adds (steps, launch, local
copies, bandwidth that a protocol cannot use) is ``pause`` before each transfer and ``delay`` before the first.  When
nothing else uses the links, a collective takes what :mod:`triosim.collectives.cost` says, unless the links alone take
longer.

A group whose links the user described by their figures is ideal: no software costs at all, rings and direct exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.collectives import constants, cost, tuner
from triosim.collectives.algorithm import ALGORITHMS, DEFAULTS, Schedule, choose
from triosim.collectives.constants import PROTOCOLS, WIRE, Constants, Costs
from triosim.collectives.group import Group, LinkClass
from triosim.engine.graph import Pattern
from triosim.errors import InputError, unknown
from triosim.units import PICOSECONDS_PER_SECOND

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
        self, algorithm: str = "auto", protocol: str = "auto", ideal: bool = False, known: tuple[Constants, ...] = ()
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
        links = _Links.of(group, () if self.ideal else None, self.known)
        if links is None:
            return self._ideal(kind, group, size, root)
        algorithm, protocol = self._choose(kind, group, size, links)
        made = _make(algorithm, kind, group, size, root)
        priced = links.exchange(made, kind, group, size) if kind not in CHOSEN_BY_NCCL else None
        if priced is None:
            priced = links.steps(made, kind, algorithm, group, size, protocol)
        pattern, delay = priced
        return Scheduled(pattern, made.order, _nodes(pattern, group), delay, algorithm, protocol, links.source())

    def transfer(self, group: Group, size: int) -> float:
        """Seconds that software adds to one send and receive of ``size`` bytes between two members."""
        links = None if group.members < 2 or self.ideal else _Links.of(group, None, self.known)
        if links is None:
            return group.slowest.overhead
        costs, link = links.of_slowest().exchange, group.slowest
        return costs.base_s + costs.overhead(size) + size / link.bandwidth * (1 / costs.efficiency - 1)

    def _ideal(self, kind: str, group: Group, size: int, root: int) -> Scheduled:
        algorithm = choose(kind, group.members, size, self.algorithm if kind in self.kinds else "auto")
        plain = group if algorithm in _PLACED else None
        made = _make(algorithm, kind, plain, size, root, group.members)
        delay = max(link.overhead for link in (group.intra, group.inter) if link is not None)
        return Scheduled(made.pattern, made.order, _nodes(made.pattern, group), delay, algorithm, "", "")

    def _choose(self, kind: str, group: Group, size: int, links: _Links) -> tuple[str, str]:
        """Algorithm and protocol: what is asked for, and NCCL's first choice of what that leaves open."""
        asked = self.algorithm if kind in self.kinds else "auto"
        if kind not in CHOSEN_BY_NCCL:
            algorithm = choose(kind, group.members, size, asked) if asked != "auto" else _SENT.get(kind, DEFAULTS[kind])
            return algorithm, "Simple" if self.protocol == "auto" else self.protocol
        able = links.protocols()
        if self.protocol != "auto":
            if self.protocol not in able:
                raise InputError(
                    f"collective protocol {self.protocol} has no costs on {links.of_slowest().name} links: "
                    f"use auto or {' or '.join(able)}"
                )
            able = [self.protocol]
        found = [c for c in tuner.choices(kind, group, size, every=self.protocol != "auto") if c.protocol in able]
        found = [c for c in found if c.algorithm != "nvls" or links.multicast() is not None]
        same = [c for c in found if asked in ("auto", c.algorithm)]
        if asked == "nvls":
            return asked, "Simple"
        best = (same or [c for c in found if c.algorithm == "ring"])[0]
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


@dataclass(frozen=True)
class _Links:
    """The links of a group with their constants.

    Attributes:
        intra, inter: as in :class:`Group`, each with its constants; None where the group has none.
    """

    intra: tuple[LinkClass, Constants] | None
    inter: tuple[LinkClass, Constants] | None

    @staticmethod
    def of(group: Group, ideal: tuple[()] | None, known: tuple[Constants, ...]) -> _Links | None:
        """None where the links are ideal, or of a kind of which nothing is known."""
        if ideal is not None:
            return None
        both = []
        for link in (group.intra, group.inter):
            found = constants.of_link(link.name, link.family, known) if link is not None else None
            if link is not None and found is None:
                return None
            both.append((link, found) if link is not None and found is not None else None)
        return _Links(both[0], both[1])

    def of_slowest(self) -> Constants:
        """Constants of the link that a ring is as fast as."""
        both = self.inter or self.intra
        if both is None:
            raise ValueError("a group of one member has no link")
        return both[1]

    def each(self) -> list[tuple[LinkClass, Constants]]:
        return [both for both in (self.intra, self.inter) if both is not None]

    def protocols(self) -> list[str]:
        """Protocols that have costs on all links."""
        return [p for p in PROTOCOLS if all(p in known.ring for _, known in self.each())]

    def multicast(self) -> Costs | None:
        return self.intra[1].multicast if self.intra is not None and self.inter is None else None

    def source(self) -> str:
        """Where the costs are from, in words."""
        return "; ".join(constants.told(link.name, known) for link, known in self.each())

    # --- rings, trees and whatever moves in steps ---------------------------------------------------------------------

    def steps(
        self, made: Schedule, kind: str, algorithm: str, group: Group, size: int, protocol: str
    ) -> tuple[Pattern, float]:
        """The pattern with a pause before each transfer, and the delay."""
        if algorithm == "nvls":
            return self._multicast(made, group, size)
        pattern, crosses = made.pattern, self._crosses(made, group)
        above, below = WIRE[protocol]
        wire = -(-pattern.bytes * above // below)
        delay = max(known.ring[protocol].base_s for _, known in self.each())
        pipelined = algorithm == "tree" or kind not in tuner.ROUNDS
        pause = np.zeros(len(pattern), np.float64)
        for both, rows in ((self.intra, ~crosses), (self.inter, crosses)):
            if both is not None and rows.any():
                (link, known), payload = both, pattern.bytes[rows]
                pause[rows] = _beside(known.ring[protocol], link, payload, wire[rows])
                if pipelined:
                    once = known.ring[protocol].overhead(float(payload.max()))
                    pause[rows] -= once
                    delay += _hops(algorithm, group, both is self.inter) * once
        if algorithm == "ring" and not pipelined and crosses.any() and not crosses.all():
            pause = self._averaged(pause, crosses, group)
        for both, rows in ((self.intra, ~crosses), (self.inter, crosses)):
            if both is not None:
                pause[rows] -= both[0].latency
        own = self.intra or self.inter
        if kind in tuner.ROUNDS and own is not None:
            delay += cost.finish(own[1], kind, size / group.members, own[0].bandwidth)
        return replace(pattern, bytes=wire, pause=_ticks(pause)), delay

    @staticmethod
    def _averaged(pause: NDArray, crosses: NDArray, group: Group) -> NDArray:
        """A ring's edges wait for each other in turn, so that each step would pay the cost of the dearest edge.  What
        software adds does not: a part pays it on the edges that it takes, as many of them between servers as there
        are servers."""
        share = group.servers / group.members
        mean = pause[~crosses].mean() * (1 - share) + pause[crosses].mean() * share
        return np.full_like(pause, mean)

    @staticmethod
    def _crosses(made: Schedule, group: Group) -> NDArray[np.bool_]:
        """Edges between members of different servers; places in the network belong to the server."""
        pattern = made.pattern
        seat = np.concatenate([group.server[list(made.order)], np.zeros(pattern.places - pattern.members, np.int32)])
        inside = (pattern.source < pattern.members) & (pattern.target < pattern.members)
        return inside & (seat[pattern.source] != seat[pattern.target])

    def _multicast(self, made: Schedule, group: Group, size: int) -> tuple[Pattern, float]:
        """Chunks go up and down the switch at the bandwidth that it reaches; the rest comes first."""
        if self.intra is None or self.intra[1].multicast is None:
            raise InputError(
                f"collective algorithm 'nvls' has no costs on {self.of_slowest().name} links: use auto, ring or tree"
            )
        link, costs = self.intra[0], self.intra[1].multicast
        pattern, members = made.pattern, group.members
        if not len(pattern):
            return pattern, 0.0
        chunk, count = int(pattern.bytes[0]), int(pattern.count[0])
        moved = (1 + 1 / members) * size / (costs.efficiency * link.bandwidth)
        alone = chunk / link.bandwidth
        pause = max(0.0, (moved - alone) / count - alone)
        delay = cost.multicast(costs, members, size, link.bandwidth) - (count * (pause + link.latency + alone) + alone)
        up = pattern.source < members
        return replace(pattern, pause=_ticks(np.where(up, pause, 0.0))), max(0.0, delay)

    # --- sends and receives -------------------------------------------------------------------------------------------

    def exchange(self, made: Schedule, kind: str, group: Group, size: int) -> tuple[Pattern, float]:
        """The pattern of sends and receives, and the delay: their links are shared, what software adds comes first."""
        known, link, peers = self.of_slowest(), group.slowest, group.members - 1
        costs, share = known.exchange, size / group.members
        delay = costs.base_s + peers * known.peer_s + costs.overhead(share) - link.latency
        delay += peers * share / link.bandwidth * (1 / costs.efficiency - 1)
        if self.intra is not None:
            delay += cost.finish(self.intra[1], kind, share, self.intra[0].bandwidth)
        waits = len(made.pattern.needs.values)
        if waits:  # in rounds: every one after the first pays the latency of its route again
            delay -= (peers - 1) * link.latency
        return made.pattern, max(0.0, delay)


def _hops(algorithm: str, group: Group, between_servers: bool) -> int:
    """Links of one kind on the longest way of a chunk.

    Chunks of a pipeline follow each other while the ones before are still on their way, so that the cost of a hop is
    paid once for all of them: as in NCCL, up and down a chain in the server and a tree over servers, or along a chain.
    """
    servers = group.servers
    if algorithm == "tree":
        return 2 * (servers.bit_length() - 1) if between_servers else 2 * (-(-group.members // servers) - 1)
    return servers - 1 if between_servers else group.members - servers


def _beside(costs: Costs, link: LinkClass, payload: NDArray, wire: NDArray) -> NDArray[np.float64]:
    """Seconds of a transfer beside its bytes on the wire."""
    sizes, row = np.unique(payload, return_inverse=True)
    seconds = np.array([cost.step(costs, float(b), link.bandwidth) for b in sizes.tolist()])
    return seconds[row] - wire / link.bandwidth


def _ticks(seconds: NDArray) -> NDArray[np.int64]:
    return np.rint(np.maximum(seconds, 0.0) * PICOSECONDS_PER_SECOND).astype(np.int64)
