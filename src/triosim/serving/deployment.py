"""Pools deployed together under traffic, and what requests find there: the whole of serving in one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.plain_json import json_text
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.graph import UNLIMITED
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.describe import costed
from triosim.hardware.system import System
from triosim.serving.capacity import ReplicaMemory
from triosim.serving.fleet import FleetRun, Progress, ReplicaGroup, play
from triosim.serving.kernel_times import NOTHING_MOVED, KernelErrors, each_moved, ends_moved, intervals
from triosim.serving.metrics import ServingMetrics, Slo, measure, parse_slo, request_sketch
from triosim.serving.model import ServedModel
from triosim.serving.policy import part
from triosim.serving.pool import AnyModel, Pool, weight_bytes
from triosim.serving.pool_checks import checked_any, refuse_idle
from triosim.serving.pool_replicas import replicas_of
from triosim.serving.pool_times import PricedPools, device_of, front_seconds, front_spread
from triosim.serving.replica import Replica
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS

if TYPE_CHECKING:
    from triosim.engine.live import LiveNetwork
    from triosim.network.routes import Router as Routes
    from triosim.serving.availability import Availability
    from triosim.serving.binding import PoolBinding
    from triosim.serving.disaggregation import ReplicaPlacement
    from triosim.serving.fleet_energy import FleetEnergy
    from triosim.serving.recording import RunRecord, RunRecorder
    from triosim.serving.time_sharing import TimeSharing

SCHEMA = "triosim/serving/1"
FEW = 2000
"""Requests up to which the interval is found unless somebody says: it takes seven more runs, or eight of several
devices."""
TRANSFERS = ("whole", "layers", "none")
"""How a KV cache is sent from where its prompt was computed: all of it, layer by layer, or not at all (it is there)."""
ORDERS = ("prefill-first", "decode-first")
"""Who is chosen first."""
MOST_TURN_S = 1e6
"""Seconds: a longer turn is one that never ends."""


@dataclass(frozen=True)
class Deployment:
    """Pools of replicas, and how requests and KV caches go to and between them.

    Attributes:
        pools: at least one; those of one model either each do both, or some prefill and some decode.
        router: name of a router, or a Python file that registers one; each group of replicas has its own.
        router_options: of the router, as typed.
        seed: of the router's draws.
        network: between the pools, whose devices follow each other on it in the order of ``pools``; None where all
            pools are on one system, which is the network then.
        transfer: one of :data:`TRANSFERS`.
        order: one of :data:`ORDERS`.
        idle_ok: whether devices of a system may be left without a replica; otherwise that is refused, because it is
            usually a slip.
        turn_s: seconds after which a model gives way to others on the same devices if these have requests.
        local: prompt tokens that a decoding replica computes itself if it lacks no more (decode first only).
    """

    pools: tuple[Pool, ...]
    router: str = "round-robin"
    router_options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    network: System | None = None
    transfer: str = "whole"
    order: str = "prefill-first"
    local: int = 0
    idle_ok: bool = False
    turn_s: float = math.inf

    @property
    def replicas(self) -> int:
        """Of all pools."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def disaggregated(self) -> bool:
        """Whether some pool only prefills or decodes."""
        return any(pool.role != "both" for pool in self.pools)

    @property
    def measured(self) -> bool:
        """Whether steps of some pool take what was measured."""
        return any(pool.step_times for pool in self.pools)

    @property
    def makes_images(self) -> bool:
        """Whether all that it serves are diffusion models."""
        return all(pool.denoises for pool in self.pools)


