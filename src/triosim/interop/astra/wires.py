"""The network as the engine sees it, with ASTRA-sim's routes.

Dimension by dimension, and around a ring the shorter way: shortest routes, as everywhere in TrioSim, but with
ASTRA-sim's choice between routes that are equally short.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from triosim.core.columns import Ragged
from triosim.engine.graph import EngineNetwork
from triosim.hardware.system import System
from triosim.interop.astra.network import AstraNetwork
from triosim.network.routes import Router


def wires(network: AstraNetwork, pairs: Iterable[tuple[int, int]]) -> EngineNetwork:
    """Links of the network and the routes of these pairs of NPUs."""
    system = network.system()
    edges = zip(system.edge_source.tolist(), system.edge_target.tolist(), strict=True)
    edge_of = {ends: edge for edge, ends in enumerate(edges)}
    switches = _switches(network, system)
    rows = []
    for source, target in pairs:
        route = network.route(source, target, switches)
        rows.append([edge_of[ends] for ends in pairwise(route)])
    routes = Ragged.of(rows, np.int32)
    router = Router(system)
    ends = np.stack([system.edge_source, system.edge_target], axis=1)
    return EngineNetwork(router.wires([]).capacity, routes, router.latency(routes), ends=ends)


def _switches(network: AstraNetwork, system: System) -> dict[tuple[int, int], int]:
    """Node of the switch of each line of NPUs along a switched dimension."""
    found, node = {}, system.devices
    for number, dimension in enumerate(network.dimensions):
        if dimension.topology == "Switch" and dimension.npus > 1:
            for line in network.line(number).tolist():
                found[number, line[0]] = node
                node += 1
    return found
