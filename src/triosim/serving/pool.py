"""A pool: equal replicas of one model, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.hardware.system import System
from triosim.serving.denoiser import Denoiser, is_denoiser
from triosim.serving.expert_ranks import ExpertRanks
from triosim.serving.model import ServedModel, kv_type_of, precision_of
from triosim.serving.pim import ATTENTION
from triosim.serving.swap import SWAP_BYTES

if TYPE_CHECKING:
    from triosim.serving.disaggregation import ReplicaPlacement


ROLES = ("both", "prefill", "decode")
"""What the replicas of a pool do with a request."""
PREEMPTIONS = ("recompute", "swap")
"""What becomes of a request that gives way: it is computed again, or its blocks go to the host."""


@dataclass(frozen=True)
class Pool:
    """Equal replicas.

    Attributes:
        model: by name or by configuration file.
        system: the machine; a replica takes :attr:`size` of its devices.
        first: device at which the first replica begins.
        name: for people.
        role: one of :data:`ROLES`.
        engine: name of a policy, or a Python file that registers one.
        engine_options: of the policy, as typed.
        tensor_parallel, stages: devices that share each layer, and pipeline stages.
        attention_ranks: of data-parallel attention in a replica, each with requests and a KV cache of its pool, whose
            experts are divided among all devices (:mod:`triosim.serving.lockstep`).
        expert_ranks: ranks of the devices of ``tensor_parallel`` that have whole experts of their pool, each divided
            among the devices of a rank; ranks of attention share experts among all devices in any case.
        expert_skew: how many times the mean the experts of the fullest device are chosen then, but for chance; as
            measured if None (:data:`triosim.serving.expert_ranks.UNEVEN`).
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
        tiers: of KV cache behind the device's pool, as typed (:func:`triosim.serving.tiers.parse_tier`).
        utilisation: share of a device's memory that is the engine's; as its own default if None.
        autoscaling: how many of the replicas there are when, as typed
            (:func:`triosim.serving.autoscaling.parse_autoscaling`); all of them all the time if None.
        cold_start: how a replica starts, as typed (:func:`triosim.serving.cold_start.parse_cold_start`).
        mtbf_s: mean seconds between failures of one device; infinite: none.
        repair_s: seconds from a failure until another replica begins to start.
        host_s: seconds that the host needs for a step, while the device runs one.
        front_s: seconds from when a client asks until the engine knows of it, and back; as the engine's server if None.
        power_cap_w, clock_hz: that each device is held to (:mod:`triosim.serving.clocked`); None where nothing does.
        step_times: folder of measured layers that price its steps instead of the models
            (:mod:`triosim.serving.recorded_times`); ``""``: none.
        pim: what goes to memory that computes, where devices have it: one of :data:`triosim.serving.pim.MODES`.
        image_size: pixels along each side of what a diffusion model makes; what it was made for if None.
        context_parallel: devices that share the tokens of its images and their texts.
        context_style: how they exchange what attention needs, a ``cp_style`` of :mod:`triosim.partition.rules.context`.
        context_ulysses: of these, under the style ``usp``, those that exchange heads, next to each other.
        guidance_parallel: groups of such devices that share the samples of a guided step.
        step_cache: which of its steps run only a part, as typed (:func:`triosim.serving.denoising.parse_step_cache`).
        stack: what runs it, by name (:mod:`triosim.stacks`); plain PyTorch if None.
        shares: name of the pool on whose devices this one takes turns; ``""``: it has its pool.
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
    expert_skew: float | None = None
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
    front_s: float | None = None
    power_cap_w: float | None = None
    clock_hz: float | None = None
    host: str = "graph"
    step_times: str = ""
    pim: str = ATTENTION
    image_size: int | None = None
    context_parallel: int = 1
    context_style: str = "ulysses"
    context_ulysses: int = 0
    guidance_parallel: int = 1
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
        return self.core_size * self.attention_ranks

    @property
    def core_size(self) -> int:
        """Devices of a scheduler's part of a replica."""
        return self.tensor_parallel * self.context_parallel * self.guidance_parallel * self.stages

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
        return core * self.core_size

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


def weight_bytes(pool: Pool, model: AnyModel) -> float:
    """Of what a device of a replica holds."""
    if isinstance(model, Denoiser):
        return model.weight_bytes(pool.weights, pool.tensor_parallel)
    return model.weight_bytes(precision_of(pool.weights), pool.tensor_parallel, pool.stages)


def default_engine(model: str) -> str:
    """The engine that serves a model where nobody says."""
    return "diffusers" if is_denoiser(model) else "vllm"