@dataclass(frozen=True)
class ServingResult:
    """Latencies, throughput and price of a deployment under its requests.

    Attributes:
        deployment: what served.
        served: every request and replica.
        metrics: latencies and throughput.
        memory: of each pool's fullest device; None where the blocks were given.
        dollars_per_hour: rent of the devices, while their replicas are there; None where the catalog has no price.
        dollars_per_million_tokens: of that, to a million prompt and output tokens.
        intervals: 90 % intervals of figures by name (``ttft.mean``, ``tpot.p99``, ``output_tokens_per_s``), from the
            uncertainty of kernel times; empty where they were not asked for.
        record: every step, where that was asked for.
        constants: of energy, beside the table's.
    """

    deployment: Deployment
    served: FleetRun
    metrics: ServingMetrics
    memory: tuple[ReplicaMemory | None, ...]
    dollars_per_hour: float | None
    dollars_per_million_tokens: float | None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    record: RunRecord | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def energy(self) -> FleetEnergy | None:
        """Joules of the run; None where nobody knows what a device draws."""
        from triosim.serving.fleet_energy import fleet_energy  # many runs are asked for their times alone

        return fleet_energy(self.deployment, self.served, self.metrics.duration_s, self.constants)

    @cached_property
    def binding(self) -> tuple[PoolBinding, ...]:
        """What binds each pool."""
        from triosim.serving.binding import bindings  # many runs are asked for their times alone

        return bindings(self.deployment, self.served, self.metrics.duration_s)

    @property
    def paid_devices(self) -> dict[str, float]:
        """Devices by name, and how many of each are paid on average."""
        found: dict[str, float] = {}
        for device, count in _paid(self.deployment, _there(self.served, self.metrics.duration_s)):
            found[device.name] = found.get(device.name, 0.0) + count
        return found

    @property
    def accelerators(self) -> list[dict[str, Any]]:
        """What a cost reads of each kind of device."""
        return [costed(one) for one in {one.name: one for one, _ in _paid(self.deployment, None)}.values()]

    @property
    def dollars_per_request(self) -> float | None:
        """Rent of the devices over the run, shared by its requests."""
        if self.dollars_per_hour is None:
            return None
        return self.dollars_per_hour * self.metrics.duration_s / 3600 / len(self.served.requests)

    def __repr__(self) -> str:
        from triosim.serving.words import summary

        return summary(self)

    def _repr_html_(self) -> str:
        """The summary as notebooks show it."""
        from triosim.serving.words import summary_html

        return summary_html(self)

    def to_json(self) -> str:
        """The JSON text; numbers that JSON cannot write (``inf``) become null."""
        return json_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own, found, first = self.deployment, self.metrics, self.deployment.pools[0]
        memory = self.memory[0]
        pools = [_pool_table(pool, kept) for pool, kept in zip(own.pools, self.memory, strict=True)]
        return {
            "schema": SCHEMA,
            "model": first.model,
            "system": first.system.name,
            "engine": {"name": first.engine, **first.engine_options},
            "plan": {
                "tp": first.tensor_parallel, "cp": first.context_parallel, "cfg": first.guidance_parallel,
                "pp": first.stages, "dp": first.attention_ranks, "ep": first.experts.ranks, "replicas": own.replicas,
                "router": own.router,
                "weights": first.weights, "kv_cache": first.kv_cache, "prefix_caching": first.prefix_caching,
            },
            "pools": pools,
            "transfer": {"how": own.transfer, "order": own.order} if own.disaggregated else None,
            "duration_s": found.duration_s,
            "latency_s": {name: one.table() for name, one in found.distributions.items()},
            **found.figures,
            "paid_devices": self.paid_devices,
            "accelerators": self.accelerators,
            "dollars_per_million_tokens": self.dollars_per_million_tokens,
            "dollars_per_request": self.dollars_per_request,
            "binds": [one.table() for one in self.binding],
            "energy": None if self.energy is None else self.energy.table(),
            "interval": {name: list(ends) for name, ends in self.intervals.items()},
            "goals": [
                {"goal": str(goal), "reached_s": reached, "met": met} for goal, reached, met in found.goals
            ],
            "memory": None if memory is None else memory.table(),
            "kv_blocks": self.served.blocks.tolist(),
            "replicas": [
                {"pool": pool, "steps": steps, "busy_s": busy / 1e12, "computed_tokens": tokens, "peak_blocks": peak}
                for pool, steps, busy, tokens, peak in zip(
                    [place for place, pool in enumerate(own.pools) for _ in range(pool.cores)],
                    self.served.steps.tolist(), self.served.busy.tolist(), self.served.computed.tolist(),
                    self.served.peak_blocks.tolist(), strict=True,
                )
            ],
        }  # fmt: skip


def _pool_table(pool: Pool, kept: ReplicaMemory | None) -> dict[str, Any]:
    return {
        "name": pool.name, "role": pool.role, "model": pool.model, "system": pool.system.name,
        "device": pool.system.model(pool.first).name, "engine": {"name": pool.engine, **pool.engine_options},
        "tp": pool.tensor_parallel, "cp": pool.context_parallel, "cfg": pool.guidance_parallel, "pp": pool.stages,
        "dp": pool.attention_ranks, "ep": pool.experts.ranks,
        "replicas": pool.replicas, "weights": pool.weights,
        "kv_cache": pool.kv_cache, "memory": None if kept is None else kept.table(),
        "power_cap_w": pool.power_cap_w, "clock_hz": pool.clock_hz,
        "autoscale": pool.autoscaling, "mtbf_s": None if pool.mtbf_s == math.inf else pool.mtbf_s,
    }  # fmt: skip


