"""What binds a fleet: the resource of which more would let it serve faster.

Devices that wait have too few requests.  Of those that compute, the FLOP, the bytes through memory and the collectives
of the whole run say which of the three takes most of the time at the rates of the datasheet; what is left over is of
launches, of kernels below these rates and of the host.  A KV cache that was full while requests queued or gave way
keeps batches small, whatever the devices do then.
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication, rate
from triosim.serving.fleet_energy import loads, present_s, replica_slices
from triosim.serving.pim import PimKernels
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked
from triosim.serving.pool_times import kernels_of, own_all_reduce
from triosim.serving.request_energy import StepLoad, work_of

if TYPE_CHECKING:
    from triosim.serving.deployment import Deployment
    from triosim.serving.fleet import FleetRun

BUSY = 0.9
"""Share of the time above which devices count as occupied."""
FULL = 0.98
"""Share of the blocks above which a cache counts as full."""
QUEUES = 0.1
"""Part of their time that requests have to queue for a full cache to bind."""
REQUESTS, CACHE = "requests", "KV cache"


@dataclass(frozen=True)
class PoolBinding:
    """The resource that limits a pool, and how busy each of them is.

    Attributes:
        resource: ``requests`` (too few), ``KV cache``, ``compute``, ``memory bandwidth``, ``links``; ``devices`` where
            their work is not told apart, as that of images.
        busy: share of the time for which devices compute.
        compute, memory_bandwidth, links: of that time, what FLOP, bytes and collectives would take at the rates of the
            datasheet (links: of the catalog); None where that is not told apart.
        full: most blocks of the cache in use at a time, over all of them.
        emulated: what is said of products of a type for which the devices have no units, ``""`` where they have some.
    """

    resource: str
    busy: float
    compute: float | None
    memory_bandwidth: float | None
    links: float | None
    full: float
    emulated: str = ""

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bindings(own: Deployment, served: FleetRun, duration_s: float) -> tuple[PoolBinding, ...]:
    """Of each pool.

    Args:
        own: what served.
        served: every request and replica.
        duration_s: of the run.
    """
    found = []
    for pool, load, replicas in zip(own.pools, loads(own, served), replica_slices(own), strict=True):
        seconds = float(served.busy[replicas].sum()) / PICOSECONDS_PER_SECOND
        busy = seconds / max(present_s(pool, served, replicas, duration_s) or duration_s * pool.cores, 1e-12)
        full = float((served.peak_blocks[replicas] / served.blocks[replicas]).max())
        shares = {} if pool.denoises or not seconds else _shares(pool, load, seconds)
        if full >= FULL and not pool.denoises and _presses(served, replicas):
            resource = CACHE
        elif busy < BUSY:
            resource = REQUESTS
        else:
            resource = max(shares, key=shares.__getitem__) if shares else "devices"
        named = {name.replace(" ", "_"): value for name, value in shares.items()}
        found.append(PoolBinding(
            resource, busy, named.get("compute"), named.get("memory_bandwidth"), named.get("links"), full,
            "" if pool.denoises else _emulated(pool),
        ))  # fmt: skip
    return tuple(found)


def _emulated(pool: Pool) -> str:
    """What is said of the type that a pool multiplies, where its devices have no units for it."""
    kernels = kernels_of(pool, checked(pool), pool.first)
    if isinstance(kernels, PimKernels):
        return ""
    dtype = kernels.multiplied
    made = multiplication(kernels.device, dtype)
    if made.method is MultiplicationMethod.NATIVE:
        return ""
    emulated = dtype == "bfloat16" and made.method is MultiplicationMethod.EMULATED
    return made.words + ("; --weights fp16 is faster" if emulated else "")


def _presses(served: FleetRun, replicas: slice) -> bool:
    """Whether requests of these replicas gave way, or queued for long."""
    if (sketch := served.sketch) is not None:
        there = float(sketch.took[replicas].sum())
        gave_way = bool(sketch.restarts[replicas].any())
        return gave_way or (there > 0 and float(sketch.queued[replicas].sum()) / there >= QUEUES)
    mine = (served.replica >= replicas.start) & (served.replica < replicas.stop)
    if not mine.any() or served.restarts[mine].any():
        return bool(mine.any())
    queued = (served.scheduled - served.arrived)[mine].sum()
    took = np.maximum(served.finished - served.arrived, 1)[mine].sum()
    return float(queued / took) >= QUEUES


def _shares(pool: Pool, load: StepLoad, seconds: float) -> dict[str, float]:
    """Of the time for which devices compute, what each resource would take alone; nothing where memory computes."""
    kernels = kernels_of(pool, checked(pool), pool.first)
    if isinstance(kernels, PimKernels):
        return {}
    device, model = kernels.device, kernels.model
    flop, moved = work_of(kernels, load)
    whole = seconds * pool.stages * pool.tensor_parallel
    found = {
        "compute": flop / rate(kernels.multiplied, device) / whole,
        "memory bandwidth": moved / (device.memory_bandwidth or inf) / whole,
        "links": 0.0,
    }
    if pool.tensor_parallel > 1:
        from triosim.serving.communication import ReplicaCommunication  # nobody else needs collectives

        between = ReplicaCommunication(
            pool.system, pool.tensor_parallel, pool.stages, pool.first, kernels=own_all_reduce(pool)
        )
        mean = np.array([2.0 * load.tokens / load.steps * model.width])
        each = kernels.reduces * float(between.all_reduce(mean)[0]) * model.layers / pool.stages
        found["links"] = load.steps * each / seconds
    return found
