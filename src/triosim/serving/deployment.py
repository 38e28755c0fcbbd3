"""A model deployed on a system under an engine, and what requests find there: the whole of serving in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from triosim.composition.host import issue_seconds
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.registry import Registry
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System
from triosim.kernels.estimate import Z90
from triosim.serving.capacity import UTILISATION, Memory, memory
from triosim.serving.communication import Communication
from triosim.serving.fleet import Progress, Served, play
from triosim.serving.kernel_times import NOTHING_MOVED, Moved, ServingKernels
from triosim.serving.kv_cache import KVCache, PrefixCache
from triosim.serving.metrics import ServingMetrics, Slo, measure
from triosim.serving.model import ServedModel, kv_type_of, precision_of, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import ENGINES, Policy
from triosim.serving.replica import Replica
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS

T = TypeVar("T")

SCHEMA = "triosim/serving/1"
MOST_SAMPLED = 1024
"""Requests for whose logits memory is kept, however many an engine may run (vLLM's ``max_num_seqs`` is at most so)."""
FEW = 2000
"""Requests up to which the interval is found unless somebody says: it takes four more runs."""
NO_BUDGET = 8192
"""Tokens of a step for which memory is kept where the engine has no budget."""


@dataclass(frozen=True)
class Deployment:
    """What serves.

    Attributes:
        model: by name or by configuration file.
        system: the machine; a replica takes ``tensor_parallel * stages`` of its devices.
        engine: name of a policy, or a Python file that registers one.
        engine_options: of the policy, as typed.
        tensor_parallel, stages: devices that share each layer, and pipeline stages.
        replicas: copies of the model.
        router: name of a router, or a Python file that registers one.
        router_options: of the router, as typed.
        weights: one of :data:`triosim.serving.model.PRECISIONS`.
        kv_cache: one of :data:`triosim.serving.model.KV_TYPES`.
        prefix_caching: whether what a prompt begins with may be found in the cache; as the engine does if None.
        longest: tokens of a request at most; the model's positions if None.
        blocks: of each replica's cache; what memory allows if None.
        utilisation: share of a device's memory that is the engine's.
        host_s: seconds that the host needs for a step, while the device runs one.
        host: how kernels are launched: ``graph``, or eagerly (a mode of :mod:`triosim.composition.host`).
        seed: of the router's draws.
        idle_ok: whether devices of the system may be left without a replica; otherwise that is refused, because it is
            usually a slip.
    """

    model: str
    system: System
    engine: str = "vllm"
    engine_options: Mapping[str, str] = field(default_factory=dict)
    tensor_parallel: int = 1
    stages: int = 1
    replicas: int = 1
    router: str = "round-robin"
    router_options: Mapping[str, str] = field(default_factory=dict)
    weights: str = "bf16"
    kv_cache: str = "bf16"
    prefix_caching: bool | None = None
    longest: int | None = None
    blocks: int | None = None
    utilisation: float = UTILISATION
    host_s: float = 0.0
    host: str = "graph"
    seed: int = 0
    idle_ok: bool = False


@dataclass(frozen=True)
class ServingResult:
    """What came out.

    Attributes:
        deployment: what served.
        served: every request and replica.
        metrics: latencies and throughput.
        memory: of the fullest device; None where the blocks were given.
        dollars_per_million_tokens: rent of all devices over the run, to a million prompt and output tokens; None where
            the catalog has no price.
        intervals: 90 % intervals of figures by name (``ttft.mean``, ``tpot.p99``, ``output_tokens_per_s``), from the
            uncertainty of kernel times; empty where they were not asked for.
    """

    deployment: Deployment
    served: Served
    metrics: ServingMetrics
    memory: Memory | None
    dollars_per_million_tokens: float | None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """For JSON."""
        own, found = self.deployment, self.metrics
        return {
            "schema": SCHEMA,
            "model": own.model,
            "system": own.system.name,
            "engine": {"name": own.engine, **own.engine_options},
            "plan": {
                "tp": own.tensor_parallel, "pp": own.stages, "replicas": own.replicas, "router": own.router,
                "weights": own.weights, "kv_cache": own.kv_cache, "prefix_caching": own.prefix_caching,
            },
            "duration_s": found.duration_s,
            "latency_s": {name: one.table() for name, one in found.distributions.items()},
            **found.figures,
            "dollars_per_million_tokens": self.dollars_per_million_tokens,
            "interval": {name: list(ends) for name, ends in self.intervals.items()},
            "goals": [
                {"goal": str(goal), "reached_s": reached, "met": met} for goal, reached, met in found.goals
            ],
            "memory": None if self.memory is None else self.memory.table(),
            "kv_blocks": self.served.blocks.tolist(),
            "replicas": [
                {"steps": steps, "busy_s": busy / 1e12, "computed_tokens": tokens, "peak_blocks": peak}
                for steps, busy, tokens, peak in zip(
                    self.served.steps.tolist(), self.served.busy.tolist(), self.served.computed.tolist(),
                    self.served.peak_blocks.tolist(), strict=True,
                )
            ],
        }  # fmt: skip


def serve(
    deployment: Deployment,
    requests: RequestTable,
    slo: Sequence[Slo] = (),
    tpot: str = "standard",
    progress: Progress | None = None,
    interval: bool | None = None,
) -> ServingResult:
    """Serve requests.

    Args:
        deployment: what serves.
        requests: what arrives when.
        slo: goals.
        tpot: how a request's TPOT is defined (:data:`triosim.serving.metrics.TPOT`).
        progress: told now and then.
        interval: find the 90 % interval of each figure; None finds it for at most :data:`FEW` requests.

    Raises:
        InputError: the deployment cannot be formed, a request does not fit it, or a policy broke a rule.
    """
    own, model = deployment, checked(deployment)
    served, kept, dollars_per_hour = _played(own, model, requests, NOTHING_MOVED, progress)
    metrics = measure(served, slo, tpot)
    tokens = int(requests.prompt.sum() + requests.output.sum())
    dollars = None if dollars_per_hour is None else dollars_per_hour * metrics.duration_s / 3600 / tokens * 1e6
    intervals: dict[str, tuple[float, float]] = {}
    if interval or (interval is None and len(requests) <= FEW):
        moved = []
        for cause in Moved._fields:
            if cause != "network" or own.tensor_parallel * own.stages > 1:
                again, _, _ = _played(own, model, requests, NOTHING_MOVED._replace(**{cause: 1.0}), None)
                moved.append(measure(again, (), tpot).named())
        intervals = _intervals(metrics.named(), moved)
    return ServingResult(own, served, metrics, kept, dollars, intervals)


def _intervals(found: Mapping[str, float], moved: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """90 % intervals of figures above zero, from what each becomes when one class of kernels is off by a standard
    deviation: classes err apart from each other, and their logarithms are added as if figures were linear in them."""
    out = {}
    for name, value in found.items():
        if value > 0 and all(other[name] > 0 for other in moved):
            width = Z90 * math.sqrt(sum(math.log(other[name] / value) ** 2 for other in moved))
            out[name] = value * math.exp(-width), value * math.exp(width)
    return out


def _played(
    own: Deployment, model: ServedModel, requests: RequestTable, moved: Moved, progress: Progress | None
) -> tuple[Served, Memory | None, float | None]:
    """A run, the memory of the first kind of replica, and the rent of all devices in dollars an hour."""
    size = own.tensor_parallel * own.stages
    longest = own.longest or model.longest
    kinds: dict[str, tuple[ModelTimes, Memory | None]] = {}
    replicas = []
    dollars: float | None = 0.0
    for number in range(own.replicas):
        policy = _policy(own.engine, own.engine_options)
        device = _device(own.system, number * size, size)
        if device.name not in kinds:
            kept = None
            if own.blocks is None:
                kept = memory(
                    model, device, precision_of(own.weights), kv_type_of(own.kv_cache),
                    block_tokens=policy.block_tokens, tokens=policy.max_tokens or NO_BUDGET,
                    sequences=min(policy.max_running, MOST_SAMPLED), tensor_parallel=own.tensor_parallel,
                    stages=own.stages, utilisation=own.utilisation,
                )  # fmt: skip
            kinds[device.name] = step_times(own, model, number * size, moved), kept
        times, kept = kinds[device.name]
        blocks = own.blocks if kept is None else kept.blocks
        reuses = policy.finds_prefixes if own.prefix_caching is None else own.prefix_caching
        cache = PrefixCache if reuses else KVCache
        replicas.append(Replica(number, policy, cache(blocks or 0, policy.block_tokens), times, longest))
        price = device.price_per_hour
        dollars = None if price is None or dollars is None else dollars + price * size
    router = _part(ROUTERS, own.router, {"seed": str(own.seed), **own.router_options}, "router")
    return play(requests, replicas, router, progress), next(kept for _, kept in kinds.values()), dollars


def checked(own: Deployment, many: bool = True) -> ServedModel:
    """The model, if the deployment can be formed; ``many`` if it may have several replicas.

    Raises:
        InputError: it cannot.
    """
    for option, value in (("--tp", own.tensor_parallel), ("--pp", own.stages), ("--replicas", own.replicas)):
        if value < 1:
            what = "the fleet holds no replica of the model" if option == "--replicas" else f"{option} {value}"
            raise InputError(f"{what}: give {option} of at least 1")
    model = served_model(own.model)
    if model.heads % own.tensor_parallel:
        raise InputError(
            f"--tp {own.tensor_parallel} does not divide the {model.heads} heads of {own.model}: choose another"
        )
    size = own.tensor_parallel * own.stages
    if own.replicas * size > own.system.devices:
        raise InputError(
            f"{own.replicas} replicas of {size} devices need {own.replicas * size}, but "
            f"{own.system.name or 'the system'} has {own.system.devices}: use fewer, or a larger system"
        )
    if (idle := own.system.devices - own.replicas * size) and not own.idle_ok:
        whole = own.system.devices // size if many else 1
        ways = [f"--replicas {whole}"] if whole > own.replicas else []
        raise InputError(
            f"{own.replicas} replica{'s' if own.replicas > 1 else ''} of {size} device{'s' if size > 1 else ''} "
            f"leave{'' if own.replicas > 1 else 's'} {idle} of the system's {own.system.devices} devices idle: give "
            f"{', '.join([*ways, 'a larger --tp or --pp'])}, a system of {own.replicas * size}, or --idle-ok (idle_ok "
            "of a Deployment) to want it so"
        )
    return model


def step_times(own: Deployment, model: ServedModel, first: int = 0, moved: Moved = NOTHING_MOVED) -> ModelTimes:
    """Step times of a replica from its first device on, whose kernels are off by so much.

    Raises:
        InputError: its devices differ, or a name in the deployment is not known.
    """
    size = own.tensor_parallel * own.stages
    device = _device(own.system, first, size)
    kernels = ServingKernels(
        model, device, precision_of(own.weights), kv_type_of(own.kv_cache), own.tensor_parallel, moved=moved
    )
    between = None
    if size > 1:
        between = Communication(own.system, own.tensor_parallel, own.stages, first, moved.network)
    issue = issue_seconds(own.host)
    return ModelTimes(kernels, between, own.stages, graphs=issue == 0, host_s=own.host_s, issue_s=issue)


def _device(system: System, first: int, size: int) -> Accelerator:
    """The one kind of device of a replica."""
    kinds = {system.model(device).name: system.model(device) for device in range(first, first + size)}
    if len(kinds) > 1:
        raise InputError(
            f"a replica would have several kinds of devices ({', '.join(sorted(kinds))}): choose --tp and --pp so that "
            "each has one kind"
        )
    return next(iter(kinds.values()))


def _policy(name: str, options: Mapping[str, str]) -> Policy:
    return _part(ENGINES, name, options, "engine")


def _part(registry: Registry[T], name: str, options: Mapping[str, str], what: str) -> T:
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
