"""From a description to a System: one node is put together, copied, and its copies are joined.

Read :func:`cluster` first.  While a node is put together, its devices are numbered from 0 and everything else follows
in the order in which it is added; in the System all devices come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.core.limits import check_memory
from triosim.hardware import catalog, pim
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.ecmp import hashed
from triosim.hardware.names import NodeNames
from triosim.hardware.system import Edges, Fabric, Link, System, Tier, assemble
from triosim.hardware.topology import DEVICE_BYTES, LINK_BYTES, builder
from triosim.hardware.wiring import UNLIMITED, join, own_host_link, table_link, table_wire

if TYPE_CHECKING:  # pydantic is loaded only where a file is read
    from triosim.hardware.description import DeviceTable, HostTable, LinkEdge, ScaleOut, SystemFile

NVME_LATENCY_S = 100e-6
"""Of a read from the flash of a drive for servers, as usual in their data sheets (Samsung PM1733: 100 us)."""
MOST_DEVICES = 1_000_000
"""Beyond it a number is taken for a slip of the hand."""


@dataclass
class _Node:
    """One node while it is put together.

    Attributes:
        models: accelerator of each device.
        servers: server of each device, numbered within the node.
        names: of the nodes of the graph, devices first.
        hosts: host memory of each server, -1 for none.
        nvme: NVMe drives of each server, none where there are none.
        nics: the NICs.
        edges: what joins them.
        roots: the switches on which a host hangs.
        torus: sides of the torus that the devices form; none where they do not.
        cpu: of the hosts.
    """

    models: list[Accelerator]
    servers: list[int]
    names: list[str]
    hosts: list[int]
    nvme: list[int] = field(default_factory=list)
    nics: list[int] = field(default_factory=list)
    edges: list[Edges] = field(default_factory=list)
    roots: tuple[int, ...] = ()
    torus: tuple[int, ...] = ()
    cpu: Accelerator | None = None

    @property
    def devices(self) -> int:
        return len(self.models)

    def add(self, name: str) -> int:
        """A new node of the graph; returns its number."""
        self.names.append(name)
        return len(self.names) - 1


def cluster(file: SystemFile, where: str, name: str, nodes: int) -> System:
    """The system of ``nodes`` nodes that a file describes.

    Args:
        file: what the file says.
        where: the file, for messages.
        name: of the system, unless the file gives one.
        nodes: how many nodes.

    Raises:
        InputError: names that nothing answers to, links that do not fit, or devices that cannot reach each other; names
            the file and the table in it.
    """
    node = _devices(file, where)
    _join_devices(file, where, node)
    _add_hosts(file, where, node)
    _add_nvme(file, where, node)
    with at(where):
        checked_count(nodes * node.devices, "devices")
        links = sum(len(edges) for edges in node.edges) // 2
        check_memory(
            nodes * (node.devices * DEVICE_BYTES + links * LINK_BYTES), f"{nodes:,} nodes of {node.devices} devices",
            "use fewer nodes",
        )  # fmt: skip
    outside = _scale_out(file, where, node, nodes)

    numbers = _numbers(node, nodes)
    inside = numbers.size
    shared: list[str] = []
    edges = [Edges.join(node.edges).renumbered(numbers)]
    topology = file.scale_up.topology if file.scale_up else "graph" if file.link else ""
    if outside is not None and file.scale_out is not None:
        ends = np.concatenate([numbers[:, node.nics].reshape(-1), inside + np.arange(outside.switches)])
        edges.append(outside.edges.renumbered(ends).in_tier(Tier.SCALE_OUT))
        shared += ["network"] if outside.switches == 1 else numbered("network", outside.switches)
        topology = f"{topology}; {nodes} nodes, {file.scale_out.topology}".lstrip("; ")
    pool = -1
    if file.pool is not None:
        with at(where, "pool"):
            wire = table_link(file.pool, "pool")
        pool = inside + len(shared)
        shared.append("pool")
        everyone = np.arange(nodes * node.devices)
        edges.append(Edges.both_ways(everyone, np.full(len(everyone), pool), wire, tier=Tier.HOST))

    name = file.name or name
    models, model_of = _distinct(node.models)
    joined = Edges.join(edges)
    hosts = np.array(node.hosts)
    server_of = np.array(node.servers) + len(hosts) * np.arange(nodes)[:, None]
    with at(where):
        system = assemble(
            f"{nodes} x {name}" if nodes > 1 else name,
            models,
            np.tile(model_of, nodes),
            server_of.reshape(-1),
            NodeNames(tuple(node.names), node.devices, nodes, tuple(shared)),
            np.where(hosts >= 0, numbers[:, hosts], -1).reshape(-1),
            joined,
            pool=pool,
            server_nvme=numbers[:, node.nvme].reshape(-1) if node.nvme else np.full(len(hosts) * nodes, -1),
        )
    system = replace(
        system,
        nvme_bytes=file.nvme.drives * file.nvme.capacity if file.nvme and file.nvme.capacity else None,
        nvme_source=file.nvme.source if file.nvme else "",
        server_cpu=node.cpu,
        server_cores=None if isinstance(file.host, list) or file.host is None else file.host.cores,
        topology=topology,
        torus=node.torus if len(hosts) == 1 else (),
        sources=sources(models, joined.links, f"{name}: {file.source}" if file.source else ""),
    )
    return _routed(system, file, where)


def _routed(system: System, file: SystemFile, where: str) -> System:
    """The System with the routing that the file asks for."""
    if file.routing is None:
        return system
    options = dict(file.routing.options)
    if isinstance(options.get("table"), str):
        options["table"] = str(Path(where).parent / str(options["table"]))
    return replace(system, routing=file.routing.name, routing_options=options, routing_place=f"{where}: routing")


def _devices(file: SystemFile, where: str) -> _Node:
    if file.devices is not None:
        with at(where, "devices.model"):
            model = device_of(file.devices.model)
        count = file.devices.count
        return _Node([model] * count, [0] * count, numbered(prefix(model), count), [-1])
    models: list[Accelerator] = []
    names: list[str] = []
    labels: list[str | int] = []
    for i, entry in enumerate(file.device):
        with at(where, f"device #{i + 1}.model"):
            model = device_of(entry.model)
        added = [entry.name] if entry.count is None else numbered(entry.name, entry.count)
        models += [model] * len(added)
        labels += [entry.server] * len(added)
        names += added
    order = _servers(file)
    return _Node(models, [order[label] for label in labels], names, [-1] * len(order))


def _servers(file: SystemFile) -> dict[str | int, int]:
    """The labels of servers, numbered in the order in which devices name them."""
    return {label: k for k, label in enumerate(dict.fromkeys(entry.server for entry in file.device))}


def _join_devices(file: SystemFile, where: str, node: _Node) -> None:
    """Add the edges of ``[scale_up]``, and the switches, hosts and links of a written-out graph."""
    if file.scale_up is not None:
        _scale_up(file, where, node)
    elif node.devices > 1 and not file.link:
        raise InputError(f"{where}: {node.devices} devices need links: add a [scale_up] or [[link]] tables")
    for switch in file.switch:
        node.add(switch.name)
    if isinstance(file.host, list):
        _add_host_nodes(file, where, node)
    known: dict[str, int] = {}
    for i, name in enumerate(node.names):
        if known.setdefault(name, i) != i:
            raise InputError(f"{where}: two nodes are called {name!r}: give each its own name")
    ends: set[int] = set()
    for i, edge in enumerate(file.link):
        with at(where, f"link #{i + 1}"):
            pair = _end(known, edge.start, "from"), _end(known, edge.end, "to")
            node.edges += _edges(edge, *pair, node)
            ends.update(pair)
    for switch in file.switch:
        if known[switch.name] not in ends:
            raise InputError(f"{where}: switch {switch.name!r} has no link: add a [[link]] to it or leave it out")


def _scale_up(file: SystemFile, where: str, node: _Node) -> None:
    up = file.scale_up
    assert up is not None
    with at(where, "scale_up"):
        if not up.link and up.bandwidth is None and len({model.name for model in node.models}) > 1:
            raise InputError("devices of different kinds share no link of their own: give link or bandwidth")
        wire = table_wire(up, node.models[0], node.devices)
        fabric = join(up.topology, node.devices, wire, up.shape, up.options)
    node.names += switch_names(fabric.switches, wire.name)  # numbered as in the fabric: right after the devices
    node.edges.append(fabric.edges)
    node.roots, node.torus = fabric.roots, fabric.torus


def _add_host_nodes(file: SystemFile, where: str, node: _Node) -> None:
    """The ``[[host]]`` tables: one for a server at most."""
    assert isinstance(file.host, list)
    order = _servers(file) or {0: 0}
    cpus: dict[str, Accelerator] = {}
    for i, entry in enumerate(file.host):
        with at(where, f"host #{i + 1}"):
            if entry.server not in order:
                raise unknown("server", str(entry.server), map(str, order), "(a server is what devices name as theirs)")
            server = order[entry.server]
            if node.hosts[server] >= 0:
                raise InputError(f"server {entry.server!r} has a host already: give each server one")
            node.hosts[server] = node.add(entry.name)
            if entry.cpu:
                node.cpu = catalog.accelerator(entry.cpu)
                cpus[node.cpu.name] = node.cpu
    if len(cpus) > 1:
        raise InputError(f"{where}: host: servers with different CPUs ({', '.join(cpus)}) are not supported: name one")


def _end(known: dict[str, int], name: str, key: str) -> int:
    if name not in known:
        raise unknown("node", name, known, f"({key!r} must name a [[device]], [[switch]] or [[host]])")
    return known[name]


def _edges(edge: LinkEdge, start: int, end: int, node: _Node) -> list[Edges]:
    """The one or two directions of a ``[[link]]``."""
    if start == end:
        raise InputError(f"joins {edge.start!r} with itself: name two nodes")
    if edge.link and not edge.links and edge.bandwidth is None and max(start, end) < node.devices:
        facts = catalog.link_facts(edge.link)
        if facts.links != 1:
            raise InputError(
                f"say how many {facts.name} links join {edge.start!r} and {edge.end!r}, for example links = 1"
            )
    tier = Tier.HOST if {start, end} & set(node.hosts) else Tier.SCALE_UP
    wire = table_link(edge, "host" if tier == Tier.HOST else "scale_up")
    parts = []
    for a, b in ((start, end), (end, start))[: 2 if edge.both else 1]:
        # A latency that is not stated is that of a whole hop from device to device: behind a switch it has been paid.
        behind = a >= node.devices and b < node.devices and tier == Tier.SCALE_UP
        paid = edge.latency is None and behind
        parts.append(Edges.along(np.array([a]), np.array([b]), wire.paid() if paid else wire, tier))
    return parts


def _add_hosts(file: SystemFile, where: str, node: _Node) -> None:
    """What ``[host]`` asks for: one host memory for each server."""
    host = file.host
    if host is None or isinstance(host, list):
        return
    with at(where, "host"):
        if host.cpu:
            node.cpu = catalog.accelerator(host.cpu)
        at_root = bool(node.roots) and not host.link and host.bandwidth is None
        if at_root and len(node.hosts) > 1:
            raise InputError("the hosts of several servers cannot hang on one root: give link or bandwidth")
        for server in range(len(node.hosts)):
            memory = node.hosts[server] = node.add(f"host{server}")
            if at_root:  # The root is part of the CPU: what limits is the tree below it.
                wire, roots = replace(UNLIMITED, name="root complex"), np.array(node.roots)
                node.edges.append(Edges.both_ways(roots, np.full(len(roots), memory), wire, tier=Tier.HOST))
            else:
                _link_host(host, memory, np.flatnonzero(np.array(node.servers) == server), node)


def _add_nvme(file: SystemFile, where: str, node: _Node) -> None:
    """What ``[nvme]`` asks for: the drives of each server as one, behind its host memory."""
    table = file.nvme
    if table is None:
        return
    with at(where, "nvme"):
        if min(node.hosts) < 0:
            raise InputError("drives are reached through host memory: add [host]")
        latency = NVME_LATENCY_S if table.latency is None else table.latency
        read, write = (
            Link(table.drives * rate, latency, name=f"NVMe {what}")
            for what, rate in (("reads", table.read), ("writes", table.write))
        )
        for server, memory in enumerate(node.hosts):
            drives = node.add(f"nvme{server}")
            node.nvme.append(drives)
            node.edges.append(Edges.both_ways(np.array([drives]), np.array([memory]), read, write, Tier.NVME))


def _link_host(host: HostTable, memory: int, members: NDArray[np.int64], node: _Node) -> None:
    """Links from devices to their host memory, each for ``devices_per_link`` neighbours of one kind."""
    for kind in dict.fromkeys(node.models[i].name for i in members):
        alike = np.array([i for i in members if node.models[i].name == kind])
        own = None if host.link or host.bandwidth is not None else own_host_link(node.models[alike[0]])
        wire = table_link(host, "host", own)
        if host.devices_per_link == 1:
            node.edges.append(Edges.both_ways(alike, np.full(len(alike), memory), wire, tier=Tier.HOST))
            continue
        group = np.arange(len(alike)) // host.devices_per_link
        first = sum(name.startswith("pcie") for name in node.names)
        bridges = np.array([node.add(f"pcie{first + i}") for i in range(group[-1] + 1)])
        node.edges.append(Edges.both_ways(alike, bridges[group], wire, wire.paid(), Tier.HOST))
        node.edges.append(Edges.both_ways(bridges, np.full(len(bridges), memory), wire.paid(), wire, Tier.HOST))


def _scale_out(file: SystemFile, where: str, node: _Node, nodes: int) -> Fabric | None:
    """Add NICs to the node, and the network that joins those of all nodes; nothing for a single node.

    The devices of that network are the NICs of the first node, then those of the second, and so on.
    """
    out = file.scale_out
    if out is None:
        if nodes > 1:
            raise InputError(f"{where}: several nodes need a [scale_out] that joins them: add one, or ask for one node")
        return None
    with at(where, "scale_out"):
        wire = _nic_link(out, node)  # for a single node too: what is wrong with it should not wait for a second
        builder(out.topology, out.options)
        if nodes == 1:
            return None
        nics = min(out.nics or node.devices, node.devices)
        node.nics = [node.add(f"nic{i}") for i in range(nics)]
        for i, model in enumerate(node.models):
            # A NIC's latency is of the whole way from device to device: the way to the NIC adds nothing.
            reach = catalog.link(model.host_link).paid() if model.host_link else UNLIMITED
            nic = np.array([node.nics[i * nics // node.devices]])
            node.edges.append(Edges.both_ways(np.array([i]), nic, reach, tier=Tier.SCALE_OUT))
        if out.topology == "switch" and out.link and out.bandwidth is None:
            wire = hashed(wire, nodes * nics)
        return join(out.topology, nodes * nics, wire, out.shape, out.options, server=nics)


def _nic_link(out: ScaleOut, node: _Node) -> Link:
    """What one NIC of the System can do: one physical link, or several together where there are more than devices."""
    wire = table_link(out, "scale_out")
    if out.link and not out.links:
        facts = catalog.link_facts(out.link)
        one = facts.link(1) if facts.link_bandwidth else facts.link()
        wire = replace(wire, bandwidth=one.bandwidth if out.bandwidth is None else out.bandwidth, rated=one.rated)
    if out.nics and out.nics > node.devices:
        if out.nics % node.devices:
            raise InputError(f"{out.nics} nics cannot be shared out to {node.devices} devices: give a multiple")
        wire = wire.scaled(out.nics // node.devices)
    return wire


def _numbers(node: _Node, nodes: int) -> NDArray[np.int64]:
    """Numbers in the System of the nodes of the graph of each node, shape ``(nodes, len(node.names))``."""
    devices, others = node.devices, len(node.names) - node.devices
    copy = np.arange(nodes)[:, None]
    first = copy * devices + np.arange(devices)
    rest = nodes * devices + copy * others + np.arange(others)
    return np.concatenate([first, rest], axis=1)


def _distinct(models: Sequence[Accelerator]) -> tuple[list[Accelerator], NDArray[np.int32]]:
    """The models without repeats, and for each device its row in them."""
    distinct: list[Accelerator] = []
    rows: dict[int, int] = {}
    for model in models:
        if id(model) not in rows:
            row = next((i for i, m in enumerate(distinct) if m == model), len(distinct))
            rows[id(model)] = row
            distinct += [model] if row == len(distinct) else []
    return distinct, np.array([rows[id(model)] for model in models], np.int32)


def device_of(given: str | DeviceTable) -> Accelerator:
    """The accelerator that a file names or describes.

    Raises:
        InputError: the catalog knows no accelerator, or no link, of a name that is used.
    """
    if isinstance(given, str):
        processor, memory = pim.split(given)
        found = catalog.accelerator(processor)
        return with_memory(found, memory) if memory else found
    if given.like:
        base = catalog.accelerator(given.like)
    elif given.design:
        from triosim.hardware import designed

        base = designed.device(given.design, given.clock_hz, given.vector_flops)
        if given.memory_bandwidth is not None:
            assert base.design is not None
            base = replace(base, design=replace(base.design, bandwidth_stated=True))
    else:
        base = Accelerator(given.name)
    said = given.model_dump(
        exclude={"like", "memory", "cache", "design", "vector_flops", "pim"}, exclude_none=True
    )  # fmt: skip
    if given.memory is not None:
        said["memory_bytes"] = given.memory
    if given.cache is not None:
        said["cache_bytes"] = given.cache
    said["peak_flops"] = {**base.peak_flops, **(given.peak_flops or {})}
    if given.matrix_types is None and base.matrix_types is not None:  # rates that the base has not are of its units too
        more = [dtype for dtype in given.peak_flops or () if dtype not in base.peak_flops]
        said["matrix_types"] = (*base.matrix_types, *more)
    for key in ("link", "host_link"):
        if said.get(key):
            said[key] = catalog.link_facts(said[key]).name
    if given.like and given.source is None:
        said["source"] = f"as {base.name}, with changes by the user"
    made = replace(base, **said)
    return replace(made, pim=pim.pim_memory(given.pim)) if given.pim else made


def with_memory(device: Accelerator, memory: str) -> Accelerator:
    """The device with memory that computes, a ready one or one that a file describes.

    Raises:
        InputError: there is none of this name.
    """
    made = pim.pim_memory(memory)
    return replace(device, name=f"{device.name}+{made.name}", pim=made)


def sources(models: Sequence[Accelerator], links: Sequence[Link], own: str = "") -> tuple[str, ...]:
    """Where the figures of a system are from, each said once; ``own`` says it of the system as a whole."""
    said = [
        *([own] if own else []),
        *(f"{model.name}: {model.source}" for model in models if model.source),
        *(f"{link.name or 'link'}: {link.source}" for link in links if link.source),
    ]
    return tuple(dict.fromkeys(said))


def prefix(model: Accelerator) -> str:
    """What devices of this kind are called: gpu, cpu, or chip for everything else."""
    kind = model.kind.removeprefix("edge-")
    return {"gpu": "gpu", "apu": "gpu", "cpu": "cpu"}.get(kind, "chip")


def numbered(name: str, count: int) -> list[str]:
    """``["gpu0", "gpu1", ...]``."""
    return [f"{name}{i}" for i in range(count)]


def switch_names(count: int, link: str) -> list[str]:
    """Names for the switches of a fabric."""
    name = "nvswitch" if link.startswith("NVLink") else "switch"
    return [name] if count == 1 else numbered(name, count)


def checked_count(count: int, what: str) -> None:
    """Refuse what is not a sensible number of things.

    Raises:
        InputError: not a whole number from 1 to :data:`MOST_DEVICES`.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise InputError(f"{what} must be a whole number, got {count!r}")
    if not 1 <= count <= MOST_DEVICES:
        raise InputError(f"{what} must be from 1 to {MOST_DEVICES:,}, got {count:,}")


@contextmanager
def at(where: str, place: str = "") -> Iterator[None]:
    """Say of an input error which file and table it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {place + ': ' if place else ''}{error}") from None
