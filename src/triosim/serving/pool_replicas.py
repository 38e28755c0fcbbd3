"""The replicas of a pool: each with a policy, a KV cache as large as memory allows, and step times."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.units import format_bytes
from triosim.hardware.accelerator import Accelerator
from triosim.serving.adapters import AdaptedTimes, AdapterPlan, check_adapters, parse_adapters
from triosim.serving.capacity import UTILISATION, ReplicaMemory, memory, static_share
from triosim.serving.denoiser import Denoiser
from triosim.serving.kernel_times import KernelErrors
from triosim.serving.kv_cache import KVCache, LayerGroups, PrefixCache
from triosim.serving.model import ServedModel, kv_type_of, precision_of
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import IMAGE_ENGINES, Policy, engine_on
from triosim.serving.pool import PREEMPTIONS, AnyModel, Pool
from triosim.serving.pool_times import PricedPools, device_of, lock_step, measured_times, priced_step_times
from triosim.serving.replica import Replica
from triosim.serving.state_cache import StateCache, state_cache
from triosim.serving.step_times import StepTimes
from triosim.serving.swap import HostCopies, SwappingCache

if TYPE_CHECKING:
    from triosim.serving.speculation import Drafter, SpeculationPlan


MOST_SAMPLED = 1024
"""Requests for whose logits memory is kept, however many an engine may run (vLLM's ``max_num_seqs`` is at most so)."""
NO_BUDGET = 8192
"""Tokens of a step for which memory is kept where the engine has no budget."""


def replicas_of(
    pool: Pool, model: AnyModel, number: int, moved: KernelErrors, priced: PricedPools | None = None
) -> tuple[list[Replica], ReplicaMemory | None]:
    """Fresh replicas, numbered from ``number`` on, and the memory of the fullest kind of device.

    Args:
        pool, model: of which they are made.
        number: of the first.
        moved: how far off their kernels are.
        priced: step times of earlier runs of the same pools; those found here are added.

    Raises:
        InputError: the devices of one differ, or have too little memory.
    """
    if isinstance(model, Denoiser):
        from triosim.serving.denoising import denoising_replicas

        firsts = range(pool.first, pool.first + pool.devices, pool.size)
        policies = [
            engine_on(device_of(pool, first), pool.engine, pool.engine_options, IMAGE_ENGINES) for first in firsts
        ]
        return denoising_replicas(pool, model, number, moved, policies, priced)
    adapters = _adapters(pool, model)
    shared: dict[str, SharedParts] = {}
    replicas: list[Replica] = []
    for core in range(pool.cores):
        replica_first = pool.first + core // pool.attention_ranks * pool.size
        first = pool.first + pool.first_of(core)
        device = device_of(pool, replica_first)
        policy = engine_on(device, pool.engine, pool.engine_options)
        states = state_cache(pool, model, kv_type_of(pool.kv_cache), policy)
        if device.name not in shared:
            shared[device.name] = _shared_parts(pool, model, device, first, policy, states, moved, priced)
        parts = shared[device.name]
        if states is not None:
            states.settle(policy, parts.memory.slots if parts.memory else 0)
        cache = _cache(pool, model, first, policy, parts.blocks(pool), moved, states)
        longest = pool.longest or model.longest
        if pool.attention_ranks > 1:
            from triosim.serving.lockstep import AttentionRank, LockStep

            if core % pool.attention_ranks == 0:
                together = LockStep(lock_step(pool, parts.times, replica_first, moved))
            replicas.append(AttentionRank(number + core, policy, cache, together, longest))
            continue
        steps = measured_times(pool, model, priced) if pool.step_times else parts.steps()
        replica = Replica(number + core, policy, cache, steps, longest)
        if parts.speculation is not None:
            from triosim.serving.speculation import Speculation

            replica.speculation = Speculation(parts.speculation)
        if adapters is not None:
            replica.times = AdaptedTimes(replica.times, parts.times.kernels, adapters)
        replicas.append(replica)
    memories = [parts.memory for parts in shared.values() if parts.memory is not None]
    return replicas, min(memories, key=lambda memory: memory.blocks, default=None)


@dataclass(frozen=True, kw_only=True)
class SharedParts:
    """What replicas of a pool on one kind of device have in common.

    Attributes:
        times: of the model's steps.
        speculation, drafter: how tokens are drafted, and what drafts them; None where nothing does.
        memory: how that of a device is divided; None where the blocks of the cache are given.
    """

    times: ModelTimes
    speculation: SpeculationPlan | None
    drafter: Drafter | None
    memory: ReplicaMemory | None

    def blocks(self, pool: Pool) -> int:
        """Of a replica's cache."""
        return (pool.blocks if self.memory is None else self.memory.blocks) or 0

    def steps(self) -> StepTimes:
        """Step times, those of what drafts included."""
        if self.drafter is None:
            return self.times
        from triosim.serving.speculation import SpeculativeTimes

        return SpeculativeTimes(self.times, self.drafter)


def _shared_parts(
    pool: Pool, model: ServedModel, device: Accelerator, first: int, policy: Policy, states: StateCache | None,
    moved: KernelErrors, priced: PricedPools | None,
) -> SharedParts:  # fmt: skip
    """Of replicas on a kind of device, the first of which begins at ``first``."""
    times = priced_step_times(pool, model, device, first, moved, policy.host(), priced)
    speculation, drafter = _drafter(pool, model, device, moved, times)
    kept = _memory(pool, model, device, policy, drafter, states)
    return SharedParts(times=times, speculation=speculation, drafter=drafter, memory=kept)


def _adapters(pool: Pool, model: ServedModel) -> AdapterPlan | None:
    """What requests ask for beside the model, if anything.

    Raises:
        InputError: the pool cannot have adapters.
    """
    if pool.adapters is None:
        return None
    check_adapters(pool.stages, pool.role)
    model.alike("--lora")
    if model.experts is not None:
        raise InputError(f"adapters of experts are not priced, and {pool.model} has experts: leave --lora out")
    return parse_adapters(pool.adapters)


def _drafter(
    pool: Pool, model: ServedModel, device: Accelerator, moved: KernelErrors, times: ModelTimes
) -> tuple[SpeculationPlan | None, Drafter | None]:
    """What drafts beside the model, if anything does.

    Raises:
        InputError: it cannot.
    """
    if pool.speculation is None:
        return None, None
    from triosim.serving.speculation import drafter_of, parse_speculation

    plan = parse_speculation(pool.speculation)
    if pool.stages > 1 or pool.role != "both":
        raise InputError(
            "speculation is of replicas on one pipeline stage that both prefill and decode: leave it out, or --pp and "
            "the other roles"
        )
    return plan, drafter_of(
        plan, model, device, precision_of(pool.weights), kv_type_of(pool.kv_cache), pool.tensor_parallel, moved, times
    )


# --- the KV cache -----------------------------------------------------------------------------------------------------


def _cache(
    pool: Pool, model: ServedModel, first: int, policy: Policy, blocks: int, moved: KernelErrors,
    states: StateCache | None,
) -> KVCache:  # fmt: skip
    """Of a replica from a device on.

    Raises:
        InputError: what is asked of it does not go together.
    """
    swaps = _swaps(pool, policy)
    finds_prefixes = not swaps and (policy.finds_prefixes if pool.prefix_caching is None else pool.prefix_caching)
    if pool.tiers:
        from triosim.serving.tiers import TieredCache  # nobody else needs a network

        if not finds_prefixes:
            raise InputError("tiers keep what prefix caching finds, which is off: turn it on, or leave tiers out")
        return TieredCache(blocks, policy.block_tokens, policy.radix, pool.eviction)
    groups = groups_of(pool, model, policy)
    if finds_prefixes and states is None:  # nobody finds prefixes of states
        return PrefixCache(blocks, policy.block_tokens, policy.radix, pool.eviction, groups)
    if pool.eviction != "lru":
        raise InputError(
            f"eviction {quoted(pool.eviction)} is of prefix caching, which is off: turn it on, or leave eviction out"
        )
    if states is not None:
        return KVCache(blocks, policy.block_tokens, states=states.taken)
    if not swaps:
        return KVCache(blocks, policy.block_tokens, groups)
    from triosim.serving.communication import link_factor  # which loads collectives

    block = pool.block_bytes(model, policy.block_tokens)
    copies = HostCopies.of(pool.system, first, link_factor(pool.system, moved.network))
    return SwappingCache(blocks, policy.block_tokens, int(pool.swap_bytes // block), block, copies)


def _swaps(pool: Pool, policy: Policy) -> bool:
    """Whether blocks of requests that give way go to the host.

    Raises:
        InputError: they are to, and cannot.
    """
    if pool.preemption not in PREEMPTIONS:
        raise InputError(f"preemption {quoted(pool.preemption)} is not known: give {' or '.join(PREEMPTIONS)}")
    if pool.preemption != "swap":
        return False
    if not policy.swaps:
        raise InputError(
            f"the engine {pool.engine} swaps nothing: give vllm, vllm-2023 or sarathi, or leave preemption out"
        )
    if pool.prefix_caching:
        raise InputError(
            "preemption swap moves blocks that nobody else reads: give prefix caching off, or preemption recompute"
        )
    return True


def groups_of(pool: Pool, model: ServedModel, policy: Policy) -> LayerGroups | None:
    """How layers share the blocks of a replica's cache: in groups, where nothing else reads or moves them."""
    moved = pool.role != "both" or pool.tiers or pool.preemption == "swap" or pool.speculation is not None
    return model.layer_groups() if policy.hybrid_kv_cache and pool.stages == 1 and not moved else None


def _memory(
    pool: Pool, model: ServedModel, device: Accelerator, policy: Policy, drafter: Drafter | None,
    states: StateCache | None,
) -> ReplicaMemory | None:  # fmt: skip
    """None where the blocks are given.

    Raises:
        InputError: there is no room, or not for the blocks that are given.
    """
    beside = drafter.weights if drafter else 0.0
    if pool.adapters is not None:
        plan = parse_adapters(pool.adapters)
        beside += plan.slots * plan.bytes(model, pool.tensor_parallel)

    def kept(share: float) -> ReplicaMemory:
        return memory(
            model, device, precision_of(pool.weights), kv_type_of(pool.kv_cache), block_tokens=policy.block_tokens,
            tokens=policy.max_tokens or NO_BUDGET, sequences=min(policy.max_running, MOST_SAMPLED),
            tensor_parallel=pool.tensor_parallel, stages=pool.stages, attention_ranks=pool.attention_ranks,
            utilisation=share, static=policy.static, free=policy.free, beside=beside,
            kv_beside=drafter.kv_token if drafter else 0.0, groups=groups_of(pool, model, policy), states=states,
        )  # fmt: skip

    if pool.blocks is None:
        return kept(share_of(pool, device, policy))
    if device.memory_bytes:
        whole = kept(1.0)
        if pool.blocks > whole.blocks + (whole.activations + whole.context) / whole.block:
            needs = format_bytes(pool.blocks * whole.block)
            raise InputError(
                f"--kv-blocks {pool.blocks} take {needs} beside {format_bytes(whole.weights)} of weights, and "
                f"{device.name} has {format_bytes(whole.capacity)}: at most {whole.blocks} fit"
            )
    return None


def share_of(pool: Pool, device: Accelerator, policy: Policy) -> float:
    """Of the memory of a device, that is the engine's."""
    if pool.utilisation is not None:
        return pool.utilisation
    return static_share(device.memory_bytes or inf, pool.size) if policy.static else UTILISATION