def serve(
    deployment: Deployment | Pool,
    requests: RequestTable,
    slo: str | Sequence[Slo] = (),
    tpot: str = "standard",
    progress: Progress | None = None,
    interval: bool | None = None,
    priced: PricedPools | None = None,
    recorded: bool = False,
    constants: Mapping[str, float] | None = None,
) -> ServingResult:
    """Serve requests.

    Args:
        deployment: what serves: a pool alone (:func:`triosim.pool`), or several and what is between them.
        requests: what arrives when (:func:`triosim.traffic`, :func:`triosim.load_requests`).
        slo: goals, as ``"ttft=p99:2s,tpot=p99:50ms"``.
        tpot: how a request's TPOT is defined (:data:`triosim.serving.metrics.TPOT`).
        progress: told now and then.
        interval: find the 90 % interval of each figure; None finds it for at most :data:`FEW` requests.
        priced: step times of earlier runs of the same deployment; those found here are added.
        recorded: keep every step, which takes Python and its time.
        constants: of energy, beside the table's.

    Raises:
        InputError: the deployment cannot be formed, a request does not fit it, or a policy broke a rule.
    """
    own = _checked_arguments(deployment, requests)
    if isinstance(slo, str):
        slo = parse_slo(slo)
    _check_sharing(own)
    models = [checked_any(pool) for pool in own.pools]
    _check(own)
    recorder = None
    if recorded:
        from triosim.serving.recording import RunRecorder  # nobody else needs it

        recorder = RunRecorder()
    requests = _of_steps(own, requests)
    measured = slo, tpot
    served, kept = _played(own, models, requests, NOTHING_MOVED, progress, priced, recorder, measured)
    metrics = measure(served, slo, tpot)
    tokens = int(requests.prompt.sum() + requests.output.sum())
    per_hour = dollars_per_hour(own, _there(served, metrics.duration_s))
    dollars = None if per_hour is None else per_hour * metrics.duration_s / 3600 / tokens * 1e6
    found: dict[str, tuple[float, float]] = {}
    if interval and own.measured:
        raise InputError("how unsure measured layers are is not known: give --interval off, or leave --step-times out")
    if interval or (interval is None and len(requests) <= FEW and not own.measured):

        def again(errors: KernelErrors) -> dict[str, float]:
            return measure(_played(own, models, requests, errors, None, measured=measured)[0], (), tpot).named()

        named, classes = metrics.named(), each_moved(2 if own.disaggregated else max(pool.size for pool in own.pools))
        moved = [again(errors) for errors in classes]
        ends = [again(errors) for errors in ends_moved(named, moved, classes)]
        found = intervals(named, moved, max(front_spread(pool) for pool in own.pools), ends)
    record = None if recorder is None else recorder.record()
    return ServingResult(own, served, metrics, kept, per_hour, dollars, found, record, constants or {})


def _checked_arguments(deployment: object, requests: object) -> Deployment:
    """What serves; refuses what cannot, most often the name of a model.

    Raises:
        InputError: it says what makes one.
    """
    if not isinstance(requests, RequestTable):
        raise InputError(
            f"the requests must be a RequestTable, not {requests!r:.60}: make one with "
            "triosim.traffic(ARRIVALS, LENGTHS, NUMBER) or triosim.load_requests(FILE)"
        )
    if isinstance(deployment, Pool):
        return Deployment((deployment,))
    if not isinstance(deployment, Deployment):
        raise InputError(
            f"what serves must be a Pool or a Deployment, not {deployment!r:.60}: make one with "
            "triosim.pool(MODEL, SYSTEM) or triosim.fleet_file(FILE)"
        )
    return deployment


def _of_steps(own: Deployment, requests: RequestTable) -> RequestTable:
    """Requests of images are their numbers of steps: whatever is said of prompts, they have one token."""
    of_images = [pool.model for pool in own.pools if pool.denoises]
    if not of_images:
        return requests
    if requests.model is None:
        return replace(requests, prompt=np.ones_like(requests.prompt), hashes=None)
    asked = np.array([name in of_images for name in requests.models])[requests.model]
    return replace(requests, prompt=np.where(asked, 1, requests.prompt))


