"""How many blocks the KV cache of a replica has: what memory is left beside everything else.

As vLLM does it: a share of the memory is the engine's; from it go the weights, what a step at the full budget needs
beside them (a profiling run measures it), and what the context, the libraries and captured graphs take.  As SGLang does
it: a share of what the context leaves is of weights and cache alone, and steps make do with the rest.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import format_bytes
from triosim.hardware.accelerator import Accelerator
from triosim.serving.kv_cache import LayerGroups
from triosim.serving.model import Precision, ServedModel
from triosim.serving.state_cache import StateCache

UTILISATION = 0.9
"""Share of the memory that is the engine's (``gpu_memory_utilization``)."""

STATIC_RESERVED = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))
"""Memory below so many GiB, GiB of it that SGLang 0.5.1 leaves to activations and captured graphs, and GiB more for
each device of the replica."""
STATIC_RESERVED_BEYOND = 32.0
"""GiB that it leaves on larger devices."""

CONTEXT_BYTES = 500e6
"""Taken by the CUDA context and libraries, which is not the engine's tensors: 400 to 600 MB on current drivers."""

EXPERTS_TOKENS = 32768
"""Tokens that go through a layer's experts at once in vLLM (``VLLM_FUSED_MOE_CHUNK_SIZE``; later half as many);
TensorRT-LLM takes all of a step, of all ranks of attention (``moe_max_num_tokens``)."""

SAMPLER_FLOATS = 3
"""Copies of the logits in 32 bits while tokens are drawn: logits, sorted logits, probabilities."""


@dataclass(frozen=True)
class ReplicaMemory:
    """Bytes of the fullest device of a replica.

    Attributes:
        capacity: of the device.
        weights, activations, context: beside the cache.
        cache: what is left.
        block: of one block of the cache.
        blocks: that fit.
        slots: states of fixed size that have memory of their own.
        slot: bytes of one.
    """

    capacity: float
    weights: float
    activations: float
    context: float
    cache: float
    block: float
    blocks: int
    slots: int = 0
    slot: float = 0.0

    def table(self) -> dict[str, float]:
        """For JSON."""
        own = ("capacity", "weights", "activations", "context", "cache", "block")
        found = {f"{name}_bytes": getattr(self, name) for name in own}
        return found | ({"state_slots": self.slots, "state_bytes": self.slot} if self.slots else {})


def static_share(memory_bytes: float, devices: int) -> float:
    """The share that SGLang takes for weights and cache on a device, of which a replica has so many."""
    mib = memory_bytes / 2**20
    fitting = (gib + devices * each for most, gib, each in STATIC_RESERVED if mib < most * 1024)
    return round(1 - next(fitting, STATIC_RESERVED_BEYOND) * 1024 / mib, 3)


def _of_experts(model: ServedModel, divided: int, free: bool) -> float:
    """Bytes that routed experts need for a token, whose rows lie beside each other, and 0 where there are none: what
    the first product makes or what goes back, whichever is wider, and a second buffer.

    That is what comes between in vLLM (``workspace13`` and ``workspace2`` of its ``fused_moe``) and what goes in or
    back in TensorRT-LLM (``getWorkspaceDeviceBufferSizes`` of its ``moe_kernels.cu``).  Ranks of attention gather the
    tokens of all and have whole experts, and room for all that these may choose.

    Args:
        model: what is served.
        divided: devices that share each expert.
        free: whether as TensorRT-LLM.
    """
    most = 0.0
    for kind in model.kinds:
        if kind.experts is not None:
            inner = kind.experts.inner / divided
            between = max((2 if model.gated else 1) * inner, model.width) + (model.width if free else inner)
            most = max(most, 2.0 * (kind.experts.chosen * between + 2 * model.width))
    return most


def memory(
    model: ServedModel, device: Accelerator, precision: Precision, kv_type: str, *, block_tokens: int, tokens: int,
    sequences: int, tensor_parallel: int = 1, stages: int = 1, attention_ranks: int = 1,
    utilisation: float = UTILISATION, static: bool = False, free: bool = False, beside: float = 0.0,
    kv_beside: float = 0.0, groups: LayerGroups | None = None, states: StateCache | None = None,
) -> ReplicaMemory:  # fmt: skip
    """How the memory of a replica's devices is divided.

    Args:
        model, device, precision, kv_type: what is served, and on what.
        block_tokens: tokens of a block.
        tokens: of a step at most.
        sequences: sampled in a step at most.
        tensor_parallel, stages: devices that share layers, and stages of the pipeline.
        attention_ranks: of data-parallel attention, which share the experts.
        utilisation: share of the memory that is the engine's.
        static: whether that is of weights and cache alone.
        free: whether it is of what weights and a full step leave, and of the cache alone.
        beside: bytes of other weights on each device.
        kv_beside: bytes of other caches for each token on each device.
        groups: of layers, of one of which a block is; None where it is of all.
        states: how those of fixed size are kept; None where there are none, or they are not looked at.

    Raises:
        InputError: the device's memory is not known, or not even a block is left, or room for states.
    """
    if device.memory_bytes is None:
        raise InputError(f"device {device.name or '(unnamed)'!r} has no memory size: name a device of the catalog")
    if not 0 < utilisation <= 1:
        raise InputError(f"--memory-utilisation {utilisation:g} must be above 0 and at most 1")
    weights = model.weight_bytes(precision, tensor_parallel, stages, attention_ranks) + beside
    inner = (3 if model.gated else 2) * (model.inner_of_token / tensor_parallel)
    if model.state is not None:
        inner = max(inner, model.state.between / tensor_parallel)
    hidden = tokens * 2.0 * (2 * model.width + inner)
    logits = sequences * model.vocabulary * (2.0 + 4.0 * SAMPLER_FLOATS)
    together = tokens * attention_ranks if free else min(tokens * attention_ranks, EXPERTS_TOKENS)
    experts = together * _of_experts(model, tensor_parallel if attention_ranks == 1 else 1, free)
    activations = max(hidden, experts) + logits
    left = utilisation * device.memory_bytes - weights - activations - CONTEXT_BYTES
    if free:
        left = utilisation * (device.memory_bytes - weights - activations - CONTEXT_BYTES)
    if static:
        whole = device.memory_bytes - CONTEXT_BYTES
        left, activations = utilisation * whole - weights, (1 - utilisation) * whole
    slots = 0
    if states is not None:
        slots = states.slots(left, f"{model.name} on {device.name}") if left > 0 else 0
        left -= slots * states.sequence
        block = states.block
    elif groups is None:
        block = block_tokens * (model.kv_bytes(kv_type, tensor_parallel, stages) + kv_beside)
    else:
        block = block_tokens * model.kv_block_bytes(kv_type, groups, tensor_parallel)
    if left < block * (1 + (states.taken if states else 0)):
        others = f" ({format_bytes(beside)} of them of drafts and adapters)" if beside else ""
        fewer = ", a smaller draft or fewer slots of adapters" if beside else ""
        raise InputError(
            f"{model.name} leaves no memory for a KV cache on {device.name}: {format_bytes(weights)} of weights"
            f"{others}, {format_bytes(activations + CONTEXT_BYTES)} beside them and {utilisation:.0%} of "
            f"{format_bytes(device.memory_bytes)}: use more devices (--tp, --pp) or smaller weights (--weights fp8)"
            f"{fewer}"
        )
    return ReplicaMemory(
        device.memory_bytes, weights, activations, CONTEXT_BYTES, left, block, int(left // block) if block else 0,
        slots, states.sequence if states and slots else 0.0,
    )  # fmt: skip
