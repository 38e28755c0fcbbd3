"""A System: accelerators, hosts and switches, and the links between them, as one directed graph.

Edges come in bulk (a cluster has hundreds of thousands), so they are kept as columns; :class:`Edge` is one of them for
code that makes or reads a few.

Which way a transfer goes is decided by ``network``; what the machine says about it is the :class:`Tier` of each edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, printable
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.names import Labels, NodeNames


class Tier(IntEnum):
    """What an edge is for.

    A route between two devices uses as few edges of the highest tier as it can, then as few of the next; the number of
    hops decides only between routes that are equal in this.  So traffic inside a server never leaves it
    through a NIC, and passes through host memory only where there is no other way.
    """

    SCALE_UP = 0
    """Between the devices of a server."""
    SCALE_OUT = 1
    """Between servers: device to NIC, NIC to switch, switch to switch."""
    HOST = 2
    """To host memory or to a memory pool."""
    NVME = 3
    """Between host memory and the drives of a server."""


@dataclass(frozen=True)
class Link:
    """What a link can do, one direction: the figures from which topology builders make edges.

    Attributes:
        bandwidth: bytes per second that large transfers reach; ``inf`` for a link that never limits.
        latency: seconds one way over one logical hop.
        overhead: seconds of software cost per transfer or collective (once, not per step).
        name: catalog name or ``""``.
        source: where the figures are from.
        rated: bandwidth by which communication libraries know the link when they choose an algorithm: the catalog's,
            whatever somebody states of it; None for a link that the catalog does not have.
    """

    bandwidth: float
    latency: float = 0.0
    overhead: float = 0.0
    name: str = ""
    source: str = ""
    rated: float | None = None

    def __post_init__(self) -> None:
        name = f"link {self.name}".strip()
        if not self.bandwidth > 0:
            raise InputError(f"{name}: bandwidth must be above zero, got {self.bandwidth:g} B/s")
        for what, seconds in (("latency", self.latency), ("overhead", self.overhead)):
            if not (seconds >= 0 and math.isfinite(seconds)):
                raise InputError(f"{name}: {what} must be zero or a positive time, got {seconds:g} s")

    def scaled(self, factor: float, oversubscription: float = 1.0) -> Link:
        """So many such links as one; oversubscribed, they carry less than they are rated at."""
        rated = None if self.rated is None else self.rated * factor
        return replace(self, bandwidth=self.bandwidth * factor / oversubscription, rated=rated)

    def paid(self) -> Link:
        """The same link for a second edge of one logical hop, of which the first carries latency and overhead."""
        return replace(self, latency=0.0, overhead=0.0)


@dataclass(frozen=True)
class Edge:
    """One direction of one link between two nodes of the graph."""

    source: int
    target: int
    link: Link
    tier: Tier = Tier.SCALE_UP


@dataclass(frozen=True)
class Edges:
    """Directed edges as columns, ``n`` rows; iterating gives one :class:`Edge` after another.

    Attributes:
        source, target: node ids, int32.
        link: row of each edge in ``links``, int32.
        tier: :class:`Tier` codes, int8.
        links: the distinct links.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    link: NDArray[np.int32]
    tier: NDArray[np.int8]
    links: tuple[Link, ...]

    @staticmethod
    def of(edges: Iterable[Edge]) -> Edges:
        """Columns of single edges."""
        edges = list(edges)
        rows: dict[Link, int] = {}
        link = [rows.setdefault(e.link, len(rows)) for e in edges]
        return Edges(
            np.array([e.source for e in edges], np.int32),
            np.array([e.target for e in edges], np.int32),
            np.array(link, np.int32),
            np.array([e.tier for e in edges], np.int8),
            tuple(rows),
        )

    @staticmethod
    def along(source: NDArray[Any], target: NDArray[Any], link: Link, tier: Tier = Tier.SCALE_UP) -> Edges:
        """One edge from each ``source`` to the ``target`` beside it, all over links like ``link``."""
        source, target = np.atleast_1d(source), np.atleast_1d(target)
        n = len(source)
        return Edges(
            source.astype(np.int32), target.astype(np.int32), np.zeros(n, np.int32), np.full(n, tier, np.int8), (link,)
        )

    @staticmethod
    def both_ways(
        a: NDArray[Any], b: NDArray[Any], link: Link, back: Link | None = None, tier: Tier = Tier.SCALE_UP
    ) -> Edges:
        """Full-duplex links between each ``a`` and the ``b`` beside it (``back`` for the edges from b to a)."""
        return Edges.join([Edges.along(a, b, link, tier), Edges.along(b, a, back or link, tier)])

    @staticmethod
    def join(parts: Sequence[Edges]) -> Edges:
        """All edges of several tables, one table after another."""
        rows: dict[Link, int] = {}
        link = [np.array([rows.setdefault(k, len(rows)) for k in p.links], np.int32)[p.link] for p in parts if len(p)]
        return Edges(
            np.concatenate([p.source for p in parts] or [np.zeros(0, np.int32)]).astype(np.int32),
            np.concatenate([p.target for p in parts] or [np.zeros(0, np.int32)]).astype(np.int32),
            np.concatenate(link or [np.zeros(0, np.int32)]),
            np.concatenate([p.tier for p in parts] or [np.zeros(0, np.int8)]).astype(np.int8),
            tuple(rows),
        )

    def renumbered(self, nodes: NDArray[Any]) -> Edges:
        """The same edges with node ``i`` called ``nodes[..., i]``: one copy for each row of ``nodes``."""
        nodes = np.atleast_2d(nodes)
        copies = len(nodes)
        return replace(
            self,
            source=nodes[:, self.source].reshape(-1).astype(np.int32),
            target=nodes[:, self.target].reshape(-1).astype(np.int32),
            link=np.tile(self.link, copies),
            tier=np.tile(self.tier, copies),
        )

    def in_tier(self, tier: Tier) -> Edges:
        """The same edges, all in one tier."""
        return replace(self, tier=np.full(len(self), tier, np.int8))

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Edge]:
        columns = (self.source.tolist(), self.target.tolist(), self.link.tolist(), self.tier.tolist())
        return (Edge(a, b, self.links[k], Tier(t)) for a, b, k, t in zip(*columns, strict=True))