def _check_sharing(own: Deployment) -> None:
    """Whether the pools that share devices can.

    Raises:
        InputError: they cannot.
    """
    if not any(pool.shares for pool in own.pools):
        return
    if any(pool.comes_and_goes or pool.tiers or pool.role != "both" for pool in own.pools):
        raise InputError(
            "models take turns where replicas both prefill and decode, none come and go, and there are no tiers of KV "
            "cache: leave shares out, or these"
        )
    if own.turn_s <= 0:
        raise InputError("turn must be above zero: give a time, as 10s, or leave it out")
    named = {pool.name: pool for pool in own.pools if not pool.shares}
    for pool in own.pools:
        if not pool.shares:
            continue
        first = named.get(pool.shares)
        if first is None:
            raise InputError(f"no pool {quoted(pool.shares)} has devices to share: give {', '.join(named)}")
        alike = first.system is pool.system and (first.first, first.size, first.replicas) == (
            pool.first, pool.size, pool.replicas,
        )  # fmt: skip
        if not alike or first.model == pool.model:
            raise InputError(
                f"the pool {pool.name} shares the devices of {first.name}: give it another model, as many replicas, "
                "and replicas of as many devices"
            )


def _check(own: Deployment) -> None:
    """Whether the pools go together.

    Raises:
        InputError: they do not.
    """
    for option, value, known in (("transfer", own.transfer, TRANSFERS), ("order", own.order, ORDERS)):
        if value not in known:
            raise InputError(f"{option} {quoted(value)} is not known: give {', '.join(known)}")
    if own.local and own.order != "decode-first":
        raise InputError(
            "prompts are computed where they decode only if that is chosen first: give the order decode-first too"
        )
    if not own.idle_ok:
        _refuse_idle(own)
    for model in dict.fromkeys(pool.model for pool in own.pools):
        roles = {pool.role for pool in own.pools if pool.model == model}
        if roles not in ({"both"}, {"prefill", "decode"}):
            raise InputError(
                f"pools of {model} have the roles {', '.join(sorted(roles))}: give each both, or some prefill and some "
                "decode"
            )


def _refuse_idle(own: Deployment) -> None:
    """On each of the machines.

    Raises:
        InputError: devices of one have no replica.
    """
    for system in {id(pool.system): pool.system for pool in own.pools}.values():
        on = [pool for pool in own.pools if pool.system is system]
        if len(on) == 1:
            refuse_idle(on[0].replicas, on[0].size, system.devices)
        elif used := sum(pool.own_devices for pool in on) - system.devices:
            raise InputError(
                f"the pools leave {-used} of the {system.devices} devices of {system.name or 'the system'} idle: give "
                "more replicas, a smaller system, or --idle-ok (idle-ok in the file of a fleet) to want it so"
            )


