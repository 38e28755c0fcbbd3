"""What collectives cost on a class of links: constants read from data files that say where each comes from.

One file for each class in ``collectives/data`` (``nvlink4.json``).  They are written by
``validation/fit/collectives.py`` or, where nothing was measured, hold the latencies that NCCL itself assumes.

A step of a ring passes ``chunk`` bytes to the neighbour and takes::

    overhead(chunk) + chunk / (efficiency * bandwidth)

seconds, the latency of the route included.  The overhead is a curve, because a library moves small chunks over few
channels and cuts large ones into slices: it is linear in log2(chunk) between the points of the file and constant
outside.  Efficiency is relative to what the link of the catalog reaches, so that the same class serves faster and
slower links of its kind.
"""

from __future__ import annotations

import functools
import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass

SCHEMA = "triosim/collective-constants/1"

NETWORKS = ("InfiniBand", "Ethernet", "EFA", "Omni-Path")
"""Families of links between servers."""

PROTOCOLS = ("LL", "LL128", "Simple")
"""Protocols of NCCL: flags beside every 4 bytes, beside every 120 bytes, or one for a whole slice."""

WIRE = {"LL": (2, 1), "LL128": (16, 15), "Simple": (1, 1)}
"""Bytes on the wire for bytes of payload: LL sends 4 bytes of flag with 4 of data, LL128 8 with 120 (NCCL
documentation, ``NCCL_PROTO``)."""


@dataclass(frozen=True)
class TransferTimeCurve:
    """Seconds over bytes: linear in log2(bytes) between points, constant outside.

    Attributes:
        bytes: ascending.
        seconds: beside ``bytes``.
    """

    bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, amount: float) -> float:
        """Seconds at an amount of bytes."""
        after = bisect_right(self.bytes, amount)
        if after == 0:
            return self.seconds[0]
        if after == len(self.bytes):
            return self.seconds[-1]
        low, high = self.bytes[after - 1], self.bytes[after]
        part = math.log2(amount / low) / math.log2(high / low)
        return self.seconds[after - 1] * (1 - part) + self.seconds[after] * part


@dataclass(frozen=True)
class TransportCosts:
    """What one way of moving data costs.

    Attributes:
        base_s: seconds before the first step, once.
        efficiency: of the bandwidth of the link, for payload.
        overhead: seconds of each step beside its bytes, over the bytes of the step.
    """

    base_s: float
    efficiency: float
    overhead: TransferTimeCurve


@dataclass(frozen=True)
class CollectiveConstants:
    """Costs of collectives on a class of links.

    Attributes:
        name: of the class ("NVLink4").
        family: of the links ("NVLink"), as in the catalog.
        source: what the figures were fitted to, or whose they are.
        fitted: whether they were measured on links of this very name.
        bandwidth: bytes per second of the link they hold for.
        ring: by protocol.
        finish: kind of collective -> bytes per second at which a member's own part is copied into place (``inf`` where
            nothing is left to do).
        exchange: of all-to-all and send/recv; overhead is over the bytes for one peer and paid once.
        peer_s: seconds for each further peer of an exchange.
        multicast: of all-reduce in the switch (NVLS), bandwidth being payload of the whole buffer, overhead paid once;
            None where the switch cannot.
    """

    name: str
    family: str
    source: str
    fitted: bool
    bandwidth: float
    ring: Mapping[str, TransportCosts]
    finish: Mapping[str, float]
    exchange: TransportCosts
    peer_s: float
    multicast: TransportCosts | None = None


def names() -> list[str]:
    """The classes that have constants."""
    return list(_names())


@functools.cache
def _names() -> tuple[str, ...]:
    folder = Path(__file__).parent / "data"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


@functools.lru_cache(maxsize=32)
def load(name: str) -> CollectiveConstants:
    """Constants of the class of that file name, without ``.json``."""
    text = (Path(__file__).parent / "data" / f"{name}.json").read_text(encoding="utf-8")
    return parse(json.loads(text))


