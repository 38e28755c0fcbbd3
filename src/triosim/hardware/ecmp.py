"""Bandwidth that flows lose when they share a path by chance: Ethernet without adaptive routing, beyond one switch.

A ``[scale_out]`` whose topology is a switch stands for any network that gives every port its full rate.  Beyond the
ports of a single switch that is a Clos of several, where Ethernet picks each flow's path by a hash of its addresses
(static ECMP).  A training job has few flows, all of them as wide as a port; where two meet, both are slow, and a ring
waits for its slowest.  Networks that route adaptively or spray packets (InfiniBand, Slingshot, EFA, Spectrum-X, Ultra
Ethernet) do not, and topologies that are written out with their switches have paths of their own
(:mod:`triosim.network.routing`).
"""

from __future__ import annotations

from dataclasses import replace

from triosim.hardware.system import Link

STATIC = ("RoCEv2", "TCP")
"""Beginnings of the names of links whose switches pick paths by a hash."""
PORTS = 64
"""Of one switch at the full rate of a network card (Broadcom Tomahawk 4: 64 x 400 Gb/s; Spectrum-4: 64 x 800)."""
COLLIDING = 1 / 1.4
"""Of the rate without collisions: more entropy in the hash and several queue pairs for a connection made all-reduces up
to 40 % faster than plain ECMP (Meta, "RDMA over Ethernet for Distributed AI Training at Meta Scale", SIGCOMM 2024).
Efficiencies of network cards that SimAI ships fall alike, from 0.90 at 8 servers to 0.74 at 32."""


def hashed(wire: Link, ports: int) -> Link:
    """What a port reaches in a network of so many; libraries still know it by its rating.

    Args:
        wire: of one port, as in the catalog.
        ports: network cards that the switch joins.
    """
    if ports <= PORTS or not wire.name.startswith(STATIC):
        return wire
    return replace(wire, bandwidth=COLLIDING * wire.bandwidth)
