"""A pool as people ask for it: the options of ``triosim serve`` by their names, without dashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast, GreaterThan, configured
from triosim.core.units import parse_bytes, parse_clock, parse_latency, parse_power, parse_time
from triosim.hardware.system import System
from triosim.serving.availability import parse_mtbf
from triosim.serving.model import default_weights
from triosim.serving.pool import Pool, default_engine
from triosim.serving.swap import SWAP_BYTES

Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class PoolOptions:
    """What may be said of a pool, as :class:`~triosim.serving.pool.Pool` has it; sizes, times, powers and clocks are
    texts with their units.
    """

    engine: str | None = None
    engine_option: Mapping[str, str] = field(default_factory=dict)
    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    ep: Count = 1
    expert_skew: Annotated[float, AtLeast(1)] | None = None
    replicas: Count = 1
    weights: str | None = None
    kv_cache: str = "bf16"
    state_cache: str = ""
    prefix_caching: bool | None = None
    eviction: str = "lru"
    preemption: str = "recompute"
    swap_space: str = f"{SWAP_BYTES}"
    speculate: str | None = None
    lora: str | None = None
    kv_tier: Sequence[str] = ()
    image_size: Count | None = None
    cp: Count = 1
    cp_style: str = "ulysses"
    cp_ulysses: int = 0
    cfg_parallel: Count = 1
    step_cache: str | None = None
    stack: str | None = None
    max_length: Count | None = None
    kv_blocks: Count | None = None
    memory_utilisation: Annotated[float, GreaterThan(0)] | None = None
    autoscale: str | None = None
    cold_start: str = "host"
    mtbf: str = "none"
    repair: str = "0"
    host_time: str = "0"
    front_time: str | None = None
    step_times: str = ""
    power_cap: str | None = None
    clock: str | None = None

    @property
    def size(self) -> int:
        """Of all replicas."""
        return self.replicas * self.tp * self.cp * self.cfg_parallel * self.pp * self.dp


def pool_of(
    own: PoolOptions, model: str, system: System, first: int, name: str, role: str, shares: str,
    named: Callable[[str], str],
) -> Pool:  # fmt: skip
    """The pool.

    Args:
        own: what was said of it.
        model: name, or file of a configuration.
        system: on which it is, from device ``first`` on.
        first, name, role, shares: as of :class:`~triosim.serving.pool.Pool`.
        named: what users call an option, for messages.

    Raises:
        InputError: a size, a time, a power or a clock is none.
    """
    return Pool(
        model=model,
        system=system,
        first=first,
        name=name,
        role=role,
        engine=own.engine or default_engine(model),
        engine_options=own.engine_option,
        tensor_parallel=own.tp,
        stages=own.pp,
        attention_ranks=own.dp,
        expert_ranks=own.ep,
        expert_skew=own.expert_skew,
        replicas=own.replicas,
        weights=own.weights or default_weights(system.model(first)),
        kv_cache=own.kv_cache,
        state_cache=own.state_cache,
        prefix_caching=own.prefix_caching,
        eviction=own.eviction,
        preemption=own.preemption,
        swap_bytes=parse_bytes(own.swap_space, named("swap_space")),
        speculation=own.speculate,
        adapters=own.lora,
        tiers=tuple(own.kv_tier),
        image_size=own.image_size,
        context_parallel=own.cp,
        context_style=own.cp_style,
        context_ulysses=own.cp_ulysses,
        guidance_parallel=own.cfg_parallel,
        step_cache=own.step_cache,
        stack=own.stack,
        longest=own.max_length,
        blocks=own.kv_blocks,
        utilisation=own.memory_utilisation,
        autoscaling=own.autoscale,
        cold_start=own.cold_start,
        mtbf_s=parse_mtbf(own.mtbf, named("mtbf")),
        repair_s=parse_time(own.repair, named("repair")),
        host_s=parse_latency(own.host_time, named("host_time")),
        front_s=None if own.front_time is None else parse_latency(own.front_time, named("front_time")),
        step_times=own.step_times,
        power_cap_w=None if own.power_cap is None else parse_power(own.power_cap, named("power_cap")),
        clock_hz=None if own.clock is None else parse_clock(own.clock, named("clock")),
        shares=shares,
    )


def pool(
    model: str, system: System, *, name: str = "", role: str = "both", first: int = 0, shares: str = "", **options: Any
) -> Pool:
    """Equal replicas of one model, to be served from (:func:`triosim.serve`).

    Args:
        model: name (``triosim models``), or file of a configuration.
        system: on which it is.
        name: for people, and for pools that share its devices.
        role: ``"both"``, or ``"prefill"`` and ``"decode"`` of two pools.
        first: device at which its first replica begins.
        shares: name of the pool on whose devices it takes turns.
        options: those of ``triosim serve`` with underlines, as ``tp=2, replicas=4, engine="sglang", weights="fp8",
            kv_tier=["host:200GB"], engine_option={"max-tokens": 2048}``; sizes, times, powers and clocks are texts with
            their units (``power_cap="400 W"``).

    Raises:
        InputError: there is no such option, or it has no such value.
    """
    if not isinstance(system, System):
        raise InputError(f"the system must be a System, not {system!r:.60}: make one with triosim.system(NAME)")
    if isinstance(given := options.get("engine_option"), Mapping):
        options["engine_option"] = {key: str(value) for key, value in given.items()}
    own: PoolOptions = configured(PoolOptions, options, "a pool")
    return pool_of(own, model, system, first, name, role, shares, lambda option: option)
