"""The group that some devices of a System form: which servers they are in, and what links lead between them."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

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
    if len(largest) > 1:
        routes = _routes(router, largest, np.roll(largest, -1))
        intra = _link(system, routes)
        if len(blocks) == 1:
            switch = _hub(system, routes)
    if len(blocks) > 1:
        width = min(len(blocks[0]), len(blocks[1]))
        inter = _link(system, _routes(router, blocks[0][:width], blocks[1][:width]))
    return Group(group.server, intra, inter, switch, architecture)


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
