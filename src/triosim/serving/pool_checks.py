"""Which pools can be formed: what is refused before anything runs, and how it would do."""

from __future__ import annotations

from math import inf

from triosim.core.errors import InputError, quoted
from triosim.plan import divisors
from triosim.serving.model import ServedModel, served_model
from triosim.serving.policy import ENGINES
from triosim.serving.pool import ROLES, AnyModel, Pool
from triosim.serving.state_cache import check_states


def checked_any(pool: Pool) -> AnyModel:
    """As :func:`checked`, of a model that writes tokens or makes images.

    Raises:
        InputError: the pool cannot be formed.
    """
    if not pool.denoises:
        return checked(pool)
    from triosim.serving.denoising import checked_denoiser  # nobody else needs predictions

    _check_sizes(pool)
    model = checked_denoiser(pool)
    _check_room(pool)
    return model


def checked(pool: Pool) -> ServedModel:
    """The model, if the pool can be formed.

    Raises:
        InputError: it cannot.
    """
    _check_sizes(pool)
    of_images = (
        ("--image-size", pool.image_size is not None), ("--step-cache", pool.step_cache is not None),
        ("--stack", pool.stack is not None), ("--cp", pool.context_parallel > 1),
        ("--cfg-parallel", pool.guidance_parallel > 1),
    )  # fmt: skip
    for option, given in of_images:
        if given:
            raise InputError(f"{option} is of models that make images, and {pool.model} writes tokens: leave it out")
    model = served_model(pool.model)
    if model.heads % pool.tensor_parallel:
        raise InputError(
            f"--tp {pool.tensor_parallel} does not divide the {model.heads} heads of {pool.model}: choose another"
        )
    _check_vendor(pool)
    _check_drafts(pool)
    check_states(pool, model)
    _check_ranks(pool, model)
    _check_room(pool)
    _check_measured(pool)
    return model


def _check_vendor(pool: Pool) -> None:
    """Refuse engines and types of weights on devices of makers that have none; a device that names no maker may be
    anything.

    Raises:
        InputError: the engine or the type is one.
    """
    device, known = pool.system.model(pool.first), ENGINES.chosen(pool.engine).vendors
    if pool.weights == "nvfp4" and device.vendor not in ("NVIDIA", ""):
        raise InputError(
            f"nvfp4 is a type of weights of NVIDIA's, and {device.name} is of {device.vendor}: give another one of "
            "--weights, as fp8"
        )
    if known and device.vendor and device.vendor not in known:
        raise InputError(
            f"the engine {pool.engine} runs on devices of {' and '.join(known)}, and {device.name} is of "
            f"{device.vendor}: use vllm or sglang"
        )


def _check_drafts(pool: Pool) -> None:
    """Refuse drafts under engines that verify none.

    Raises:
        InputError: the engine is one.
    """
    if pool.speculation is not None and not ENGINES.chosen(pool.engine).speculates:
        raise InputError(
            f"the engine {pool.engine} is of before speculative decoding and verifies no drafts: leave --speculate "
            "out, or use vllm, sglang or trtllm"
        )


def _check_measured(pool: Pool) -> None:
    """Refuse what measured layers say nothing of.

    Raises:
        InputError: something is asked that they do not price.
    """
    beside = (
        ("--speculate", pool.speculation is not None), ("--lora", pool.adapters is not None),
        ("--dp", pool.attention_ranks > 1), ("--ep", pool.expert_ranks > 1),
        ("--power-cap", pool.power_cap_w is not None), ("--clock", pool.clock_hz is not None),
        ("--weights " + pool.weights, pool.weights not in ("bf16", "fp16")),
        ("--kv-cache " + pool.kv_cache, pool.kv_cache not in ("bf16", "fp16")),
    )  # fmt: skip
    for option, given in beside:
        if pool.step_times and given:
            raise InputError(f"--step-times has layers as they were measured, and {option} changes them: leave one out")


