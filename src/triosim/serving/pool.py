"""A pool: equal replicas of one model, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from triosim.composition.host import collective_seconds, issue_seconds
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.registry import Registry
from triosim.core.units import format_bytes
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System
from triosim.plan import divisors
from triosim.serving.adapters import AdaptedTimes, check_adapters, parse_adapters
from triosim.serving.capacity import UTILISATION, ReplicaMemory, memory, static_share
from triosim.serving.denoiser import Denoiser, is_denoiser
from triosim.serving.expert_ranks import ExpertRanks
from triosim.serving.kernel_times import NOTHING_MOVED, KernelErrors, ServingKernels
from triosim.serving.kv_cache import KVCache, LayerGroups, PrefixCache
from triosim.serving.model import ServedModel, kv_type_of, precision_of, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.pim import ATTENTION, OFF, PimKernels
from triosim.serving.policy import ENGINES, IMAGE_ENGINES, Policy
from triosim.serving.replica import Replica
from triosim.serving.state_cache import StateCache, check_states, state_cache, state_type
from triosim.serving.step_times import NO_HOST, StepHost, StepTimes, eager_host
from triosim.serving.swap import SWAP_BYTES, HostCopies, SwappingCache

if TYPE_CHECKING:
    from triosim.serving.disaggregation import ReplicaPlacement
    from triosim.serving.lockstep import LockStep, LockStepTimes
    from triosim.serving.speculation import Drafter, SpeculationPlan

T = TypeVar("T")

ROLES = ("both", "prefill", "decode")
"""What the replicas of a pool do with a request."""
PREEMPTIONS = ("recompute", "swap")
"""What becomes of a request that gives way: it is computed again, or its blocks go to the host."""
MOST_SAMPLED = 1024
"""Requests for whose logits memory is kept, however many an engine may run (vLLM's ``max_num_seqs`` is at most so)."""
NO_BUDGET = 8192
"""Tokens of a step for which memory is kept where the engine has no budget."""


@dataclass(frozen=True)
class Pool:
    """Equal replicas.

    Attributes:
        model: by name or by configuration file.
        system: the machine; a replica takes ``tensor_parallel * stages`` of its devices.
        first: device at which the first replica begins.
        name: for people.
        role: one of :data:`ROLES`.
        engine: name of a policy, or a Python file that registers one.
        engine_options: of the policy, as typed.
        tensor_parallel, stages: devices that share each layer, and pipeline stages.
        attention_ranks: of data-parallel attention in a replica, each with requests and a KV cache of its own, whose
            experts are divided among all devices (:mod:`triosim.serving.lockstep`).
        expert_ranks: ranks of the devices of ``tensor_parallel`` that have whole experts of their own, each divided
            among the devices of a rank; ranks of attention share experts among all devices in any case.
        expert_skew: how many times the mean the experts of the fullest device are chosen then, but for chance.
        replicas: copies of the model.
        weights: one of :data:`triosim.serving.model.PRECISIONS`.
        kv_cache: one of :data:`triosim.serving.model.KV_TYPES`.
        state_cache: type of states of fixed size, one of :data:`triosim.serving.states.STATE_TYPES`; ``""``: that of
            the model's configuration, or of the engine.
        prefix_caching: whether what a prompt begins with may be found in the cache; as the engine does if None.
        eviction: of what was found in the cache, one of :data:`triosim.serving.kv_cache.EVICTIONS`.
        longest: tokens of a request at most; the model's positions if None.
        blocks: of each replica's cache; what memory allows if None.
        preemption: what becomes of requests that give way, one of :data:`PREEMPTIONS`.
        swap_bytes: of host memory for each device.
        speculation: how tokens are drafted, as typed (:func:`triosim.serving.speculation.parse_speculation`).
        adapters: that requests ask for, as typed (:func:`triosim.serving.adapters.parse_adapters`).
        tiers: of KV cache behind the device's own, as typed (:func:`triosim.serving.tiers.parse_tier`).
        utilisation: share of a device's memory that is the engine's; as its own default if None.
        autoscaling: how many of the replicas there are when, as typed
            (:func:`triosim.serving.autoscaling.parse_autoscaling`); all of them all the time if None.
        cold_start: how a replica starts, as typed (:func:`triosim.serving.cold_start.parse_cold_start`).
        mtbf_s: mean seconds between failures of one device; infinite: none.
        repair_s: seconds from a failure until another replica begins to start.
        host_s: seconds that the host needs for a step, while the device runs one.
        power_cap_w, clock_hz: that each device is held to (:mod:`triosim.serving.clocked`); None where nothing does.
        step_times: folder of measured layers that price its steps instead of the models
            (:mod:`triosim.serving.recorded_times`); ``""``: none.
        pim: what goes to memory that computes, where devices have it: one of :data:`triosim.serving.pim.MODES`.
        image_size: pixels along each side of what a diffusion model makes; what it was made for if None.
        step_cache: which of its steps run only a part, as typed (:func:`triosim.serving.denoising.parse_step_cache`).
        stack: what runs it, by name (:mod:`triosim.stacks`); plain PyTorch if None.
        shares: name of the pool on whose devices this one takes turns; ``""``: it has its own.
        host: how kernels are launched: ``graph``, or eagerly (a mode of :mod:`triosim.composition.host`).
    """

    model: str
    system: System
    first: int = 0
    name: str = ""
    role: str = "both"
    engine: str = "vllm"
    engine_options: Mapping[str, str] = field(default_factory=dict)
    tensor_parallel: int = 1
    stages: int = 1
    attention_ranks: int = 1
    expert_ranks: int = 1
    expert_skew: float = 1.0
    replicas: int = 1
    weights: str = "bf16"
    kv_cache: str = "bf16"
    state_cache: str = ""
    prefix_caching: bool | None = None
    eviction: str = "lru"
    preemption: str = "recompute"
    swap_bytes: float = SWAP_BYTES
    speculation: str | None = None
    adapters: str | None = None
    tiers: Sequence[str] = ()
    longest: int | None = None
    blocks: int | None = None
    utilisation: float | None = None
    autoscaling: str | None = None
    cold_start: str = "host"
    mtbf_s: float = inf
    repair_s: float = 0.0
    host_s: float = 0.0
    power_cap_w: float | None = None
    clock_hz: float | None = None
    host: str = "graph"
    step_times: str = ""
    pim: str = ATTENTION
    image_size: int | None = None
    step_cache: str | None = None
    stack: str | None = None
    shares: str = ""

    @property
    def denoises(self) -> bool:
        """Whether the model makes images."""
        return is_denoiser(self.model)

    @property
    def size(self) -> int:
        """Devices of a replica."""
        return self.tensor_parallel * self.stages * self.attention_ranks

    @property
    def experts(self) -> ExpertRanks:
        """The devices that share the experts of each layer."""
        every = self.attention_ranks * self.tensor_parallel
        return ExpertRanks(every if self.attention_ranks > 1 else self.expert_ranks, self.expert_skew)

    @property
    def cores(self) -> int:
        """Schedulers of all replicas, each with a KV cache: one for each rank of attention."""
        return self.replicas * self.attention_ranks

    def first_of(self, core: int) -> int:
        """Device, counted from the pool's first, at which a scheduler's part of a replica begins."""
        return core * self.tensor_parallel * self.stages

    @property
    def devices(self) -> int:
        """Of all replicas."""
        return self.size * self.replicas

    @property
    def own_devices(self) -> int:
        """Those that no pool before has."""
        return 0 if self.shares else self.devices

    @property
    def comes_and_goes(self) -> bool:
        """Whether replicas fail, or are there only when they are asked for."""
        return self.autoscaling is not None or self.mtbf_s < inf

    def block_bytes(self, model: ServedModel, block_tokens: int) -> float:
        """Of a block of the KV cache on one device."""
        return block_tokens * model.kv_bytes(kv_type_of(self.kv_cache), self.tensor_parallel, self.stages)

    def place(self, model: ServedModel, first: int) -> ReplicaPlacement:
        """Of a replica that begins at this device of the network between replicas."""
        from triosim.serving.disaggregation import ReplicaPlacement

        heads, elements = model.cached
        head = elements * DTYPE_BYTES[kv_type_of(self.kv_cache)]
        return ReplicaPlacement(first, self.tensor_parallel, self.stages, model.layers, heads, head)


AnyModel = ServedModel | Denoiser
"""What a pool serves: tokens or images."""
PricedPools = dict[tuple[object, ...], StepTimes]
"""Step times by what they depend on (:func:`_priced_by`); the systems of the pools must live as long."""


def checked_any(own: Pool) -> AnyModel:
    """As :func:`checked`, of a model that writes tokens or makes images.

    Raises:
        InputError: the pool cannot be formed.
    """
    if not own.denoises:
        return checked(own)
    from triosim.serving.denoising import checked_denoiser  # nobody else needs predictions

    _check_sizes(own)
    model = checked_denoiser(own)
    _check_room(own)
    return model


def weight_bytes(own: Pool, model: AnyModel) -> float:
    """Of what a device of a replica holds."""
    if isinstance(model, Denoiser):
        return model.weight_bytes(own.weights, own.tensor_parallel)
    return model.weight_bytes(precision_of(own.weights), own.tensor_parallel, own.stages)


def checked(own: Pool) -> ServedModel:
    """The model, if the pool can be formed.

    Raises:
        InputError: it cannot.
    """
    _check_sizes(own)
    of_images = (("--image-size", own.image_size), ("--step-cache", own.step_cache), ("--stack", own.stack))
    for option, given in of_images:
        if given is not None:
            raise InputError(f"{option} is of models that make images, and {own.model} writes tokens: leave it out")
    model = served_model(own.model)
    if model.heads % own.tensor_parallel:
        raise InputError(
            f"--tp {own.tensor_parallel} does not divide the {model.heads} heads of {own.model}: choose another"
        )
    check_states(own, model)
    _check_ranks(own, model)
    _check_room(own)
    _check_measured(own)
    return model


def _check_measured(own: Pool) -> None:
    """Refuse what measured layers say nothing of.

    Raises:
        InputError: something is asked that they do not price.
    """
    beside = (
        ("--speculate", own.speculation is not None), ("--lora", own.adapters is not None),
        ("--dp", own.attention_ranks > 1), ("--ep", own.expert_ranks > 1), ("--power-cap", own.power_cap_w is not None),
        ("--clock", own.clock_hz is not None), ("--weights " + own.weights, own.weights not in ("bf16", "fp16")),
        ("--kv-cache " + own.kv_cache, own.kv_cache not in ("bf16", "fp16")),
    )  # fmt: skip
    for option, given in beside:
        if own.step_times and given:
            raise InputError(f"--step-times has layers as they were measured, and {option} changes them: leave one out")


def _check_sizes(own: Pool) -> None:
    """Role and numbers.

    Raises:
        InputError: one makes no sense.
    """
    if own.role not in ROLES:
        raise InputError(f"role {quoted(own.role)} is not known: give {', '.join(ROLES)}")
    sizes = (
        ("--tp", own.tensor_parallel), ("--pp", own.stages), ("--dp", own.attention_ranks), ("--ep", own.expert_ranks),
        ("--replicas", own.replicas),
    )  # fmt: skip
    for option, value in sizes:
        if value < 1:
            what = "the fleet holds no replica of the model" if option == "--replicas" else f"{option} {value}"
            raise InputError(f"{what}: give {option} of at least 1")


def _check_room(own: Pool) -> None:
    """Whether the machine has the devices.

    Raises:
        InputError: it has too few.
    """
    if own.first + own.devices > own.system.devices:
        beside = f" beside the {own.first} of other pools" if own.first else ""
        raise InputError(
            f"{own.replicas} replicas of {own.size} devices need {own.devices}{beside}, but "
            f"{own.system.name or 'the system'} has {own.system.devices}: use fewer, or a larger system"
        )


def _check_experts(own: Pool, model: ServedModel) -> None:
    """Refuse experts that cannot be shared as asked.

    Raises:
        InputError: how they could be.
    """
    ranks, tensor_parallel = own.expert_ranks, own.tensor_parallel
    if ranks > 1 and model.experts is None:
        raise InputError(f"--ep {ranks} divides experts among devices, and {own.model} has none: leave it out")
    if own.attention_ranks > 1:
        if ranks not in (1, own.attention_ranks * tensor_parallel):
            raise InputError(
                f"--ep {ranks}: with --dp {own.attention_ranks} all {own.attention_ranks * tensor_parallel} devices of "
                "a replica share the experts: leave --ep out"
            )
    elif tensor_parallel % ranks:
        raise InputError(
            f"--ep {ranks} must divide the devices that share each layer (--tp {tensor_parallel}): use one of "
            f"{', '.join(map(str, divisors(tensor_parallel)))}"
        )
    elif uneven := next((k.experts.count for k in model.kinds if k.experts and k.experts.count % ranks), 0):
        raise InputError(f"--ep {ranks} does not divide the {uneven} experts of {own.model}: use one that does")
    shared = own.experts.ranks
    if shared == 1 and own.expert_skew != 1:
        raise InputError(
            "--expert-skew is of experts that ranks share: give --ep or --dp of at least 2, or leave it out"
        )
    if not 1 <= own.expert_skew <= shared:
        raise InputError(
            f"--expert-skew {own.expert_skew:g} must be from 1 (even) to the {shared} ranks that share the experts"
        )


def _check_ranks(own: Pool, model: ServedModel) -> None:
    """Refuse what data-parallel attention does not go with.

    Raises:
        InputError: something is asked that it does not.
    """
    _check_experts(own, model)
    if own.attention_ranks == 1:
        return
    if model.experts is None:
        raise InputError(
            f"--dp {own.attention_ranks} divides experts among ranks, and {own.model} has none: use --replicas "
            f"{own.attention_ranks}"
        )
    apart = (
        ("--pp", own.stages > 1), ("--speculate", own.speculation is not None), ("--lora", own.adapters is not None),
        ("--kv-tier", bool(own.tiers)), ("--preemption swap", own.preemption == "swap"),
        ("--autoscale", own.autoscaling is not None), ("--mtbf", own.mtbf_s < inf), ("shares", bool(own.shares)),
    )  # fmt: skip
    for option, given in apart:
        if given:
            raise InputError(f"{option} does not go with ranks that step together (--dp): leave one of them out")


def refuse_idle(replicas: int, size: int, devices: int, many: bool = True) -> None:
    """Devices that a fleet leaves idle are usually a slip.

    Args:
        replicas: of the fleet.
        size: devices of one.
        devices: of the system.
        many: whether there may be several replicas.

    Raises:
        InputError: some are.
    """
    idle = devices - replicas * size
    if not idle:
        return
    whole = devices // size if many else 1
    ways = [f"--replicas {whole}"] if whole > replicas else []
    raise InputError(
        f"{replicas} replica{'s' if replicas > 1 else ''} of {size} device{'s' if size > 1 else ''} "
        f"leave{'' if replicas > 1 else 's'} {idle} of the system's {devices} devices idle: give "
        f"{', '.join([*ways, 'a larger --tp or --pp'])}, a system of {replicas * size}, or --idle-ok (idle_ok of a "
        "Deployment) to want it so"
    )


def replicas_of(
    own: Pool, model: AnyModel, number: int, moved: KernelErrors, priced: PricedPools | None = None
) -> tuple[list[Replica], ReplicaMemory | None]:
    """Fresh replicas, numbered from ``number`` on, and the memory of the fullest kind of device.

    Args:
        own, model: of which they are made.
        number: of the first.
        moved: how far off their kernels are.
        priced: step times of earlier runs of the same pools; those found here are added.

    Raises:
        InputError: the devices of one differ, or have too little memory.
    """
    if isinstance(model, Denoiser):
        from triosim.serving.denoising import denoising_replicas

        firsts = range(own.first, own.first + own.devices, own.size)
        policies = [engine_on(device_of(own, first), own.engine, own.engine_options, IMAGE_ENGINES) for first in firsts]
        return denoising_replicas(own, model, number, moved, policies, priced)
    kinds: dict[str, tuple[ModelTimes, SpeculationPlan | None, Drafter | None, ReplicaMemory | None]] = {}
    replicas: list[Replica] = []
    adapters = None
    if own.adapters is not None:
        check_adapters(own.stages, own.role)
        model.alike("--lora")
        if model.experts is not None:
            raise InputError(f"adapters of experts are not priced, and {own.model} has experts: leave --lora out")
        adapters = parse_adapters(own.adapters)
    together: LockStep | None = None
    for place in range(own.cores):
        first = own.first + own.first_of(place)
        replica_first = own.first + place // own.attention_ranks * own.size
        device = device_of(own, replica_first)
        policy = engine_on(device, own.engine, own.engine_options)
        states = state_cache(own, model, kv_type_of(own.kv_cache), policy)
        if device.name not in kinds:
            key = _priced_by(own, model, device, moved, policy.host())
            known = priced.get(key) if priced is not None else None
            times = known if isinstance(known, ModelTimes) else step_times(own, model, first, moved, policy.host())
            if priced is not None:
                priced[key] = times
            plan, drafter = _drafter(own, model, device, moved, times)
            kinds[device.name] = times, plan, drafter, _memory(own, model, device, policy, drafter, states)
        times, plan, drafter, kept = kinds[device.name]
        if states is not None:
            states.settle(policy, kept.slots if kept else 0)
        blocks = (own.blocks if kept is None else kept.blocks) or 0
        cache = _cache(own, model, first, policy, blocks, moved, states)
        longest = own.longest or model.longest
        if own.attention_ranks > 1:
            from triosim.serving.lockstep import AttentionRank, LockStep

            if place % own.attention_ranks == 0:
                together = LockStep(lock_step(own, times, replica_first, moved))
            assert together is not None
            replicas.append(AttentionRank(number + place, policy, cache, together, longest))
            continue
        steps = _measured(own, model, priced) if own.step_times else _with_drafts(times, drafter)
        replica = Replica(number + place, policy, cache, steps, longest)
        if plan is not None:
            from triosim.serving.speculation import Speculation

            replica.speculation = Speculation(plan)
        if adapters is not None:
            replica.times = AdaptedTimes(replica.times, times.kernels, adapters)
        replicas.append(replica)
    all_kept = [kept for *_, kept in kinds.values() if kept is not None]
    return replicas, min(all_kept, key=lambda kept: kept.blocks, default=None)


def _cache(
    own: Pool, model: ServedModel, first: int, policy: Policy, blocks: int, moved: KernelErrors,
    states: StateCache | None,
) -> KVCache:  # fmt: skip
    """Of a replica from a device on.

    Raises:
        InputError: what is asked of it does not go together.
    """
    if own.preemption not in PREEMPTIONS:
        raise InputError(f"preemption {quoted(own.preemption)} is not known: give {' or '.join(PREEMPTIONS)}")
    swaps = own.preemption == "swap"
    if swaps and not policy.swaps:
        raise InputError(
            f"the engine {own.engine} swaps nothing: give vllm, vllm-2023 or sarathi, or leave preemption out"
        )
    if swaps and own.prefix_caching:
        raise InputError(
            "preemption swap moves blocks that nobody else reads: give prefix caching off, or preemption recompute"
        )
    if own.tiers:
        from triosim.serving.tiers import TieredCache  # nobody else needs a network

        if swaps or not (policy.finds_prefixes if own.prefix_caching is None else own.prefix_caching):
            raise InputError("tiers keep what prefix caching finds, which is off: turn it on, or leave tiers out")
        return TieredCache(blocks, policy.block_tokens, policy.radix, own.eviction)
    groups = groups_of(own, model, policy)
    if states is not None:  # which prefixes are not found of
        _refuse_eviction(own)
        return KVCache(blocks, policy.block_tokens, states=states.taken)
    if not swaps and (policy.finds_prefixes if own.prefix_caching is None else own.prefix_caching):
        return PrefixCache(blocks, policy.block_tokens, policy.radix, own.eviction, groups)
    _refuse_eviction(own)
    if not swaps:
        return KVCache(blocks, policy.block_tokens, groups)
    from triosim.serving.communication import link_factor  # which loads collectives

    block = own.block_bytes(model, policy.block_tokens)
    copies = HostCopies.of(own.system, first, link_factor(own.system, moved.network))
    return SwappingCache(blocks, policy.block_tokens, int(own.swap_bytes // block), block, copies)


def _refuse_eviction(own: Pool) -> None:
    """Where no prefix is found, nothing is given up.

    Raises:
        InputError: somebody says how.
    """
    if own.eviction != "lru":
        raise InputError(
            f"eviction {quoted(own.eviction)} is of prefix caching, which is off: turn it on, or leave eviction out"
        )


def groups_of(own: Pool, model: ServedModel, policy: Policy) -> LayerGroups | None:
    """How layers share the blocks of a replica's cache: in groups, where nothing else reads or moves them."""
    moved = own.role != "both" or own.tiers or own.preemption == "swap" or own.speculation is not None
    return model.layer_groups() if policy.hybrid_kv_cache and own.stages == 1 and not moved else None


def _drafter(
    own: Pool, model: ServedModel, device: Accelerator, moved: KernelErrors, times: ModelTimes
) -> tuple[SpeculationPlan | None, Drafter | None]:
    """What drafts beside the model, if anything does.

    Raises:
        InputError: it cannot.
    """
    if own.speculation is None:
        return None, None
    from triosim.serving.speculation import drafter_of, parse_speculation

    plan = parse_speculation(own.speculation)
    if own.stages > 1 or own.role != "both":
        raise InputError(
            "speculation is of replicas on one pipeline stage that both prefill and decode: leave it out, or --pp and "
            "the other roles"
        )
    return plan, drafter_of(
        plan, model, device, precision_of(own.weights), kv_type_of(own.kv_cache), own.tensor_parallel, moved, times
    )


def _measured(own: Pool, model: ServedModel, priced: PricedPools | None) -> StepTimes:
    """Step times of the layers in a folder, read once."""
    key = ("measured", own.step_times, own.model, own.tensor_parallel, own.stages, own.host_s)
    times = priced.get(key) if priced is not None else None
    if times is None:
        from triosim.serving.recorded_times import recorded_times

        times = recorded_times(Path(own.step_times), model, own.tensor_parallel, own.stages, own.host_s)
        if priced is not None:
            priced[key] = times
    return times


def _with_drafts(times: ModelTimes, drafter: Drafter | None) -> StepTimes:
    if drafter is None:
        return times
    from triosim.serving.speculation import SpeculativeTimes

    return SpeculativeTimes(times, drafter)


def _memory(
    own: Pool, model: ServedModel, device: Accelerator, policy: Policy, drafter: Drafter | None,
    states: StateCache | None,
) -> ReplicaMemory | None:  # fmt: skip
    """None where the blocks are given.

    Raises:
        InputError: there is no room, or not for the blocks that are given.
    """
    beside = drafter.weights if drafter else 0.0
    if own.adapters is not None:
        plan = parse_adapters(own.adapters)
        beside += plan.slots * plan.bytes(model, own.tensor_parallel)

    def kept(share: float) -> ReplicaMemory:
        return memory(
            model, device, precision_of(own.weights), kv_type_of(own.kv_cache), block_tokens=policy.block_tokens,
            tokens=policy.max_tokens or NO_BUDGET, sequences=min(policy.max_running, MOST_SAMPLED),
            tensor_parallel=own.tensor_parallel, stages=own.stages, attention_ranks=own.attention_ranks,
            utilisation=share, static=policy.static, beside=beside,
            kv_beside=drafter.kv_token if drafter else 0.0, groups=groups_of(own, model, policy), states=states,
        )  # fmt: skip

    if own.blocks is None:
        return kept(share_of(own, device, policy))
    if device.memory_bytes:
        whole = kept(1.0)
        if own.blocks > whole.blocks + (whole.activations + whole.context) / whole.block:
            needs = format_bytes(own.blocks * whole.block)
            raise InputError(
                f"--kv-blocks {own.blocks} take {needs} beside {format_bytes(whole.weights)} of weights, and "
                f"{device.name} has {format_bytes(whole.capacity)}: at most {whole.blocks} fit"
            )
    return None


def default_engine(model: str) -> str:
    """The engine that serves a model where nobody says."""
    return "diffusers" if is_denoiser(model) else "vllm"


def engine_on(
    device: Accelerator, name: str, options: Mapping[str, str], engines: Registry[Policy] = ENGINES
) -> Policy:
    """A fresh policy, with the options that were typed and what the engine sets by the device.

    Raises:
        InputError: there is no such engine, or an option is not one of its, or lets it do nothing.
    """
    policy = part(engines, name, options, "engine")
    for option in ("max_running", "max_tokens", "block_tokens"):
        value = getattr(policy, option, None)
        if value is not None and value < 1:
            raise InputError(f"engine {name}: {option.replace('_', '-')} must be at least 1, got {value}")
    given = {option.replace("-", "_") for option in options}
    for option, value in policy.defaults_on(device.name, device.memory_bytes or 0.0).items():
        if option not in given:
            setattr(policy, option, value)
    return policy


def share_of(own: Pool, device: Accelerator, policy: Policy) -> float:
    """Of the memory of a device, that is the engine's."""
    if own.utilisation is not None:
        return own.utilisation
    return static_share(device.memory_bytes or inf, own.size) if policy.static else UTILISATION


def _priced_by(
    own: Pool, model: ServedModel, device: Accelerator, moved: KernelErrors, host: StepHost
) -> tuple[object, ...]:
    """What step times of a pool depend on: fleets that differ in other things share them."""
    apart = own.attention_ranks > 1
    replica = (
        own.model, own.weights, own.kv_cache, own.tensor_parallel, own.stages, own.host, own.host_s, own.pim, apart,
        own.experts, own.power_cap_w, own.clock_hz, state_type(own, model),
    )  # fmt: skip
    return (id(own.system), own.first, device.name, moved, host, *replica)


def step_times(
    own: Pool, model: ServedModel, first: int = 0, moved: KernelErrors = NOTHING_MOVED, host: StepHost = NO_HOST
) -> ModelTimes:
    """Step times of a replica from its first device on, whose kernels are off by so much, under an engine's host.

    Raises:
        InputError: its devices differ, or a name in the pool is not known.
    """
    kernels = kernels_of(own, model, first, moved)
    between = None
    if own.tensor_parallel * own.stages > 1:
        from triosim.serving.communication import ReplicaCommunication  # nobody else needs collectives

        between = ReplicaCommunication(own.system, own.tensor_parallel, own.stages, first, moved.network)
    issue = issue_seconds(own.host)
    if issue and host == NO_HOST:
        host = eager_host(own.tensor_parallel * own.stages)
    return ModelTimes(
        kernels, between, own.stages, graphs=issue == 0, host_s=own.host_s, issue_s=issue,
        collective_s=collective_seconds(own.host), engine_host=host,
    )  # fmt: skip


def kernels_of(own: Pool, model: ServedModel, first: int = 0, moved: KernelErrors = NOTHING_MOVED) -> ServingKernels:
    """Kernels of the devices of a replica, at the clock that these are held to.

    Raises:
        InputError: its devices differ, cannot keep their cap or clock, or a name in the pool is not known.
    """
    device = device_of(own, first)
    if device.design is not None:
        raise InputError(
            f"requests on {device.name or 'a design'}, which is a design, are not predicted: kernels of engines are "
            "known for chips that exist; triosim infer without --prompt maps a step on it (--operator-times loop-nest)"
        )
    of_device = (model, device, precision_of(own.weights), kv_type_of(own.kv_cache), own.tensor_parallel)
    apart, kept_in = own.attention_ranks > 1, state_type(own, model) or "bfloat16"
    if device.pim is None or own.pim == OFF:
        kernels = ServingKernels(
            *of_device, moved=moved, experts_apart=apart, expert_ranks=own.experts, state_type=kept_in
        )
    elif apart:
        raise InputError(f"--dp {own.attention_ranks}: memory that computes is not shared by ranks: give --pim off")
    else:
        kernels = PimKernels(*of_device, moved=moved, expert_ranks=own.experts, mode=own.pim)
    if own.power_cap_w is None and own.clock_hz is None:
        return kernels
    from triosim.serving.clocked import under_limits  # nobody else needs to know what devices draw

    return under_limits(kernels, own.power_cap_w, own.clock_hz)


def lock_step(own: Pool, times: ModelTimes, first: int, moved: KernelErrors) -> LockStepTimes:
    """Step times of the ranks of a replica from its first device on."""
    from triosim.serving.communication import ReplicaCommunication
    from triosim.serving.lockstep import LockStepTimes

    between = ReplicaCommunication(own.system, own.size, 1, first, moved.network)
    return LockStepTimes(times, times.kernels, between, own.attention_ranks, own.experts)


def device_of(own: Pool, first: int) -> Accelerator:
    """The one kind of device of a replica.

    Raises:
        InputError: there are several.
    """
    system = own.system
    kinds = {system.model(device).name: system.model(device) for device in range(first, first + own.size)}
    if len(kinds) > 1:
        raise InputError(
            f"a replica would have several kinds of devices ({', '.join(sorted(kinds))}): choose --tp and --pp so that "
            "each has one kind"
        )
    return next(iter(kinds.values()))


def part(registry: Registry[T], name: str, options: Mapping[str, str], what: str) -> T:
    """A registered part, or one of a user's file, with its options.

    Raises:
        InputError: there is none, the file holds something else, or an option is not one of its.
    """
    made = configured(registry.chosen(name), options, f"{what} {name}")
    for key, text in options.items():
        value = getattr(made, key.replace("-", "_"), None)
        if isinstance(value, int | float) and not 0 <= value < 1e15:
            raise InputError(f"{what} {name}: {key} must be a number from 0 up, got {quoted(text)}")
    return made
