"""Adds to a pattern what software costs: flags on the wire, pauses before transfers, a delay before the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.collectives import constants, cost, tuner
from triosim.collectives.algorithm import CollectiveSchedule
from triosim.collectives.balanced_tree import balanced_tree
from triosim.collectives.constants import PROTOCOLS, WIRE, CollectiveConstants, TransportCosts
from triosim.collectives.group import Group, LinkClass
from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.graph import Pattern


@dataclass(frozen=True)
class PricedLink:
    """A link with its constants."""

    link: LinkClass
    known: CollectiveConstants

    @property
    def latency_s(self) -> float:
        """The part of the constants' overhead that is latency, which the engine counts as the route has it."""
        if self.known is constants.as_described():
            return 0.0
        return self.link.latency if self.link.usual_latency is None else self.link.usual_latency

    def base_s(self, costs: TransportCosts) -> float:
        """Seconds before the first step: those of the constants, and what the link costs more than such links do."""
        if self.known is constants.as_described():
            return self.link.overhead
        usual = self.link.usual_overhead
        return costs.base_s if usual is None else max(0.0, costs.base_s + self.link.overhead - usual)


@dataclass(frozen=True)
class GroupLinks:
    """The links of a group, with constants for both kinds.

    Attributes:
        intra, inter: as in :class:`Group`; at least one.
    """

    intra: PricedLink | None
    inter: PricedLink | None

    @staticmethod
    def of(group: Group, known: Sequence[CollectiveConstants] = ()) -> GroupLinks | None:
        """None for a server of whose links nothing is known but figures: such as have no name, or are of a family
        without constants.  Links between servers that are not known cost what NCCL assumes of networks.

        Args:
            group: two members or more.
            known: constants that stand before those that come with the program.
        """
        intra = inter = None
        if group.intra is not None:
            costs = constants.of_link(group.intra.name, group.intra.family, known)
            if costs is None and group.inter is None:
                return None
            intra = PricedLink(group.intra, costs or constants.as_described())
        if group.inter is not None:
            costs = constants.of_link(group.inter.name, group.inter.family, known)
            inter = PricedLink(group.inter, costs or constants.load("network"))
        return GroupLinks(intra, inter)

    @property
    def each(self) -> list[PricedLink]:
        """The links that the group has."""
        return [both for both in (self.intra, self.inter) if both is not None]

    @property
    def slowest(self) -> PricedLink:
        """The link that a ring through all members is as fast as."""
        return self.each[-1]

    @property
    def multicast(self) -> TransportCosts | None:
        """Costs of all-reduce in the switch; None where members are in several servers or the switch cannot."""
        return self.intra.known.multicast if self.intra is not None and self.inter is None else None

    def protocols(self) -> list[str]:
        """Protocols that have costs on all links."""
        return [p for p in PROTOCOLS if all(p in both.known.ring for both in self.each)]

    def source(self) -> str:
        """Where the costs are from, in words."""
        return "; ".join(constants.describe(both.link.name, both.known) for both in self.each)