def of_link(name: str, family: str, known: Sequence[CollectiveConstants] = ()) -> CollectiveConstants | None:
    """Constants for a link of the catalog, or None where nothing is known of its family.

    The class of that very name; else the nearest generation of the family; for links between servers what NCCL assumes.

    Args:
        name: of the link ("NVLink4-bridge").
        family: of the link ("NVLink").
        known: classes that stand before those that come with the program.
    """
    for found in (*known, *map(load, _names())):
        if found.family == family and found.name == name:
            return found
    alike = [c for c in (*known, *map(load, names())) if c.family == family]
    if alike and family:
        return min(alike, key=lambda c: abs(_generation(c.name) - _generation(name)))
    return load("network") if family in NETWORKS else None


@functools.cache
def as_described() -> CollectiveConstants:
    """Constants of a link that is known by its figures alone: software costs its overhead, once.  Protocols put their
    flags on the wire all the same."""
    nothing = TransferTimeCurve((1.0,), (0.0,))
    return CollectiveConstants(
        name="",
        family="",
        source="figures alone",
        fitted=False,
        bandwidth=math.inf,
        ring={protocol: TransportCosts(0.0, below / above, nothing) for protocol, (above, below) in WIRE.items()},
        finish={},
        exchange=TransportCosts(0.0, 1.0, nothing),
        peer_s=0.0,
    )


def describe(name: str, used: CollectiveConstants) -> str:
    """Where the costs of a link are from, in words."""
    if used is as_described():
        return f"{name or 'links inside servers'}: as described"
    name = name or "links between servers"
    if used.fitted and used.name == name:
        return f"{name}: measured"
    if used.fitted:
        return f"{name}: constants of {used.name}, no measurements of its own"
    return f"{name}: latencies that NCCL assumes, no measurements"


def _generation(name: str) -> int:
    digits = re.search(r"\d+", name)
    return int(digits.group()) if digits else 0


def parse(document: Mapping[str, Any]) -> CollectiveConstants:
    """Constants from a document of schema :data:`SCHEMA`.

    Raises:
        ValueError: the schema is another.
    """
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, this version reads {SCHEMA!r}")
    multicast = document.get("multicast")
    return CollectiveConstants(
        name=document["name"],
        family=document["family"],
        source=document["source"],
        fitted=document["fitted"],
        bandwidth=document["bandwidth_bytes_per_s"],
        ring={protocol: _costs(document["ring"][protocol]) for protocol in PROTOCOLS if protocol in document["ring"]},
        finish={kind: rate or math.inf for kind, rate in document["finish_bytes_per_s"].items()},
        exchange=_costs(document["exchange"]),
        peer_s=document["exchange"]["peer_s"],
        multicast=_costs(multicast) if multicast else None,
    )


def unparse(constants: CollectiveConstants) -> dict[str, Any]:
    """The document that :func:`parse` reads."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": constants.name,
        "family": constants.family,
        "source": constants.source,
        "fitted": constants.fitted,
        "bandwidth_bytes_per_s": constants.bandwidth,
        "ring": {protocol: _document(costs) for protocol, costs in constants.ring.items()},
        "finish_bytes_per_s": {k: None if math.isinf(v) else _short(v) for k, v in constants.finish.items()},
        "exchange": {**_document(constants.exchange), "peer_s": _short(constants.peer_s)},
    }
    if constants.multicast:
        document["multicast"] = _document(constants.multicast)
    return document


def _costs(part: Mapping[str, Any]) -> TransportCosts:
    curve = TransferTimeCurve(tuple(part["overhead"]["bytes"]), tuple(part["overhead"]["seconds"]))
    return TransportCosts(part["base_s"], part["efficiency"], curve)


def _document(costs: TransportCosts) -> dict[str, Any]:
    seconds = [_short(x) for x in costs.overhead.seconds]
    return {
        "base_s": _short(costs.base_s),
        "efficiency": _short(costs.efficiency),
        "overhead": {"bytes": list(costs.overhead.bytes), "seconds": seconds},
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
