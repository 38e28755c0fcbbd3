"""The group that some devices of a System form: which servers they are in, and what links lead between them."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.cycles import MOST_MEMBERS, disjoint_rings
from triosim.collectives.group import Group, LinkClass, blocks_of
from triosim.hardware import catalog
from triosim.hardware.system import System, Tier
from triosim.network.routes import Router


def describe(system: System, router: Router, devices: NDArray) -> Group:
    """Servers and links of a group.

    The link between members of a server is that of the narrowest edge between two neighbours; between servers it is
    that of the narrowest edge when each member of one server sends to the member of the same place in the next.

    Args:
        system: the machine.
        router: of that system.
        devices: device of each member, shape ``(members,)``.

    Raises:
        InputError: no links lead from one member to another.
    """
    devices = np.asarray(devices, np.int64)
    group = Group(system.device_server[devices].astype(np.int32))
    blocks = [devices[block] for block in blocks_of(group, len(devices))]
    largest = max(blocks, key=len)
    architecture = system.model(int(devices[0])).architecture
    intra = inter = None
    switch = -1
    rings: tuple[tuple[int, ...], ...] = ()
    if len(largest) > 1:
        routes = _routes(router, largest, np.roll(largest, -1))
        intra = _link(system, routes)
        if len(blocks) == 1:
            switch = _hub(system, routes)
            rings, found = _rings(system, devices)
            intra = found or intra
    if len(blocks) > 1:
        width = min(len(blocks[0]), len(blocks[1]))
        inter = _link(system, _routes(router, blocks[0][:width], blocks[1][:width]))
    return Group(group.server, intra, inter, switch, architecture, rings)


def _routes(router: Router, sources: NDArray, targets: NDArray) -> list[NDArray[np.int32]]:
    return list(router.routes(sources, targets))


def _link(system: System, routes: list[NDArray[np.int32]]) -> LinkClass:
    """The narrowest edge of all routes when all are used at once, with what a whole route costs."""
    used, times = np.unique(np.concatenate(routes), return_counts=True)
    share = system.bandwidth[used] / times
    narrowest = int(used[np.argmin(share)])
    name = system.edge_name[narrowest]
    return LinkClass(
        float(share.min()),
        max(float(system.latency[route].sum()) for route in routes),
        max(float(system.overhead[route].max(initial=0.0)) for route in routes),
        name,
        _family(name),
    )


def _rings(system: System, devices: NDArray) -> tuple[tuple[tuple[int, ...], ...], LinkClass | None]:
    """Rings over direct links between the devices, and the link that they are together."""
    if len(devices) > MOST_MEMBERS:
        return (), None
    place = np.full(system.nodes, -1)
    place[devices] = np.arange(len(devices))
    source, target = place[system.edge_source], place[system.edge_target]
    direct = np.flatnonzero((source >= 0) & (target >= 0) & (system.edge_tier == Tier.SCALE_UP))
    if not len(direct):
        return (), None
    one = float(system.bandwidth[direct].min())
    if not np.isfinite(system.bandwidth[direct]).all():  # links that never limit need not be divided
        return (), None
    links = np.zeros((len(devices), len(devices)), np.int64)
    np.add.at(links, (source[direct], target[direct]), np.floor(system.bandwidth[direct] / one + 1e-6).astype(np.int64))
    rings = disjoint_rings(np.minimum(links, links.T))
    if not rings:
        return (), None
    first = int(direct[0])
    latency, overhead = float(system.latency[direct].max()), float(system.overhead[direct].max())
    name = system.edge_name[first]
    return rings, LinkClass(one * len(rings), latency, overhead, name, _family(name))


@functools.lru_cache(maxsize=64)
def _family(name: str) -> str:
    known = {row["name"]: row["family"] for row in catalog.link_rows()}
    return known.get(name, "")


def _hub(system: System, routes: list[NDArray[np.int32]]) -> int:
    """The one node between all neighbours, if every route is two edges of the scale-up network, else -1."""
    if any(len(route) != 2 for route in routes):
        return -1
    middle = {int(system.edge_target[route[0]]) for route in routes}
    edges = np.concatenate(routes)
    inside = bool((system.edge_tier[edges] == Tier.SCALE_UP).all())
    return middle.pop() if len(middle) == 1 and inside else -1
