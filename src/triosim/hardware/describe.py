"""What a System is, in plain values."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.names import Labels
from triosim.hardware.system import System, Tier

COSTED = ("memory_bytes", "process", "memory_type", "tdp_w", "price_per_hour")
"""What a cost reads of a device beside its name (:mod:`triosim.energy.cost`)."""


def costed(device: Accelerator) -> dict[str, str | float | None]:
    """What a cost reads of a device, by name, as results have it."""
    return {name: getattr(device, name) for name in ("name", *COSTED)}


@dataclass(frozen=True)
class AcceleratorDescription:
    """One model of device in a system; FLOP/s by element type, None for what is not known.

    ``slowdown`` is what its stragglers take longer, 1 for others; ``power_cap_w`` and ``clock_limit_hz`` are None where
    nothing holds it back.  ``tdp_w`` is in watts, ``price_per_hour`` in dollars; these, ``process`` and ``memory_type``
    are what a cost rests on.
    """

    name: str
    count: int
    memory_bytes: int | None
    memory_bandwidth_bytes_per_s: float | None
    peak_flops: dict[str, float]
    confidence: str
    slowdown: float = 1.0
    power_cap_w: float | None = None
    clock_limit_hz: float | None = None
    process: str = ""
    memory_type: str = ""
    tdp_w: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class LinkDescription:
    """One kind of link: how many directions of it there are, and what one direction does.

    A bandwidth that never limits is None.
    """

    name: str
    tier: str
    directions: int
    bandwidth_bytes_per_s: float | None
    latency_s: float
    overhead_s: float


@dataclass(frozen=True)
class SystemDescription:
    """What a system is: the ``system`` field of a result, in SI units.

    Attributes:
        name: for people.
        devices, servers: how many.
        topology: in words.
        accelerators: each model of device.
        links: each kind of link.
        host_memory: whether a host's memory can be reached.
        host_cpu, host_cores: processors of a server.
        memory_pool: whether there is memory that all share.
        sources: where the figures are from.
    """

    name: str
    devices: int
    servers: int
    topology: str
    accelerators: tuple[AcceleratorDescription, ...]
    links: tuple[LinkDescription, ...]
    host_memory: bool
    host_cpu: str | None
    host_cores: int | None
    memory_pool: bool
    sources: tuple[str, ...]


def describe(system: System) -> SystemDescription:
    """What a system is."""
    counts = np.bincount(system.device_model, minlength=len(system.models))
    return SystemDescription(
        name=system.name,
        devices=system.devices,
        servers=system.servers,
        topology=system.topology,
        accelerators=tuple(
            AcceleratorDescription(
                model.name, int(count), model.memory_bytes, model.memory_bandwidth, dict(model.peak_flops),
                model.confidence, model.slowdown, model.power_cap_w, model.clock_limit_hz,
                model.process, model.memory_type, model.tdp_w, model.price_per_hour,
            )
            for model, count in zip(system.models, counts, strict=True)
        ),
        links=_links(system),
        host_memory=bool((system.server_host >= 0).any()),
        host_cpu=system.server_cpu.name if system.server_cpu else None,
        host_cores=system.server_cores,
        memory_pool=system.pool >= 0,
        sources=tuple(system.sources),
    )  # fmt: skip


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


@kept(4)
def _links(system: System) -> tuple[LinkDescription, ...]:
    rows: dict[tuple[int, str, float], list[float]] = {}
    for (level, name, rate, delay, cost), count in sorted(_kinds(system).items()):
        row = rows.setdefault((level, name, rate), [0, 0.0, 0.0])
        row[0] += count
        row[1] = max(row[1], delay)  # the second edge of a hop carries none
        row[2] = max(row[2], cost)
    return tuple(
        LinkDescription(
            name, Tier(level).name.lower(), int(directions), rate if math.isfinite(rate) else None, latency, overhead
        )
        for (level, name, rate), (directions, latency, overhead) in rows.items()
    )
