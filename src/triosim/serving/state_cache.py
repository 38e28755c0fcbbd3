"""How the memory of a replica is divided between states of fixed size and the keys and values of tokens.

Engines do it in one of three ways, by :attr:`triosim.serving.policy.Policy.keeps_states`:

* ``blocks``: vLLM 0.12 to 0.14.  One memory of equal pages holds both.  A page holds a layer's state of one sequence,
  and the tokens of a block in a layer with attention become so many that they fill one: multiples of 16, of Nemotron
  Nano 9B v2 672 (vLLM issue 24280) instead of 16.  Layers form groups as those with a window do
  (:class:`triosim.serving.kv_cache.LayerGroups`), and a request holds one block of each group of states for as long as
  it runs (``vllm/model_executor/models/config.py``, ``HybridAttentionMambaModelConfig``;
  ``vllm/v1/core/single_type_kv_cache_manager.py``, ``MambaManager``).  Where no layer has attention, a block is all
  that a request needs.  Prefixes are not looked for unless it is asked to.
* ``share``: SGLang 0.5 without its radix cache.  States have a pool of their own, 0.9 / 1.9 of what weights leave
  (``mamba_full_memory_ratio``), with as many slots as fit, and no more requests run; the KV cache has the rest
  (``handle_max_mamba_cache`` and ``_resolve_max_num_reqs`` of its model runner).
* ``slots``: TensorRT-LLM 1.2.  There is a slot for each request that may run (``max_batch_size``) and one more for
  those that fill captured graphs; the KV cache has the rest, and reuse of its blocks is off
  (``tensorrt_llm/_torch/pyexecutor/mamba_cache_manager.py``).

States are kept in the type that the configuration names, else in that of the engine (SGLang: float32), else in 16
bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import format_bytes
from triosim.serving.model import ServedModel, layers_of_group
from triosim.serving.policy import ENGINES, Policy
from triosim.serving.states import state_type_of

if TYPE_CHECKING:
    from triosim.serving.pool import Pool

BLOCKS, SHARE, SLOTS = "blocks", "share", "slots"
"""Ways in which engines keep states."""
KEPT_IN = {SHARE: "float32"}
"""Element types of states where no configuration says, by the way; those of others have 16 bits."""
ALIGNED = 16
"""Tokens of which a block has a multiple (attention kernels of vLLM)."""
STATES_TO_CACHE = 0.9
"""Memory of states over that of keys and values (SGLang's ``mamba_full_memory_ratio``)."""
FILLING = 1
"""Slots beside those of requests, for sequences that fill captured graphs (TensorRT-LLM)."""


@dataclass(frozen=True)
class StateCache:
    """States of a replica, as its engine keeps them.

    Attributes:
        way: :data:`BLOCKS`, :data:`SHARE` or :data:`SLOTS`.
        sequence: bytes of a sequence in all layers on one device.
        block_tokens: of a block of the cache.
        block: bytes of it.
        taken: blocks that a request holds for its states while it runs.
        running: requests that may run, as the engine is set.
    """

    way: str
    sequence: float
    block_tokens: int
    block: float
    taken: int
    running: int

    def settle(self, policy: Policy, slots: int) -> None:
        """Set blocks and running requests of a policy as its engine does, given so many slots."""
        policy.block_tokens = self.block_tokens
        if slots:
            policy.max_running = min(policy.max_running, slots - (FILLING if self.way == SLOTS else 0))

    def slots(self, left: float, what: str) -> int:
        """States that have memory of their own; 0 where they are in blocks.

        Args:
            left: bytes for states and cache on a device.
            what: model and device, for messages.

        Raises:
            InputError: those that the engine wants do not fit.
        """
        if self.way == BLOCKS:
            return 0
        if self.way == SHARE:
            found = int(left * STATES_TO_CACHE / (1 + STATES_TO_CACHE) // self.sequence)
            if found < 1:
                raise InputError(
                    f"{what}: a state of {format_bytes(self.sequence)} does not fit into {format_bytes(max(left, 0))}: "
                    "use more devices (--tp) or smaller weights (--weights fp8)"
                )
            return found
        found = self.running + FILLING
        if found * self.sequence + self.block > left:
            most = int((left - self.block) // self.sequence) - FILLING
            raise InputError(
                f"{what}: states of {self.running} requests (max-running) take "
                f"{format_bytes(found * self.sequence)} of the {format_bytes(max(left, 0))} for states and KV cache: "
                + (f"give --engine-option max-running={most} or fewer" if most > 0 else "use more devices (--tp)")
            )
        return found


def state_type(own: Pool, model: ServedModel) -> str:
    """Element type of the states of a pool's model; ``""`` where it has none.

    Raises:
        InputError: there is no such type.
    """
    if model.state is None:
        return ""
    if own.state_cache:
        return state_type_of(own.state_cache)
    return model.state_type or KEPT_IN.get(ENGINES.chosen(own.engine).keeps_states, "bfloat16")


def state_cache(own: Pool, model: ServedModel, kv_type: str, policy: Policy) -> StateCache | None:
    """How a replica keeps the states of its model; None where that has none.

    Args:
        own: the pool.
        model: of it.
        kv_type: element type of keys and values.
        policy: of the replica.

    Raises:
        InputError: the engine keeps no such states, or its layers make no groups.
    """
    if model.state is None:
        return None
    _check_keeping(own, model, policy)
    parts = own.tensor_parallel
    kept_in = state_type(own, model)
    sequence = model.state_bytes(kept_in, parts)
    if policy.keeps_states != BLOCKS:
        tokens = policy.block_tokens
        return StateCache(
            policy.keeps_states, sequence, tokens, tokens * model.kv_bytes(kv_type, parts), 0, policy.max_running
        )
    page = model.state.bytes(kept_in, parts)
    near, far = model.state_layers, model.attention_layers
    if not far:
        return StateCache(BLOCKS, sequence, own.longest or model.longest, near * page, 0, policy.max_running)
    size = layers_of_group(near, far)
    if far > size:
        raise InputError(
            f"{own.model} has {far} layers with attention to {near} with states, whose groups in the cache of vllm are "
            "not predicted: use sglang or trtllm"
        )
    token = model.kv_layer_bytes(kv_type, parts)
    tokens = max(policy.block_tokens, ALIGNED * -int(-page // (ALIGNED * token)))
    return StateCache(BLOCKS, sequence, tokens, size * tokens * token, -(-near // size), policy.max_running)


def check_states(own: Pool, model: ServedModel) -> None:
    """Refuse what states of fixed size do not go with.

    Raises:
        InputError: something is asked that they do not.
    """
    if model.state is None:
        if own.state_cache:
            raise InputError(
                f"--state-cache is of states of fixed size, and {own.model} keeps keys and values alone: leave it out"
            )
        return
    if own.state_cache:
        state_type_of(own.state_cache)
    if own.kv_cache != "bf16" and not model.attention_layers:
        raise InputError(
            f"--kv-cache {own.kv_cache} is of keys and values, and {own.model} keeps states of fixed size alone: leave "
            "it out, or give --state-cache"
        )
    if model.state.heads % own.tensor_parallel:
        raise InputError(
            f"--tp {own.tensor_parallel} does not divide the {model.state.heads} heads of the states of {own.model}: "
            "choose another"
        )
    keeps = f"{own.model} keeps states of fixed size"
    beside = (
        ("--prefix-caching on", bool(own.prefix_caching), "prefixes are found in KV caches alone"),
        ("--speculate", own.speculation is not None, "drafts that are rejected would have to be taken out of them"),
        ("--kv-tier", bool(own.tiers), "tiers keep blocks of keys and values"),
        ("--preemption swap", own.preemption == "swap", "blocks of keys and values are swapped"),
        ("--pp", own.stages > 1, "their stages are not predicted"),
        (f"the role {own.role}", own.role != "both", "keys and values are sent"),
        ("--step-times", bool(own.step_times), "nobody measured their layers"),
        (f"--host {own.host}", own.host != "graph", "engines that launch kernel by kernel did not know them"),
    )
    for option, given, why in beside:
        if given:
            raise InputError(
                f"{option} does not go with {own.model}, which keeps states of fixed size ({why}): leave it out"
            )
    if model.windows:
        raise InputError(f"{keeps}, and has layers with a window, which no engine here keeps together")


def _check_keeping(own: Pool, model: ServedModel, policy: Policy) -> None:
    """Refuse engines that do not keep states, or not as they are set.

    Raises:
        InputError: the engine is one.
    """
    if not policy.keeps_states:
        raise InputError(
            f"{own.model} keeps states of fixed size, which the engine {own.engine} does not know: use vllm, sglang or "
            "trtllm"
        )
    if not model.attention_layers and policy.keeps_states != BLOCKS:
        raise InputError(
            f"{own.model} has no layer with attention, which the engine {own.engine} does not serve: use vllm"
        )
    if policy.keeps_states == BLOCKS and not policy.hybrid_kv_cache:
        raise InputError(
            f"{own.model} keeps states of fixed size in groups of layers, which hybrid-kv-cache=off does without: "
            "leave it out"
        )
    if policy.keeps_states != BLOCKS and own.blocks is not None:
        raise InputError(
            f"--kv-blocks says nothing of the memory of states, which {own.engine} keeps apart from blocks: leave it "
            "out, or use vllm"
        )
