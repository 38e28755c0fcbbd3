"""What a System is, in plain values."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.hardware.names import Labels
from triosim.hardware.system import System, Tier


def describe(system: System) -> dict[str, Any]:
    """The ``system`` field of a result: names, numbers and figures in SI units, ready for JSON.

    ``links`` has one row for each kind of link: how many directions of it there are and what one direction does.  A
    bandwidth that never limits is None.
    """
    counts = np.bincount(system.device_model, minlength=len(system.models))
    return {
        "name": system.name,
        "devices": system.devices,
        "servers": system.servers,
        "topology": system.topology,
        "accelerators": [
            {
                "name": model.name,
                "count": int(count),
                "memory_bytes": model.memory_bytes,
                "memory_bandwidth_bytes_per_s": model.memory_bandwidth,
                "peak_flops": dict(model.peak_flops),
                "confidence": model.confidence,
            }
            for model, count in zip(system.models, counts, strict=True)
        ],
        "links": _links(system),
        "host_memory": bool((system.server_host >= 0).any()),
        "host_cpu": system.server_cpu.name if system.server_cpu else None,
        "host_cores": system.server_cores,
        "memory_pool": system.pool >= 0,
        "sources": list(system.sources),
    }


def _kinds(system: System) -> Counter[tuple[int, str, float, float, float]]:
    """How many edges there are of each tier, name, bandwidth, latency and overhead."""
    kinds: Counter[tuple[int, str, float, float, float]] = Counter()
    some, counts = _alike(system)
    columns = (system.edge_tier, system.bandwidth, system.latency, system.overhead)
    figures = zip(*(column[some].tolist() for column in columns), strict=True)
    for edge, count, (tier, bandwidth, latency, overhead) in zip(some.tolist(), counts.tolist(), figures, strict=True):
        kinds[tier, system.edge_name[edge], bandwidth, latency, overhead] += count
    return kinds


def _alike(system: System) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Some edges, and for how many each stands: one for all of a link and tier, unless figures were changed since."""
    if isinstance(system.edge_name, Labels):
        key = system.edge_name.rows * np.int64(len(Tier)) + system.edge_tier
        counts = np.bincount(key)
        one = np.zeros(len(counts), np.int64)
        one[key] = np.arange(len(key))
        if all((column == column[one[key]]).all() for column in (system.bandwidth, system.latency, system.overhead)):
            return one[counts > 0], counts[counts > 0]
    return np.arange(len(system.edge_tier)), np.ones(len(system.edge_tier), np.int64)


def _links(system: System) -> list[dict[str, Any]]:
    rows: dict[tuple[int, str, float], dict[str, Any]] = {}
    for (level, name, rate, delay, cost), count in sorted(_kinds(system).items()):
        row = rows.setdefault(
            (level, name, rate),
            {
                "name": name,
                "tier": Tier(level).name.lower(),
                "directions": 0,
                "bandwidth_bytes_per_s": rate if math.isfinite(rate) else None,
                "latency_s": 0.0,
                "overhead_s": 0.0,
            },
        )
        row["directions"] += count
        row["latency_s"] = max(row["latency_s"], delay)  # the second edge of a hop carries none
        row["overhead_s"] = max(row["overhead_s"], cost)
    return list(rows.values())
