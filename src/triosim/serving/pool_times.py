"""What the steps of a pool take: kernels of its devices, what they send each other, and the host of its engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from triosim.composition.host import collective_seconds, issue_seconds
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Z90
from triosim.serving.kernel_times import NOTHING_MOVED, KernelErrors, ServingKernels
from triosim.serving.model import ServedModel, kv_type_of, precision_of
from triosim.serving.model_times import ModelTimes
from triosim.serving.pim import OFF, PimKernels
from triosim.serving.policy import ENGINES, engine_on, fused_casts
from triosim.serving.pool import Pool
from triosim.serving.software import between_sources
from triosim.serving.state_cache import state_type
from triosim.serving.step_times import (
    EAGER_FRONT_S,
    EAGER_ISSUE_S,
    NO_HOST,
    StepHost,
    StepTimes,
    eager_host,
    host_factor,
)

if TYPE_CHECKING:
    from triosim.serving.lockstep import LockStepTimes


PricedPools = dict[tuple[object, ...], StepTimes]
"""Step times by what they depend on (:func:`_priced_by`); the systems of the pools must live as long."""


def priced_step_times(
    pool: Pool, model: ServedModel, device: Accelerator, first: int, moved: KernelErrors, host: StepHost,
    priced: PricedPools | None,
) -> ModelTimes:  # fmt: skip
    """As :func:`step_times`, those found before taken from ``priced``, and others added to it."""
    key = _priced_by(pool, model, device, moved, host)
    known = priced.get(key) if priced is not None else None
    times = known if isinstance(known, ModelTimes) else step_times(pool, model, first, moved, host)
    if priced is not None:
        priced[key] = times
    return times


def _priced_by(
    pool: Pool, model: ServedModel, device: Accelerator, moved: KernelErrors, host: StepHost
) -> tuple[object, ...]:
    """What step times of a pool depend on: fleets that differ in other things share them."""
    apart, engine = pool.attention_ranks > 1, ENGINES.chosen(pool.engine)
    replica = (
        pool.model, pool.weights, pool.kv_cache, pool.tensor_parallel, pool.stages, pool.host, pool.host_s, pool.pim,
        apart, pool.experts, pool.power_cap_w, pool.clock_hz, state_type(pool, model),
        pool.engine_options.get("graph-sizes"), pool.engine_options.get("expert-exchange"),
        fused_casts(pool.engine), own_all_reduce(pool), engine.joins_shared, engine.library_products,
        engine.tuned_tiles, engine.sinks_by_triton, engine.two_attentions, engine.casts_experts,
    )  # fmt: skip
    return (id(pool.system), pool.first, device.name, moved, host, *replica)


def measured_times(pool: Pool, model: ServedModel, priced: PricedPools | None) -> StepTimes:
    """Step times of the layers in a folder, read once."""
    key = ("measured", pool.step_times, pool.model, pool.tensor_parallel, pool.stages, pool.host_s)
    times = priced.get(key) if priced is not None else None
    if times is None:
        from triosim.serving.recorded_times import recorded_times

        times = recorded_times(Path(pool.step_times), model, pool.tensor_parallel, pool.stages, pool.host_s)
        if priced is not None:
            priced[key] = times
    return times


def step_times(
    pool: Pool, model: ServedModel, first: int = 0, moved: KernelErrors = NOTHING_MOVED, host: StepHost = NO_HOST
) -> ModelTimes:
    """Step times of a replica from its first device on, whose kernels are off by so much, under an engine's host.

    Raises:
        InputError: its devices differ, or a name in the pool is not known.
    """
    kernels = kernels_of(pool, model, first, moved)
    between, issue = None, EAGER_ISSUE_S if pool.host == "large-model" else issue_seconds(pool.host)
    if pool.tensor_parallel * pool.stages > 1:
        from triosim.serving.communication import ReplicaCommunication  # nobody else needs collectives

        between = ReplicaCommunication(
            pool.system, pool.tensor_parallel, pool.stages, first, moved.network, own_all_reduce(pool)
        )
    if issue:  # an engine of 2023
        host = eager_host(pool.tensor_parallel * pool.stages)
    off = host_factor(moved.host)
    return ModelTimes(
        kernels, between, pool.stages, graphs=issue == 0, host_s=pool.host_s, issue_s=issue * off,
        collective_s=collective_seconds(pool.host) * off, engine_host=host.off(moved.host),
        slower=math.exp(moved.software * between_sources(pool.engine).steps / Z90),
        graph_sizes=engine_on(device_of(pool, first), pool.engine, pool.engine_options).graphs(),
    )  # fmt: skip


def front_seconds(pool: Pool) -> float:
    """Seconds that pass between a client and the engine of a pool, there and back; none before those of images."""
    if pool.front_s is not None:
        return pool.front_s
    if pool.denoises:
        return 0.0
    return EAGER_FRONT_S if issue_seconds(pool.host) else ENGINES.chosen(pool.engine).front_s


def front_spread(pool: Pool) -> float:
    """Seconds that these may be more; none where somebody says them."""
    return 0.0 if pool.front_s is not None or pool.denoises else between_sources(pool.engine).front


def own_all_reduce(pool: Pool) -> str:
    """Name of all-reduces of the engine's own, which captured graphs launch; ``""`` where it takes a library's."""
    return "" if issue_seconds(pool.host) else ENGINES.chosen(pool.engine).all_reduce


def kernels_of(pool: Pool, model: ServedModel, first: int = 0, moved: KernelErrors = NOTHING_MOVED) -> ServingKernels:
    """Kernels of the devices of a replica, at the clock that these are held to.

    Raises:
        InputError: its devices differ, cannot keep their cap or clock, or a name in the pool is not known.
    """
    device = device_of(pool, first)
    if device.design is not None:
        raise InputError(
            f"requests on {device.name or 'a design'}, which is a design, are not predicted: kernels of engines are "
            "known for chips that exist; triosim infer without --prompt maps a step on it (--operator-times loop-nest)"
        )
    of_device = (model, device, precision_of(pool.weights), kv_type_of(pool.kv_cache), pool.tensor_parallel)
    apart, kept_in = pool.attention_ranks > 1, state_type(pool, model) or "bfloat16"
    fused, engine = fused_casts(pool.engine), ENGINES.chosen(pool.engine)
    if device.pim is None or pool.pim == OFF:
        kernels = ServingKernels(
            *of_device, moved=moved, experts_apart=apart, expert_ranks=pool.experts, state_type=kept_in,
            fused_casts=fused, joins_shared=engine.joins_shared, library_products=engine.library_products,
            tuned_tiles=engine.tuned_tiles, sinks_by_triton=engine.sinks_by_triton,
            two_attentions=engine.two_attentions, casts_experts=engine.casts_experts,
        )  # fmt: skip
    elif apart:
        raise InputError(f"--dp {pool.attention_ranks}: memory that computes is not shared by ranks: give --pim off")
    else:
        kernels = PimKernels(*of_device, moved=moved, expert_ranks=pool.experts, mode=pool.pim, fused_casts=fused)
    if pool.power_cap_w is None and pool.clock_hz is None:
        return kernels
    from triosim.serving.clocked import under_limits  # nobody else needs to know what devices draw

    return under_limits(kernels, pool.power_cap_w, pool.clock_hz)


def lock_step(pool: Pool, times: ModelTimes, first: int, moved: KernelErrors) -> LockStepTimes:
    """Step times of the ranks of a replica from its first device on."""
    from triosim.serving.communication import ReplicaCommunication
    from triosim.serving.lockstep import LockStepTimes

    between = ReplicaCommunication(pool.system, pool.size, 1, first, moved.network)
    engine = engine_on(device_of(pool, first), pool.engine, pool.engine_options)
    exchange, cast = engine.expert_exchange, engine.casts_gathered
    return LockStepTimes(times, times.kernels, between, pool.attention_ranks, pool.experts, exchange, cast)


def device_of(pool: Pool, first: int) -> Accelerator:
    """The one kind of device of a replica.

    Raises:
        InputError: there are several.
    """
    system = pool.system
    kinds = {system.model(device).name: system.model(device) for device in range(first, first + pool.size)}
    if len(kinds) > 1:
        raise InputError(
            f"a replica would have several kinds of devices ({', '.join(sorted(kinds))}): choose --tp and --pp so that "
            "each has one kind"
        )
    return next(iter(kinds.values()))
