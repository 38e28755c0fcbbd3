"""Putting on a pattern what software costs: flags on the wire, pauses before transfers, a delay before the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.collectives import constants, cost, tuner
from triosim.collectives.algorithm import Schedule
from triosim.collectives.constants import PROTOCOLS, WIRE, Constants, Costs
from triosim.collectives.group import Group, LinkClass
from triosim.engine.graph import Pattern
from triosim.errors import InputError
from triosim.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True)
class Priced:
    """A link with its constants."""

    link: LinkClass
    known: Constants


@dataclass(frozen=True)
class Links:
    """The links of a group, with constants for both kinds.

    Attributes:
        intra, inter: as in :class:`Group`; at least one.
    """

    intra: Priced | None
    inter: Priced | None

    @staticmethod
    def of(group: Group, known: Sequence[Constants] = ()) -> Links | None:
        """None where nothing is known of a link: one that the user described, or of a family without constants.

        Args:
            group: two members or more.
            known: constants that stand before those that come with the program.
        """
        found: list[Priced | None] = []
        for link in (group.intra, group.inter):
            costs = constants.of_link(link.name, link.family, known) if link is not None else None
            if link is not None and costs is None:
                return None
            found.append(Priced(link, costs) if link is not None and costs is not None else None)
        return Links(*found)

    @property
    def each(self) -> list[Priced]:
        """The links that the group has."""
        return [both for both in (self.intra, self.inter) if both is not None]

    @property
    def slowest(self) -> Priced:
        """The link that a ring through all members is as fast as."""
        return self.each[-1]

    @property
    def multicast(self) -> Costs | None:
        """Costs of all-reduce in the switch; None where members are in several servers or the switch cannot."""
        return self.intra.known.multicast if self.intra is not None and self.inter is None else None

    def protocols(self) -> list[str]:
        """Protocols that have costs on all links."""
        return [p for p in PROTOCOLS if all(p in both.known.ring for both in self.each)]

    def source(self) -> str:
        """Where the costs are from, in words."""
        return "; ".join(constants.told(both.link.name, both.known) for both in self.each)


def in_steps(
    links: Links, made: Schedule, kind: str, algorithm: str, group: Group, size: int, protocol: str
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
    delay = max(both.known.ring[protocol].base_s for both in links.each)
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
        pause[rows] -= both.link.latency
    if algorithm == "tree":
        streams = max(_busiest(pattern, rows) / both.link.bandwidth for both, rows in kinds)
        delay += streams * (1 / _tree_efficiency(group, size, protocol) - 1)
    delay += cost.finish(links.each[0].known, kind, size / group.members)
    return replace(pattern, bytes=wire, pause=_ticks(pause)), delay


def in_switch(links: Links, made: Schedule, group: Group, size: int) -> tuple[Pattern, float]:
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
    link = links.slowest.link
    count, alone = int(pattern.count[0]), int(pattern.bytes[0]) / link.bandwidth
    moved = (1 + 1 / members) * size / (costs.efficiency * link.bandwidth)
    pause = max(0.0, (moved - alone) / count - alone)
    delay = cost.multicast(costs, members, size, link.bandwidth) - (count * (pause + link.latency + alone) + alone)
    up = pattern.source < members
    return replace(pattern, pause=_ticks(np.where(up, pause, 0.0))), max(0.0, delay)


def at_once(links: Links, made: Schedule, kind: str, group: Group, size: int) -> tuple[Pattern, float]:
    """Sends and receives: they share their links as they are, and what software adds comes first."""
    slowest, peers = links.slowest, group.members - 1
    costs, link, share = slowest.known.exchange, slowest.link, size / group.members
    delay = costs.base_s + peers * slowest.known.peer_s + costs.overhead(share) - link.latency
    delay += peers * share / link.bandwidth * (1 / costs.efficiency - 1)
    delay += cost.finish(links.each[0].known, kind, share)
    if len(made.pattern.needs.values):  # in rounds: every one after the first pays the latency of its route again
        delay -= (peers - 1) * link.latency
    return made.pattern, max(0.0, delay)


def of_transfer(links: Links, size: int) -> float:
    """Seconds that software adds to one send and receive."""
    costs, link = links.slowest.known.exchange, links.slowest.link
    return costs.base_s + costs.overhead(size) + size / link.bandwidth * (1 / costs.efficiency - 1)


def _crossing(made: Schedule, group: Group) -> NDArray[np.bool_]:
    """Edges between members of different servers; places in the network belong to the server."""
    pattern = made.pattern
    seat = np.concatenate([group.server[list(made.order)], np.zeros(pattern.places - pattern.members, np.int32)])
    inside = (pattern.source < pattern.members) & (pattern.target < pattern.members)
    return inside & (seat[pattern.source] != seat[pattern.target])


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


def _beside(costs: Costs, link: LinkClass, payload: NDArray, wire: NDArray) -> NDArray[np.float64]:
    """Seconds of each transfer beside its bytes on the wire."""
    sizes, row = np.unique(payload, return_inverse=True)
    seconds = np.array([cost.step(costs, float(b), link.bandwidth) for b in sizes.tolist()])
    return seconds[row] - wire / link.bandwidth


def _ticks(seconds: NDArray) -> NDArray[np.int64]:
    return np.rint(np.maximum(seconds, 0.0) * PICOSECONDS_PER_SECOND).astype(np.int64)