def _check_sizes(pool: Pool) -> None:
    """Role and numbers.

    Raises:
        InputError: one makes no sense.
    """
    if pool.role not in ROLES:
        raise InputError(f"role {quoted(pool.role)} is not known: give {', '.join(ROLES)}")
    sizes = (
        ("--tp", pool.tensor_parallel), ("--pp", pool.stages), ("--dp", pool.attention_ranks),
        ("--cp", pool.context_parallel), ("--cfg-parallel", pool.guidance_parallel), ("--ep", pool.expert_ranks),
        ("--replicas", pool.replicas),
    )  # fmt: skip
    for option, value in sizes:
        if value < 1:
            what = "the fleet holds no replica of the model" if option == "--replicas" else f"{option} {value}"
            raise InputError(f"{what}: give {option} of at least 1")


def _check_room(pool: Pool) -> None:
    """Whether the machine has the devices.

    Raises:
        InputError: it has too few.
    """
    if pool.first + pool.devices > pool.system.devices:
        beside = f" beside the {pool.first} of other pools" if pool.first else ""
        raise InputError(
            f"{pool.replicas} replicas of {pool.size} devices need {pool.devices}{beside}, but "
            f"{pool.system.name or 'the system'} has {pool.system.devices}: use fewer, or a larger system"
        )


def _check_experts(pool: Pool, model: ServedModel) -> None:
    """Refuse experts that cannot be shared as asked.

    Raises:
        InputError: how they could be.
    """
    ranks, tensor_parallel = pool.expert_ranks, pool.tensor_parallel
    if ranks > 1 and model.experts is None:
        raise InputError(f"--ep {ranks} divides experts among devices, and {pool.model} has none: leave it out")
    if pool.attention_ranks > 1:
        if ranks not in (1, pool.attention_ranks * tensor_parallel):
            raise InputError(
                f"--ep {ranks}: with --dp {pool.attention_ranks} all {pool.attention_ranks * tensor_parallel} devices "
                "of a replica share the experts: leave --ep out"
            )
    elif tensor_parallel % ranks:
        raise InputError(
            f"--ep {ranks} must divide the devices that share each layer (--tp {tensor_parallel}): use one of "
            f"{', '.join(map(str, divisors(tensor_parallel)))}"
        )
    elif uneven := next((k.experts.count for k in model.kinds if k.experts and k.experts.count % ranks), 0):
        raise InputError(f"--ep {ranks} does not divide the {uneven} experts of {pool.model}: use one that does")
    shared = pool.experts.ranks
    if pool.expert_skew is None:
        return
    if shared == 1:
        raise InputError(
            "--expert-skew is of experts that ranks share: give --ep or --dp of at least 2, or leave it out"
        )
    if not 1 <= pool.expert_skew <= shared:
        raise InputError(
            f"--expert-skew {pool.expert_skew:g} must be from 1 (even) to the {shared} ranks that share the experts"
        )


def _check_ranks(pool: Pool, model: ServedModel) -> None:
    """Refuse what data-parallel attention does not go with.

    Raises:
        InputError: something is asked that it does not.
    """
    _check_experts(pool, model)
    if pool.attention_ranks == 1 and "expert-exchange" in pool.engine_options:
        raise InputError(
            "--engine-option expert-exchange is of ranks of attention that share experts: give --dp, or leave it out"
        )
    if pool.attention_ranks == 1:
        return
    if model.experts is None:
        raise InputError(
            f"--dp {pool.attention_ranks} divides experts among ranks, and {pool.model} has none: use --replicas "
            f"{pool.attention_ranks}"
        )
    apart = (
        ("--pp", pool.stages > 1), ("--speculate", pool.speculation is not None), ("--lora", pool.adapters is not None),
        ("--kv-tier", bool(pool.tiers)), ("--preemption swap", pool.preemption == "swap"),
        ("--autoscale", pool.autoscaling is not None), ("--mtbf", pool.mtbf_s < inf), ("shares", bool(pool.shares)),
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