@dataclass(frozen=True)
class Fabric:
    """What a topology builder returns: devices ``0..devices-1``, then ``switches`` more nodes, and edges.

    Attributes:
        devices, switches: numbers of nodes.
        edges: links between them, each direction an edge.
        roots: the switches on which a host hangs where they are part of the fabric, as in PCIe.
        torus: the sides of the torus that the devices form, numbered along the last one first; none where they do not.
    """

    devices: int
    switches: int
    edges: Edges
    roots: tuple[int, ...] = ()
    torus: tuple[int, ...] = ()

    @staticmethod
    def of(devices: int, edges: Iterable[Edge] = (), switches: int = 0, roots: tuple[int, ...] = ()) -> Fabric:
        """A fabric from single edges."""
        return Fabric(devices, switches, Edges.of(edges), roots)


def both_ways(a: int, b: int, link: Link, tier: Tier = Tier.SCALE_UP) -> tuple[Edge, Edge]:
    """The two edges of a full-duplex link."""
    return Edge(a, b, link, tier), Edge(b, a, link, tier)


@dataclass(frozen=True)
class System:
    """A machine or cluster.

    Nodes of the graph are numbered: devices first (``0..len(device_model) - 1``), then everything else.

    Attributes:
        name: for people.
        models: the distinct accelerators.
        device_model: for each device its row in ``models``.
        device_server: for each device the server it sits in (what one scale-up network joins: a DGX, a rack of 72).
        node_names: a name for each node of the graph, devices first.
        server_host: for each server the node of its host memory, -1 where it has none.
        server_nvme: for each server the node of its NVMe drives, behind its host memory, -1 where it has none.
        nvme_bytes: capacity of the drives of one server, None where not known.
        nvme_source: where the figures of the drives are from; apart from ``sources``, for few jobs use them.
        pool: node of a memory pool shared by all, -1 where there is none.
        server_cpu: CPU model of the servers, or None.
        server_cores: cores of one server, None where not known.
        edge_source, edge_target: node ids of each directed edge.
        edge_tier: :class:`Tier` of each edge, int8.
        bandwidth, latency, overhead: of each edge, as in :class:`Link`.  A transfer pays the latencies of its route and
            the largest of the overheads, once.
        rated: of each edge, as in :class:`Link`; NaN for None.
        edge_name: link name of each edge.
        topology: how the devices are joined, in words.
        torus: the sides of the torus that the devices of each server form, numbered along the last one first; none
            where they do not.
        sources: where the figures are from.
        routing, routing_options: how transfers choose their way, by name (see :mod:`triosim.network.routing`).
        routing_place: file and table that say so, for messages; empty where none does.
        ideal: whether collectives go without software costs, in rings that follow the order of their members, as closed
            forms have it.
    """

    name: str
    models: tuple[Accelerator, ...]
    device_model: NDArray[np.int32]
    device_server: NDArray[np.int32]
    node_names: Sequence[str]
    server_host: NDArray[np.int32]
    server_nvme: NDArray[np.int32]
    edge_source: NDArray[np.int32]
    edge_target: NDArray[np.int32]
    edge_tier: NDArray[np.int8]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    overhead: NDArray[np.float64]
    rated: NDArray[np.float64]
    edge_name: Sequence[str]
    pool: int = -1
    nvme_bytes: int | None = None
    nvme_source: str = ""
    server_cpu: Accelerator | None = None
    server_cores: int | None = None
    topology: str = ""
    torus: tuple[int, ...] = ()
    sources: tuple[str, ...] = field(default_factory=tuple)
    routing: str = "shortest"
    routing_options: Mapping[str, Any] = field(default_factory=dict)
    routing_place: str = ""
    ideal: bool = False

    def __repr__(self) -> str:
        """One line; the graph of a cluster would be millions of characters."""
        counts = np.bincount(self.device_model, minlength=len(self.models)).tolist()
        devices = ", ".join(f"{n} x {m.name or 'device'}" for n, m in zip(counts, self.models, strict=True) if n)
        words = f"{devices}, {self.servers} server{'s' if self.servers > 1 else ''}, {len(self.edge_tier):,} edges"
        return printable(f"System {self.name}: {words}")

    def with_memory(self, memory_bytes: int) -> System:
        """The same, of which no device has more memory than so much."""
        models = tuple(
            replace(one, memory_bytes=min(one.memory_bytes or memory_bytes, memory_bytes)) for one in self.models
        )
        return replace(self, models=models)

    @property
    def devices(self) -> int:
        """Number of accelerators."""
        return len(self.device_model)

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph (devices, hosts, switches)."""
        return len(self.node_names)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.server_host)

    @cached_property
    def devices_per_server(self) -> int:
        """Devices of each server where all have as many, neighbours on one; 0 where not."""
        size = self.devices // self.servers if self.servers else 0
        same = size and np.array_equal(self.device_server, np.arange(self.devices) // size)
        return size if same else 0

    @cached_property
    def leaving(self) -> Ragged:
        """For each node the edges that leave it, lowest first."""
        return _edges_at(self.edge_source, self.nodes)

    @cached_property
    def entering(self) -> Ragged:
        """For each node the edges that enter it, lowest first."""
        return _edges_at(self.edge_target, self.nodes)

    def model(self, device: int) -> Accelerator:
        """The accelerator model of a device."""
        return self.models[int(self.device_model[device])]


def assemble(
    name: str,
    models: Sequence[Accelerator],
    device_model: Sequence[int] | NDArray[Any],
    device_server: Sequence[int] | NDArray[Any],
    node_names: Sequence[str],
    server_host: Sequence[int] | NDArray[Any],
    edges: Sequence[Edge] | Edges,
    *,
    pool: int = -1,
    server_nvme: Sequence[int] | NDArray[Any] | None = None,
) -> System:
    """Turn nodes and edges into a checked System; what is told of it besides is replaced in it.

    Args:
        name: for people.
        models: the different accelerators.
        device_model: row in ``models`` of each device.
        device_server: server of each device.
        node_names: of devices, hosts, switches and whatever else edges join, devices first.
        server_host: node of each server's host, -1 for none.
        edges: directed links between nodes.
        pool: node of the memory pool, -1 for none.
        server_nvme: node of each server's drives, -1 for none; none anywhere if not given.

    Raises:
        InputError: there is no device, two nodes share a name, an edge names a node that does not exist, or some
            device, host, drive or pool cannot be reached from a device or cannot reach it.
    """
    if not len(device_model):
        raise InputError(f"system {name!r} has no device")
    names = node_names if isinstance(node_names, NodeNames) else NodeNames(tuple(node_names), len(device_model))
    if (twice := names.twice()) is not None:
        raise InputError(f"system {name!r}: two nodes are called {twice!r}: give each its own name")
    if not isinstance(edges, Edges):
        edges = Edges.of(edges)
    for node in (edges.source, edges.target):
        for wrong in node[(node < 0) | (node >= len(names))][:1].tolist():
            raise InputError(f"system {name!r}: a link names node {wrong}, but there are {len(names)}")
    row = edges.link
    system = System(
        name=name,
        models=tuple(models),
        device_model=np.array(device_model, np.int32),
        device_server=np.array(device_server, np.int32),
        node_names=names,
        server_host=np.array(server_host, np.int32),
        server_nvme=np.full(len(server_host), -1, np.int32) if server_nvme is None else np.array(server_nvme, np.int32),
        edge_source=edges.source,
        edge_target=edges.target,
        edge_tier=edges.tier,
        bandwidth=np.array([k.bandwidth for k in edges.links], np.float64)[row],
        latency=np.array([k.latency for k in edges.links], np.float64)[row],
        overhead=np.array([k.overhead for k in edges.links], np.float64)[row],
        rated=np.array([np.nan if k.rated is None else k.rated for k in edges.links], np.float64)[row],
        edge_name=Labels(tuple(k.name for k in edges.links), row),
        pool=pool,
    )
    _check_reachable(system)
    return system


def _edges_at(ends: NDArray[np.int32], nodes: int) -> Ragged:
    offsets = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(ends, minlength=nodes), out=offsets[1:])
    return Ragged(np.argsort(ends, kind="stable"), offsets)


def _check_reachable(system: System) -> None:
    """Devices, hosts, drives and pool must reach each other: walk forwards and backwards from device 0."""
    others = np.concatenate([system.server_host, system.server_nvme, [system.pool]])
    ends = np.concatenate([np.arange(system.devices), others[others >= 0]]).astype(int)
    if len(ends) < 2 or _joined_both_ways(system, ends):
        return
    for edges, beyond, way in (
        (system.leaving, system.edge_target, "be reached from"),
        (system.entering, system.edge_source, "reach"),
    ):
        missing = ends[~_reached(edges, beyond)[ends]]
        if len(missing):
            raise InputError(
                f"system {system.name!r}: {system.node_names[missing[0]]!r} cannot {way} {system.node_names[0]!r}: "
                "add a link between them"
            )


def _joined_both_ways(system: System, ends: NDArray[np.int64]) -> bool:
    """Whether every edge has one back, and the nodes at ``ends`` are in one piece.

    Takes as many rounds as the logarithm of the longest way, not as the way: of a ring of a million devices 20.
    """
    source, target = system.edge_source.astype(np.int64), system.edge_target.astype(np.int64)
    forth, back = _ascending(source * system.nodes + target), _ascending(target * system.nodes + source)
    if not np.array_equal(forth, back):
        return False
    piece = np.arange(system.nodes)
    while True:
        lowest = np.minimum(piece[source], piece[target])
        joined = piece.copy()
        np.minimum.at(joined, piece[source], lowest)  # hook whole pieces, then shorten the way to the lowest
        while not np.array_equal(joined, joined[joined]):
            joined = joined[joined]
        if np.array_equal(joined, piece):
            return bool((piece[ends] == piece[ends[0]]).all())
        piece = joined


def _ascending(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values in order.  numpy.unique hashes them, which takes 20 times as long for pairs of nodes."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _reached(edges: Ragged, beyond: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which nodes can be reached from node 0, breadth first, one ring of nodes at a time.

    Args:
        edges: those of each node.
        beyond: the node to which each edge leads.
    """
    seen = np.zeros(len(edges), np.bool_)
    seen[0] = True
    place = np.zeros(len(edges), np.int64)
    ring = np.zeros(1, np.int64)
    while len(ring):
        found = beyond[edges.take(ring).values]
        found = found[~seen[found]]
        seen[found] = True
        place[found] = np.arange(len(found))
        ring = found[place[found] == np.arange(len(found))]  # each node once
    return seen
