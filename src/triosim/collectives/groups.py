"""The group that some devices of a System form: which servers they are in, and what links lead between them."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from triosim.collectives import constants
from triosim.collectives.cycles import MOST_MEMBERS, widest_rings
from triosim.collectives.group import Group, LinkClass, blocks_of
from triosim.core.columns import Ragged
from triosim.hardware import catalog
from triosim.hardware.names import Labels
from triosim.hardware.system import System, Tier
from triosim.hardware.wiring import usual
from triosim.network.routes import Router


def describe(system: System, router: Router, devices: NDArray) -> Group:
    """Servers and links of a group.

    The link between members of a server is as wide as the narrowest edge between two neighbours; between servers, as
    the narrowest edge when each member of one server sends to the member of the same place in the next.  What kind of
    link that is does not depend on which edge is narrowest, so no figure changes how a collective is done.

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
    intra = inter = box = None
    switch = -1
    rings: tuple[tuple[int, ...], ...] = ()
    if len(largest) > 1:
        routes = router.routes(largest, np.roll(largest, -1))
        intra = _link(system, routes, between=False)
        if len(blocks) == 1:
            switch = _hub(system, routes)
            rings, found = _rings(system, devices)
            intra = found or intra
            if system.torus:
                from triosim.network.torus_box import box_of

                box = box_of(devices % math.prod(system.torus), system.torus)
    if len(blocks) > 1:
        width = min(len(blocks[0]), len(blocks[1]))
        inter = _link(system, router.routes(blocks[0][:width], blocks[1][:width]), between=True)
    return Group(group.server, intra, inter, switch, architecture, rings, box)


def _link(system: System, routes: Ragged, between: bool) -> LinkClass:
    """What all routes at once do, with what a whole route costs.

    Args:
        system: the machine.
        routes: edges.
        between: whether the routes are between servers.
    """
    used, times = np.unique(routes.values, return_counts=True)
    latency = np.bincount(routes.rows(), system.latency[routes.values], len(routes))
    return _link_class(
        system,
        used,
        between,
        bandwidth=float((system.bandwidth[used] / times).min()),
        rated=float((system.rated[used] / times).min()),
        latency=float(latency.max()),
    )


def _link_class(
    system: System, used: NDArray, between: bool, bandwidth: float, rated: float, latency: float
) -> LinkClass:
    """The link that some edges are together; a rating of NaN is none."""
    name = _name(system, used, between)
    family = _family(name)
    known = name and (not between or constants.of_link(name, family) is not None)
    facts = catalog.link_facts(name) if known and family else usual("scale_out" if between else "scale_up")
    return LinkClass(
        bandwidth,
        latency,
        float(system.overhead[used].max(initial=0.0)),
        name,
        family,
        rated=None if np.isnan(rated) else rated,
        usual_latency=facts.latency,
        usual_overhead=facts.overhead,
    )


def _name(system: System, used: NDArray, between: bool) -> str:
    """What the link of some edges is called, whatever their figures.

    Between servers it is that of the network behind the NICs.  Where several kinds of link follow each other it is that
    of the slower technology, and none where somebody described one of them by its figures.
    """
    limiting = used[np.isfinite(system.bandwidth[used])]
    edges = limiting if len(limiting) else used
    if between:
        out = system.edge_tier[edges] == Tier.SCALE_OUT
        behind = out & (system.edge_source[edges] >= system.devices) & (system.edge_target[edges] >= system.devices)
        edges = edges[behind] if behind.any() else edges[out] if out.any() else edges
    names = list(dict.fromkeys(system.edge_name[int(edge)] for edge in _one_of_each(system, edges)))
    return "" if "" in names else min(names, key=lambda name: _SLOWEST_FIRST.get(_family(name), len(_SLOWEST_FIRST)))


def _one_of_each(system: System, edges: NDArray) -> NDArray:
    """Some of the edges, among them one of each name."""
    if not isinstance(system.edge_name, Labels):
        return edges
    return edges[np.sort(np.unique(system.edge_name.rows[edges], return_index=True)[1])]


_SLOWEST_FIRST = {family: place for place, family in enumerate((*constants.NETWORKS, "PCIe", "NVLink"))}


def _rings(system: System, devices: NDArray) -> tuple[tuple[tuple[int, ...], ...], LinkClass | None]:
    """Rings over direct links between the devices, and the link that they are together."""
    if len(devices) > MOST_MEMBERS:
        return (), None
    place = np.full(system.nodes, -1)
    place[devices] = np.arange(len(devices))
    source, target = place[system.edge_source], place[system.edge_target]
    direct = np.flatnonzero((source >= 0) & (target >= 0) & (system.edge_tier == Tier.SCALE_UP))
    if not len(direct) or not np.isfinite(system.bandwidth[direct]).all():  # what never limits need not be divided
        return (), None

    def packed(bandwidth: NDArray[np.float64]) -> tuple[tuple[tuple[int, ...], ...], float]:
        links = np.zeros((len(devices), len(devices)))
        np.add.at(links, (source[direct], target[direct]), bandwidth)
        return widest_rings(np.minimum(links, links.T))

    rings, bandwidth = packed(system.bandwidth[direct])
    if not rings:
        return (), None
    rated = system.rated[direct]
    same = np.array_equal(rated, system.bandwidth[direct])
    together = bandwidth if same else float("nan") if np.isnan(rated).any() else packed(rated)[1]
    latency = float(system.latency[direct].max())
    return rings, _link_class(system, direct, False, bandwidth, together, latency)


@functools.lru_cache(maxsize=64)
def _family(name: str) -> str:
    return catalog.link_families().get(name, "")


def _hub(system: System, routes: Ragged) -> int:
    """The one node between all neighbours, if every route is two edges of the scale-up network, else -1."""
    if (routes.lengths() != 2).any():
        return -1
    middle = system.edge_target[routes.values[::2]]
    inside = bool((system.edge_tier[routes.values] == Tier.SCALE_UP).all())
    return int(middle[0]) if inside and (middle == middle[0]).all() else -1