def _played(
    own: Deployment,
    models: Sequence[AnyModel],
    requests: RequestTable,
    moved: KernelErrors,
    progress: Progress | None,
    priced: PricedPools | None = None,
    recorder: RunRecorder | None = None,
    measured: tuple[Sequence[Slo], str] = ((), "standard"),
) -> tuple[FleetRun, tuple[ReplicaMemory | None, ...]]:
    """A run, and the memory of each pool; ``measured``: goals and TPOT of which it is asked afterwards."""
    replicas: list[Replica] = []
    memories: list[ReplicaMemory | None] = []
    by_role: dict[tuple[str, str], list[Replica]] = {}
    places: dict[int, ReplicaPlacement] = {}
    device = 0
    for pool, model in zip(own.pools, models, strict=True):
        made, kept = replicas_of(pool, model, len(replicas), moved, priced)
        replicas += made
        memories.append(kept)
        for one in made:
            one.recorder = recorder
            if one.speculation is not None:
                one.speculation.seed = own.seed
        if pool.adapters is not None and isinstance(model, ServedModel):
            _give_slots(own, pool, model, made, requests, moved)
        by_role.setdefault((pool.model, pool.role), []).extend(made)
        if own.disaggregated and isinstance(model, ServedModel):
            begin = pool.first if own.network is None else device
            for place, one in enumerate(made):
                places[one.number] = pool.place(model, begin + pool.first_of(place))
        device += pool.devices
    routes = live = None
    if own.disaggregated and own.transfer != "none":
        system = own.network or own.pools[0].system
        from triosim.engine.live import LiveNetwork  # nobody else needs a network
        from triosim.network.routes import Router as Routes
        from triosim.serving.communication import link_factor

        routes = Routes(system)
        slower = link_factor(system, moved.network)
        limited = routes.capacity != UNLIMITED
        capacity = np.maximum(np.rint(routes.capacity / slower), 1)
        live = LiveNetwork(np.where(limited, capacity, UNLIMITED).astype(np.int64))
    names = list(dict.fromkeys(pool.model for pool in own.pools))
    tiers = None
    if any(pool.tiers for pool in own.pools):
        from triosim.serving.communication import link_factor
        from triosim.serving.tiers import tiers_of

        tiers = tiers_of(own.pools, models, replicas, link_factor(own.pools[0].system, moved.network))
    groups = [_group(own, by_role, name, places, routes, live) for name in names]
    if len(names) > 1 or requests.models:
        groups = _asked_for(requests, names, groups)
        names = list(requests.models)
    available = _availability(own, models, replicas, names, moved)
    sharing = _sharing(own, models, replicas, moved)
    front = picoseconds(max(front_seconds(pool) for pool in own.pools), "the time before the engine")
    played = play(
        requests, replicas, progress=progress, groups=groups, tiers=tiers, availability=available, sharing=sharing,
        front=front, sketch=None if recorder else request_sketch(requests, *measured, len(replicas), front),
    )  # fmt: skip
    return played, tuple(memories)


def _availability(
    own: Deployment, models: Sequence[AnyModel], replicas: Sequence[Replica], names: Sequence[str], moved: KernelErrors
) -> Availability | None:
    """Which replicas serve when; None where all do all the time.

    Args:
        own, models, replicas: of the deployment.
        names: of models in the order of groups.
        moved: how far off links are.

    Raises:
        InputError: pools cannot come and go.
    """
    if not any(pool.comes_and_goes for pool in own.pools):
        return None
    if any(pool.tiers or pool.role != "both" for pool in own.pools):
        raise InputError(
            "autoscaling and failures are of replicas that both prefill and decode, without tiers of KV cache: leave "
            "them out, or the tiers and the other roles"
        )
    from triosim.serving.autoscaling import parse_autoscaling
    from triosim.serving.availability import Availability, PoolAvailability
    from triosim.serving.cold_start import parse_cold_start
    from triosim.serving.communication import link_factor

    pools, first = [], 0
    for pool, model in zip(own.pools, models, strict=True):
        made, first = replicas[first : first + pool.cores], first + pool.cores
        if pool.model not in names:
            continue
        start = parse_cold_start(pool.cold_start)
        weights = weight_bytes(pool, model)
        slower = link_factor(pool.system, moved.network)
        scaling = None if pool.autoscaling is None else parse_autoscaling(pool.autoscaling)
        if scaling is not None and scaling.least > pool.replicas:
            raise InputError(f"--autoscale: least={scaling.least} is more than the replicas there are, {pool.replicas}")
        pools.append(
            PoolAvailability(
                names.index(pool.model), made,
                [start.ticks(pool.system, pool.first + place * pool.size, pool.size, weights, slower)
                 for place in range(pool.replicas)],
                scaling, pool.mtbf_s / pool.size, picoseconds(pool.repair_s, "a repair"), own.seed,
            )
        )  # fmt: skip
    return Availability(pools)


def _sharing(
    own: Deployment, models: Sequence[AnyModel], replicas: Sequence[Replica], moved: KernelErrors
) -> TimeSharing | None:
    """Which replicas take turns on the same devices; None where all have their own."""
    if not any(pool.shares for pool in own.pools):
        return None
    from triosim.serving.cold_start import parse_cold_start
    from triosim.serving.communication import link_factor
    from triosim.serving.time_sharing import SharedDevices, TimeSharing

    number, numbers = 0, []
    for pool in own.pools:
        numbers.append(number)
        number += pool.cores
    seats = []
    for pool in own.pools:
        if pool.shares:
            continue
        places = [at for at, other in enumerate(own.pools) if other is pool or other.shares == pool.name]
        if len(places) == 1:
            continue
        for place in range(pool.replicas):
            cold = []
            for at in places:
                other = own.pools[at]
                weights = weight_bytes(other, models[at])
                slower = link_factor(other.system, moved.network)
                start = parse_cold_start(other.cold_start)
                cold.append(start.ticks(other.system, other.first + place * other.size, other.size, weights, slower))
            made = [replicas[numbers[at] + place] for at in places]
            seats.append(SharedDevices(made, cold, picoseconds(min(own.turn_s, MOST_TURN_S), "a turn")))
    return TimeSharing(seats)