def in_steps(
    links: GroupLinks, made: CollectiveSchedule, kind: str, algorithm: str, group: Group, size: int, protocol: str
) -> tuple[Pattern, float]:
    """Rings, trees and whatever moves in steps: the pattern with its pauses, and the delay in seconds.

    Args:
        links: of the group.
        made: bytes of payload.
        kind, algorithm: what it is.
        group: the members.
        size: bytes of the full buffer.
        protocol: one that the links have costs of.
    """
    pattern, crosses = made.pattern, _crossing(made, group)
    above, below = WIRE[protocol]
    wire = -(-pattern.bytes * above // below)
    ways = max(len(group.rings), 1) if algorithm == "ring" and kind in tuner.ROUNDS else 1
    pipelined = algorithm == "tree" or kind not in tuner.ROUNDS
    delay = max(both.base_s(both.known.ring[protocol]) for both in links.each)
    pause = np.zeros(len(pattern), np.float64)
    kinds = [(both, rows) for both, rows in ((links.intra, ~crosses), (links.inter, crosses)) if both is not None]
    for both, rows in kinds:
        if rows.any():
            costs, payload = both.known.ring[protocol], pattern.bytes[rows]
            pause[rows] = _beside(costs, both.link, payload * ways, wire[rows] * ways)
            if pipelined:
                once = costs.overhead(float(payload.max()))
                pause[rows] -= once
                delay += _hops(algorithm, group, both is links.inter) * once
    if algorithm == "ring" and not pipelined and crosses.any() and not crosses.all():
        pause = _averaged(pause, crosses, group)
    for both, rows in kinds:
        pause[rows] -= both.latency_s
    if algorithm == "tree":
        streams = max(_busiest(pattern, rows) / both.link.bandwidth for both, rows in kinds)
        delay += streams * (1 / _tree_efficiency(group, size, protocol) - 1)
    delay += cost.finish(links.each[0].known, kind, size / group.members)
    return replace(pattern, bytes=wire, pause=_ticks(pause)), delay


def in_switch(links: GroupLinks, made: CollectiveSchedule, group: Group, size: int) -> tuple[Pattern, float]:
    """All-reduce in the switch: chunks go up and down at the bandwidth that it reaches; the rest comes first.

    Raises:
        InputError: the switch has no costs.
    """
    costs, pattern, members = links.multicast, made.pattern, group.members
    if costs is None:
        raise InputError(
            f"collective algorithm 'nvls' has no costs on {links.slowest.known.name} links: use auto, ring or tree"
        )
    if not len(pattern):
        return pattern, 0.0
    slowest = links.slowest
    link = slowest.link
    count, alone = int(pattern.count[0]), int(pattern.bytes[0]) / link.bandwidth
    moved = (1 + 1 / members) * size / (costs.efficiency * link.bandwidth)
    pause = max(0.0, (moved - alone) / count - alone)
    delay = cost.multicast(costs, members, size, link.bandwidth) + slowest.base_s(costs) - costs.base_s
    delay -= count * (pause + slowest.latency_s + alone) + alone
    up = pattern.source < members
    return replace(pattern, pause=_ticks(np.where(up, pause, 0.0))), max(0.0, delay)


def at_once(links: GroupLinks, made: CollectiveSchedule, kind: str, group: Group, size: int) -> tuple[Pattern, float]:
    """Sends and receives: they share their links as they are, and what software adds comes first."""
    slowest, peers = links.slowest, group.members - 1
    costs, link, share = slowest.known.exchange, slowest.link, size / group.members
    delay = slowest.base_s(costs) + peers * slowest.known.peer_s + costs.overhead(share) - slowest.latency_s
    delay += peers * share / link.bandwidth * (1 / costs.efficiency - 1)
    delay += cost.finish(links.each[0].known, kind, share)
    if len(made.pattern.needs.values):  # in rounds: every one after the first pays the latency of its route again
        delay -= (peers - 1) * slowest.latency_s
    return made.pattern, max(0.0, delay)


def of_transfer(links: GroupLinks, size: int) -> float:
    """Seconds that software adds to one send and receive."""
    costs, link = links.slowest.known.exchange, links.slowest.link
    return links.slowest.base_s(costs) + costs.overhead(size) + size / link.bandwidth * (1 / costs.efficiency - 1)


def isolated_seconds(
    links: GroupLinks, algorithm: str, made: CollectiveSchedule, delay_s: float, group: Group
) -> float:
    """Seconds that a ring, a chain or a tree takes when nothing else uses its links: what a choice is made by.

    Exact for rings, in which all wait for the slowest, and for chains (see :mod:`triosim.engine.isolated_collective`).
    In a tree the busiest member takes its time over the stream, and the last chunk passes each level after it.

    Args:
        links: of the group.
        algorithm: ``"ring"`` or ``"tree"``.
        made: the pattern on the wire, with its pauses.
        delay_s: before the first transfer.
        group: the members.
    """
    pattern, crosses = made.pattern, _crossing(made, group)
    if not len(pattern):
        return delay_s
    each = pattern.pause / PICOSECONDS_PER_SECOND
    kinds = [(both.link, rows) for both, rows in ((links.intra, ~crosses), (links.inter, crosses)) if both is not None]
    for link, rows in kinds:
        each[rows] += link.latency + pattern.bytes[rows] / link.bandwidth
    slowest, count = float(each.max()), int(pattern.count.max())
    if (pattern.lag == 1).all() and len(pattern.lag):
        return delay_s + count * slowest
    if algorithm != "tree":
        return delay_s + float(each.sum()) + (count - 1) * slowest

    def beside(rows: NDArray[np.bool_]) -> float:
        return float(pattern.pause[rows].max(initial=0)) / PICOSECONDS_PER_SECOND

    seconds = delay_s
    streamed, depth = pattern.count > 1, (group.servers - 1).bit_length()
    for link, rows in kinds:
        last = rows & ~streamed
        levels = depth if rows is crosses else -(-group.members // group.servers) - 1
        seconds += 2 * levels * float(each[last].max(initial=0.0))
        if rows is crosses:  # two children share the way to a parent that is not the root
            shared = max(group.servers.bit_length() - 2, 0)
            seconds += 2 * shared * float(pattern.bytes[last].max(initial=0)) / link.bandwidth
    if streamed.any():
        seconds += max(
            _busiest(pattern, rows & streamed) / link.bandwidth + count * (link.latency + beside(rows & streamed))
            for link, rows in kinds
        )
    return seconds


def spread(
    links: GroupLinks, made: CollectiveSchedule, delay_s: float, group: Group
) -> tuple[CollectiveSchedule, float]:
    """Trees over several servers as a ring of the same load, made to last what :func:`isolated_seconds` says of the
    trees; the ring, and the delay in seconds.

    So the time of a collective is the one by which it was chosen, and a continuous function of every figure.
    """
    crosses = _crossing(made, group)
    even = balanced_tree(group.members, _busiest(made.pattern, ~crosses), _busiest(made.pattern, crosses), group)
    return even, max(
        0.0, isolated_seconds(links, "tree", made, delay_s, group) - isolated_seconds(links, "ring", even, 0.0, group)
    )


def _crossing(made: CollectiveSchedule, group: Group) -> NDArray[np.bool_]:
    """Edges between members of different servers; places in the network belong to the server."""
    pattern, order = made.pattern, np.array(made.order, np.int64).tobytes()
    return _apart(pattern.source, pattern.target, pattern.members, pattern.places, order, group.server)


@kept(16)
def _apart(
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    members: int,
    places: int,
    order: bytes,
    server: NDArray[np.int32],
) -> NDArray[np.bool_]:
    seat = np.concatenate([server[np.frombuffer(order, np.int64)], np.zeros(places - members, np.int32)])
    apart: NDArray[np.bool_] = (source < members) & (target < members) & (seat[source] != seat[target])
    return apart


def _averaged(pause: NDArray[np.float64], crosses: NDArray[np.bool_], group: Group) -> NDArray[np.float64]:
    """A ring's edges wait for each other in turn, so that each step would pay the cost of the dearest edge.  What
    software adds does not: a part pays it on the edges that it takes, as many of them between servers as there are
    servers."""
    share = group.servers / group.members
    return np.full_like(pause, pause[~crosses].mean() * (1 - share) + pause[crosses].mean() * share)


def _hops(algorithm: str, group: Group, between_servers: bool) -> int:
    """Links of one kind on the longest way of a chunk.

    Chunks of a pipeline follow each other while the ones before are still on their way, so that the cost of a hop is
    paid once for all of them: as in NCCL, up and down a chain in the server and a tree over servers, or along a chain.
    """
    servers = group.servers
    if algorithm == "tree":
        return 2 * (servers.bit_length() - 1) if between_servers else 2 * (-(-group.members // servers) - 1)
    return servers - 1 if between_servers else group.members - servers


def _busiest(pattern: Pattern, rows: NDArray[np.bool_]) -> int:
    """Bytes that the busiest position sends over some edges."""
    sent = np.bincount(pattern.source[rows], (pattern.bytes * pattern.count)[rows])
    return int(sent.max(initial=0))


def _tree_efficiency(group: Group, size: int, protocol: str) -> float:
    """As NCCL expects; over two servers, which are one hop apart, medium sizes lose nothing (nccl-tests on two H100
    servers: 41 GB/s of 46 at 32 MiB)."""
    return tuner.tree_efficiency(size if group.servers > 2 else 0, protocol)


def _beside(costs: TransportCosts, link: LinkClass, payload: NDArray, wire: NDArray) -> NDArray[np.float64]:
    """Seconds of each transfer beside its bytes on the wire."""
    sizes, row = np.unique(payload, return_inverse=True)
    seconds = np.array([cost.step(costs, float(b), link.bandwidth) for b in sizes.tolist()])
    return seconds[row] - wire / link.bandwidth


def _ticks(seconds: NDArray) -> NDArray[np.int64]:
    return picoseconds(np.maximum(seconds, 0.0), "a pause before a transfer of a collective")
