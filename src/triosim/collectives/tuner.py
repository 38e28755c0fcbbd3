"""Which algorithm and protocol NCCL would take: its own prediction of the time of each, and the least of them.

NCCL compares ``latency + bytes / bandwidth`` of every algorithm and protocol, from constants in its source
(``src/graph/tuning.cc``), not from measurements.  The same is done here with the same constants, so that the choice is
NCCL's also where it is not the fastest; how long the chosen one takes is the business of
:mod:`triosim.collectives.cost`.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

from triosim.collectives.constants import PROTOCOLS
from triosim.collectives.group import Group, LinkClass
from triosim.core.dataclass import dataclass

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often a ring passes every part on to all others."""


@dataclass(frozen=True)
class TunerChoice:
    """An algorithm with a protocol, and the seconds that NCCL predicts for it."""

    algorithm: str
    protocol: str
    seconds: float


@functools.lru_cache(maxsize=1)
def _constants() -> dict[str, Any]:
    text = (Path(__file__).parent / "tuner.json").read_text(encoding="utf-8")
    return json.loads(text)


def choices(kind: str, group: Group, size: int, every: bool = False) -> list[TunerChoice]:
    """All that NCCL would consider for a collective, the fastest by its own prediction first.

    Args:
        kind: a kind of :data:`ROUNDS`, ``"broadcast"`` or ``"reduce"``.
        group: the members, at least two.
        size: bytes of the full buffer.
        every: also protocols that NCCL would not use on such links.
    """
    able = [p for p in PROTOCOLS if every or _enabled(p, group)]
    found = [TunerChoice("ring", p, _ring(kind, group, size, p)) for p in able]
    if kind == "all_reduce" and group.members > 2:
        found += [TunerChoice("tree", p, _tree(group, size, p)) for p in able]
        if _multicasts(group):
            found.append(TunerChoice("nvls", "Simple", _nvls(group, size)))
    return sorted(found, key=lambda c: c.seconds)


def _ring(kind: str, group: Group, size: int, protocol: str) -> float:
    members, servers = group.members, group.servers
    steps = ROUNDS[kind] * (members - 1) if kind in ROUNDS else members
    crossing = 0 if servers == 1 else steps // members * servers if kind not in ROUNDS else ROUNDS[kind] * (servers - 1)
    bandwidth = ring_bandwidth(group)
    if protocol == "LL":
        bandwidth = min(_ll_limit(group), bandwidth / 2)
    elif protocol == "LL128":
        bandwidth *= 0.92
    hop = 0.0
    if group.intra is not None:
        hop = _hop(group.intra, "ring", protocol, inside=True)
    if servers > 1:
        hop = max(hop, _constants()["network_overhead_s"] * (3 if protocol == "Simple" else 1))
    latency = _constants()["base_s"]["ring"][protocol] + (steps - crossing) * hop
    if group.inter is not None:
        latency += crossing * _hop(group.inter, "ring", protocol)
        if protocol == "Simple" and kind == "all_reduce":
            latency *= 1.4
    return latency + size / (bandwidth * members / steps)


def _tree(group: Group, size: int, protocol: str) -> float:
    constants, servers = _constants(), group.servers
    bandwidth = ring_bandwidth(group)
    if protocol == "LL":
        bandwidth = min(bandwidth / 3.8, _ll_limit(group))
    elif protocol == "LL128":
        bandwidth *= 7 / 9 if servers == 1 else 120 / 128
    if servers > 1 and group.members / servers < 2:
        bandwidth *= 0.85
    bandwidth *= tree_efficiency(size, protocol)
    latency = constants["base_s"]["tree"][protocol]
    if group.intra is not None:
        latency += 2 * (group.members / servers - 1) * _hop(group.intra, "tree", protocol, inside=True)
    if group.inter is not None:
        latency += 2 * int(math.log2(servers)) * _hop(group.inter, "tree", protocol)
    return latency + size / (bandwidth / 2)


def tree_efficiency(size: int, protocol: str) -> float:
    """Part of its bandwidth that NCCL expects of a tree, less for messages of medium size."""
    factors = _constants()["tree_correction"][protocol]
    doublings = (size // 64).bit_length() - 1
    known = 0 <= doublings < len(factors)
    return _constants()["tree_bandwidth_share"] * (factors[doublings] if known else 1.0)


def _nvls(group: Group, size: int) -> float:
    constants = _constants()
    share = constants["nvls"][generation(group)]["share"]
    return constants["hop_s"]["nvlink"]["nvls"]["Simple"] + size / (share * group.slowest.bandwidth)


def _multicasts(group: Group) -> bool:
    facts = _constants()["nvls"].get(generation(group))
    return group.switch >= 0 and facts is not None and group.members >= facts["least_members"]


def ring_bandwidth(group: Group) -> float:
    """Bytes per second of all rings together, as far as one member sees it: those that cross servers share the
    members' ways out of the server."""
    ways = [group.intra.bandwidth] if group.intra is not None else []
    if group.inter is not None:
        ways.append(group.inter.bandwidth * group.members / group.servers)
    return min(ways)


def _hop(link: LinkClass, algorithm: str, protocol: str, inside: bool = False) -> float:
    return _constants()["hop_s"][technology(link, inside)][algorithm][protocol]


def technology(link: LinkClass, inside: bool = False) -> str:
    """What NCCL's constants call a link: ``"nvlink"``, ``"pcie"`` or ``"network"``.

    Args:
        link: of the catalog or described by its figures.
        inside: whether it is inside a server, where links of other families count as the vendor's NVLink.
    """
    return {"NVLink": "nvlink", "PCIe": "pcie"}.get(link.family, "nvlink" if inside else "network")


def generation(group: Group) -> str:
    """The GPU generation of NCCL's constants, the newest for devices that are not known."""
    known = _constants()["ll_bandwidth_bytes_per_s"]
    first = group.architecture.split(" ")[0]
    return first if first in known else {"Ada": "Ampere", "Turing": "Volta", "Pascal": "Volta"}.get(first, "Hopper")


def _ll_limit(group: Group) -> float:
    limits = _constants()["ll_bandwidth_bytes_per_s"][generation(group)]
    return limits[min(group.servers, 3) - 1]


def _enabled(protocol: str, group: Group) -> bool:
    """LL128 needs NVLink, whose stores of 128 bytes arrive whole."""
    if protocol != "LL128":
        return True
    linked = group.intra is None or technology(group.intra, inside=True) == "nvlink"
    return linked and _constants()["ll128"][generation(group)]