def _give_slots(
    own: Deployment,
    pool: Pool,
    model: ServedModel,
    made: Sequence[Replica],
    requests: RequestTable,
    moved: KernelErrors,
) -> None:
    """Slots for adapters, each filled from the host of its replica."""
    from triosim.serving.adapters import AdapterSlots, parse_adapters
    from triosim.serving.communication import link_factor
    from triosim.serving.swap import HostCopies

    assert pool.adapters is not None
    plan = parse_adapters(pool.adapters)
    asked = plan.asked(len(requests), own.seed).tolist()
    slower = link_factor(pool.system, moved.network)
    for place, one in enumerate(made):
        copies = HostCopies.of(pool.system, pool.first + place * pool.size, slower)
        one.slots = AdapterSlots(plan, asked, copies, plan.bytes(model, pool.tensor_parallel))


def _group(
    own: Deployment, by_role: Mapping[tuple[str, str], list[Replica]], model: str, places: dict[int, ReplicaPlacement],
    routes: Routes | None, live: LiveNetwork | None,
) -> ReplicaGroup:  # fmt: skip
    """The replicas of a model."""
    options = {"seed": str(own.seed), **own.router_options}
    router = part(ROUTERS, own.router, options, "router")
    both = by_role.get((model, "both"), [])
    prefill, decode = (by_role.get((model, role), []) for role in ("prefill", "decode"))
    sizes = {replica.cache.block_tokens for replica in (*both, *prefill, *decode)}
    if len(sizes) > 1 and any(replica.cache.reuses for replica in (*both, *prefill, *decode)):
        raise InputError(
            f"pools of {model} have blocks of {' and '.join(map(str, sorted(sizes)))} tokens, and so cannot look for "
            "the same prefixes: give all the same block-tokens, or turn prefix caching off"
        )
    if both:
        return ReplicaGroup(both, router)
    from triosim.serving.disaggregation import KVCacheTransfer

    over = KVCacheTransfer(
        prefill, decode, places, routes, part(ROUTERS, own.router, options, "router"),
        by_layer=own.transfer == "layers", decode_first=own.order == "decode-first", local=own.local,
        network=live,
    )  # fmt: skip
    return ReplicaGroup(prefill, router, over)


def _asked_for(requests: RequestTable, names: Sequence[str], groups: Sequence[ReplicaGroup]) -> list[ReplicaGroup]:
    """The groups in the order in which requests name models."""
    if not requests.models:
        raise InputError(
            f"the fleet serves {', '.join(names)}, and the requests do not say which they ask for: give each a model "
            '("model" in JSONL)'
        )
    missing = [model for model in requests.models if model not in names]
    if missing:
        raise InputError(
            f"the fleet holds no replica of {quoted(missing[0])}, which requests ask for: it serves {', '.join(names)}"
        )
    return [groups[names.index(model)] for model in requests.models]


def dollars_per_hour(own: Deployment, there: NDArray[np.float64] | None = None) -> float | None:
    """Rent of all devices; None where one has no price.

    Args:
        own: what serves.
        there: share of the time for which each replica is paid; all of it if None.
    """
    total = 0.0
    for device, count in _paid(own, there):
        if device.price_per_hour is None:
            return None
        total += device.price_per_hour * count
    return total


def _there(served: FleetRun, duration_s: float) -> NDArray[np.float64] | None:
    """Share of the time for which each replica is paid; None where that is all of it."""
    return None if served.history is None else served.history.paid / PICOSECONDS_PER_SECOND / duration_s


def _paid(own: Deployment, there: NDArray[np.float64] | None) -> Iterator[tuple[Accelerator, float]]:
    """Of each replica the device, and how many of it are paid on average; what it shares is paid by the other."""
    number = 0
    for pool in own.pools:
        for place in range(0 if pool.shares else pool.replicas):
            share = 1.0 if there is None else float(there[number])
            yield device_of(pool, pool.first + place * pool.size), pool.size * share
            number += 1
