"""Formulas of how long a collective takes when nothing else uses its links; patterns are made to last as long.

Every function gives seconds from the arrival of the last member to the end.  Formulas count steps; constants are those
of :mod:`triosim.collectives.constants`.  Members n, bytes of the full buffer S, bandwidth B of one member.
"""

from __future__ import annotations

import math

from triosim.collectives.constants import CollectiveConstants, TransportCosts
from triosim.collectives.tuner import ROUNDS


def step(costs: TransportCosts, chunk: float, bandwidth: float) -> float:
    """Seconds in which one step brings ``chunk`` bytes to the neighbour."""
    return costs.overhead(chunk) + chunk / (costs.efficiency * bandwidth)


def finish(constants: CollectiveConstants, kind: str, part: float) -> float:
    """Seconds for what is left to do with a member's own part in its own memory, whatever the link."""
    return part / constants.finish.get(kind, math.inf)


def ring(
    constants: CollectiveConstants, kind: str, members: int, size: float, protocol: str, bandwidth: float
) -> float:
    """``base + r (n - 1) step(S / n) + finish(S / n)``: r is 2 for all-reduce, 1 for all-gather and reduce-scatter."""
    costs, part = constants.ring[protocol], size / members
    steps = ROUNDS[kind] * (members - 1)
    return costs.base_s + steps * step(costs, part, bandwidth) + finish(constants, kind, part)


def exchange(constants: CollectiveConstants, members: int, size: float, bandwidth: float) -> float:
    """All-to-all: ``base + (n - 1) peer + overhead(S / n) + (n - 1) / n S / B + finish(S / n)``."""
    costs, part, peers = constants.exchange, size / members, members - 1
    once = costs.base_s + peers * constants.peer_s + costs.overhead(part)
    return once + peers * part / (costs.efficiency * bandwidth) + finish(constants, "all_to_all", part)


def multicast(costs: TransportCosts, members: int, size: float, bandwidth: float) -> float:
    """All-reduce in the switch: ``base + overhead(S) + (1 + 1 / n) S / B``.

    The switch reads the whole buffer of every member, and the n-th part that it has reduced goes through the member
    that owns it.
    """
    return costs.base_s + costs.overhead(size) + (1 + 1 / members) * size / (costs.efficiency * bandwidth)
