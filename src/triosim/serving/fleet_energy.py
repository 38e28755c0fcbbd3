"""Joules of a run of a fleet: devices at work and idle, their hosts, and what an output token takes.

No step is looked at twice: FLOP and bytes of a run follow from what was computed.  Every step reads the weights, a
token of the output attends to all before it, a prompt to itself; so the steps of a replica, the tokens that it computed
and the lengths of its requests say what moved (:func:`triosim.serving.request_energy.work_of`).  Devices draw static
power while they compute, idle power while their replica is there and does not, hosts a part of the TDP.  What KV caches
and all-reduces take on links, and the FLOP and bytes of models that draft, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.energy.account import HOST_SPREAD, WITHOUT_HOST
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked
from triosim.serving.pool_times import device_of, kernels_of
from triosim.serving.request_energy import JOULES, StepLoad, joules, rows_of, spread_of

if TYPE_CHECKING:
    from triosim.serving.deployment import Deployment
    from triosim.serving.fleet import FleetRun


@dataclass(frozen=True)
class FleetEnergy:
    """Joules of a run, from the first arrival to the last token.

    ``work_j + idle_j + host_j = node_j`` and ``node_j * pue = facility_j``.

    Attributes:
        work_j, idle_j: of devices that compute, static power included, and of those that wait.
        host_j: processors, memory, fans and losses of the servers.
        node_j, pue, facility_j: all of that, and with cooling and distribution.
        parts_j: what ``work_j`` consists of: ``static``, ``memory``, ``flop``, ``cache``, and ``banks`` of memory that
            computes.
        busy_w, mean_w: of a device while it computes, and over the time for which it is there.
        clocks: of each pool's devices in prompts, over their boost clock; 1 where it makes images.
        per_token_j, per_request_j: of the nodes, to an output token and to a request.
        interval_j: 90 % interval of ``node_j`` at the predicted times, from those of the constants.
        sources: where the figures are from, one sentence each.
    """

    work_j: float
    idle_j: float
    host_j: float
    node_j: float
    pue: float
    facility_j: float
    parts_j: Mapping[str, float]
    busy_w: float
    mean_w: float
    clocks: tuple[float, ...]
    per_token_j: float
    per_request_j: float
    interval_j: tuple[float, float]
    sources: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def fleet_energy(
    own: Deployment, served: FleetRun, duration_s: float, overrides: Mapping[str, float] | None = None
) -> FleetEnergy | None:
    """Add up a run.

    Args:
        own: what served.
        served: every request and replica.
        duration_s: of the run.
        overrides: constants beside the table's, by name.

    Returns:
        None where nobody knows what a device draws.

    Raises:
        InputError: a constant makes no sense.
    """
    constants = EnergyConstants(overrides or {})
    parts = {"static": 0.0, "memory": 0.0, "flop": 0.0, "cache": 0.0}
    spread = dict.fromkeys((*parts, "idle"), 0.0)
    idle = host = busy_s = there_s = 0.0
    clocks, sources = [], []
    for pool, load, replicas in zip(own.pools, loads(own, served), replica_slices(own), strict=True):
        device = device_of(pool, pool.first)
        energy = device_energy(device, constants)
        busy = float(served.busy[replicas].sum()) / PICOSECONDS_PER_SECOND  # the mean of the stages
        found = None if energy is None else _worked(pool, served, load, replicas, energy, busy)
        if energy is None or found is None:
            return None
        clocks.append(found[0])
        sources.append(f"energy: {energy.source}")
        size = pool.core_size
        for name, value in found[1].items():
            parts[name] = parts.get(name, 0.0) + value
            spread[name] = spread.get(name, 0.0) + value * spread_of(energy, name)
        there = size * present_s(pool, served, replicas, duration_s)
        waiting = energy.idle_w * (there - size * busy)  # below zero of a model on another one's devices
        idle, spread["idle"] = idle + waiting, spread["idle"] + waiting * energy.spreads["idle"]
        if device.tdp_w is not None and device.kind not in WITHOUT_HOST:
            host += constants.value(HOST_SPREAD) * device.tdp_w * there
        busy_s, there_s = busy_s + size * busy, there_s + there
    spread["host"] = host * constants.get(HOST_SPREAD).spread if host else 0.0
    work = math.fsum(parts.values())
    node, pue = work + idle + host, constants.value("facility.pue")
    off = math.sqrt(math.fsum(value**2 for value in spread.values())) / node
    tokens = max(int(served.requests.output.sum()), 1)
    return FleetEnergy(
        work_j=work, idle_j=idle, host_j=host, node_j=node, pue=pue, facility_j=node * pue, parts_j=parts,
        busy_w=work / busy_s, mean_w=(work + idle) / there_s, clocks=tuple(clocks), per_token_j=node / tokens,
        per_request_j=node / len(served.requests), interval_j=(node * math.exp(-off), node * math.exp(off)),
        sources=(*dict.fromkeys(sources), *(f"energy: {words}" for words in constants.sources())),
    )  # fmt: skip


def _worked(
    pool: Pool, served: FleetRun, load: StepLoad, replicas: slice, energy: DeviceEnergy, busy: float
) -> tuple[float, Mapping[str, float]] | None:
    """Clock of its devices in prompts, over their boost clock, and joules of what they computed; None where nobody
    knows these."""
    if pool.denoises:
        drawn = [one for one in served.joules[replicas] if one is not None]
        whole = np.sum(drawn, axis=0).tolist()
        return (1.0, dict(zip(JOULES, whole, strict=True))) if len(drawn) == pool.cores else None
    kernels = kernels_of(pool, checked(pool), pool.first)
    clock = 1.0 if kernels.held is None else kernels.held.prompts
    return clock, joules(kernels, energy, load, busy * pool.stages, 1)


def replica_slices(own: Deployment) -> list[slice]:
    """Numbers of the replicas of each pool."""
    ends = np.cumsum([pool.cores for pool in own.pools]).tolist()
    return [slice(end - pool.cores, end) for end, pool in zip(ends, own.pools, strict=True)]


def present_s(pool: Pool, served: FleetRun, replicas: slice, duration_s: float) -> float:
    """Seconds for which its replicas are there, all together."""
    if served.history is not None:
        return float(served.history.paid[replicas].sum()) / PICOSECONDS_PER_SECOND
    return 0.0 if pool.shares else duration_s * pool.cores


def loads(own: Deployment, served: FleetRun) -> list[StepLoad]:
    """What each pool computed in all.

    Requests are known by the replica that ended them.  What of its tokens a pool did not decode are prompts, or what
    was computed again; prompts of a model are divided among its pools by these.
    """
    requests, places = served.requests, replica_slices(own)
    chunks, cached = requests.prompt, np.broadcast_to(np.int32(0), requests.prompt.shape)
    if served.cached.any():
        cached = np.minimum(served.cached, requests.prompt).astype(np.int32)
        chunks = (requests.prompt - cached).astype(np.int32)
    after = max(float(requests.output.sum() - len(requests)), 1.0)
    guessed, wrong = served.accepted / after, (served.drafted - served.accepted) / after  # for each token after prompts
    ended = [(served.replica >= one.start) & (served.replica < one.stop) for one in places]
    found = []
    for pool, replicas, mine in zip(own.pools, places, ended, strict=True):
        decodes = context = 0.0
        for at in rows_of(len(requests)) if pool.role != "prefill" else ():
            more = (requests.output[at][mine[at]] - 1).astype(np.float64)
            decodes += float(more.sum())
            context += float((more * requests.prompt[at][mine[at]] + more * (more + 1) / 2).sum())
        decoded = decodes * (1 + wrong)
        prompts = max(float(served.computed[replicas].sum()) - decoded, 0.0)
        of_model = np.any([rows for one, rows in zip(own.pools, ended, strict=True) if one.model == pool.model], axis=0)
        own_chunks, own_cached = (chunks, cached) if of_model.all() else (chunks[of_model], cached[of_model])
        share = prompts / max(float(own_chunks.sum()), 1.0)
        first = share * len(own_chunks) if pool.role != "decode" else 0.0
        found.append(StepLoad(
            steps=max(float(served.steps[replicas].sum()), 1.0),
            tokens=prompts + decoded + float(served.padding[replicas].sum()),
            decoded=decoded, context=context * (1 - guessed), sampled=decoded + first,
            chunks=own_chunks, cached=own_cached, share=share,
        ))  # fmt: skip
    return found
