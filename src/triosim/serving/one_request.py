"""One request, or a batch of equal ones, alone on a replica: TTFT, TPOT, where the time goes, and memory.

The prompt is one step, or as many as the engine cuts it into, and every output token but the first another; each is
priced by the length that the cache has then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.plain_json import json_text
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.hardware.describe import costed
from triosim.serving.capacity import UTILISATION, ReplicaMemory, memory
from triosim.serving.kernel_times import each_moved, intervals
from triosim.serving.kv_cache import KVCache
from triosim.serving.model import kv_type_of, precision_of
from triosim.serving.model_times import ModelTimes
from triosim.serving.pim import PimKernels, PimReport
from triosim.serving.policy import Policy, engine_on
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked, refuse_idle
from triosim.serving.pool_times import device_of, front_seconds, front_spread, step_times
from triosim.serving.request_energy import RequestEnergy, request_energy
from triosim.serving.requests import Request
from triosim.serving.state_cache import state_type
from triosim.serving.step_times import StepShape

SCHEMA = "triosim/request/1"
_LARGE = 1 << 60
"""Blocks, and tokens, of which no request needs as many."""


@dataclass(frozen=True)
class OneRequest:
    """Times, memory and energy of one request on an idle replica.

    Attributes:
        pool: what serves it.
        prompt, output, batch, context: tokens of the prompt and the output, equal requests, tokens that the cache holds
            of each before.
        ttft_s, tpot_s, e2e_s: seconds; TPOT is the mean over output - 1 tokens, None for one token.
        breakdown_s: of the prompt's step and the mean decode: seconds of each part by name.  What the host needs beyond
            the device is ``host``, what passes between client and engine ``front``.
        kv_bytes: of all requests at their end, on one device.
        state_bytes: likewise, of their states of fixed size.
        memory: how the device's memory is divided.
        pim: attention of the middle decode step in memory that computes; None where the device has none.
        energy: of all devices; None where nobody knows what they draw, or memory of theirs computes.
        intervals: 90 % intervals of ``ttft_s``, ``tpot_s`` and ``e2e_s``, from the uncertainty of kernel times.
    """

    pool: Pool
    prompt: int
    output: int
    batch: int
    context: int
    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    breakdown_s: dict[str, dict[str, float]]
    kv_bytes: float
    memory: ReplicaMemory
    pim: PimReport | None = None
    energy: RequestEnergy | None = None
    state_bytes: float = 0.0
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the cache holds all requests to their end."""
        return self.kv_bytes + self.state_bytes <= self.memory.cache

    @property
    def joules(self) -> float:
        """Of all devices; 0 where that is not known."""
        return 0.0 if self.energy is None else self.energy.prompt_j + self.energy.decode_j

    def __repr__(self) -> str:
        from triosim.serving.request_words import summary

        return "\n".join(line.rstrip() for line in summary(self))

    def to_json(self) -> str:
        """The JSON text."""
        return json_text(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = self.pool
        device = device_of(own, own.first)
        return {
            "schema": SCHEMA, "model": own.model, "system": own.system.name, "device": device.name,
            "accelerators": [costed(device)],
            "plan": {"engine": own.engine, "tp": own.tensor_parallel, "pp": own.stages, "weights": own.weights,
                     "kv_cache": own.kv_cache,
                     "host": own.host, "power_cap_w": own.power_cap_w, "clock_hz": own.clock_hz},
            "prompt": self.prompt, "output": self.output, "batch_size": self.batch, "context": self.context,
            "ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "e2e_s": self.e2e_s,
            "interval": {name: list(ends) for name, ends in self.intervals.items()}, "breakdown_s": self.breakdown_s,
            "memory": {
                "kv_bytes": self.kv_bytes, **({"state_bytes": self.state_bytes} if self.state_bytes else {}),
                "fits": self.fits, **self.memory.table(),
            },
            "energy": None if self.energy is None else self.energy.table(),
            **({"pim": {**asdict(self.pim), "runs": self.pim.runs, "binds": self.pim.binds}} if self.pim else {}),
        }  # fmt: skip


def infer(
    pool: Pool, prompt: int, output: int, batch_size: int = 1, context: int = 0, idle_ok: bool = False,
    bounded: bool = True,
) -> OneRequest:  # fmt: skip
    """One request, or a batch of equal ones, with its KV cache.

    Args:
        pool: of one replica (:func:`triosim.pool`), whose engine's kernels and host serve the request.
        prompt, output: tokens, at least 1.
        batch_size: equal requests that run together.
        context: tokens in the cache before the prompt.
        idle_ok: whether devices of the system may have nothing to do.
        bounded: whether intervals are asked for, which take three times as long as all else.

    Raises:
        InputError: a count is below its least, the request is longer than the model, or the pool cannot be
            formed.
    """
    if not isinstance(pool, Pool):
        raise InputError(f"what serves must be a Pool, not {pool!r:.60}: make one with triosim.pool(MODEL, SYSTEM)")
    batch = batch_size
    counts = {"--prompt": (prompt, 1), "--output": (output, 1), "--batch-size": (batch, 1), "--context": (context, 0)}
    for option, (value, least) in counts.items():
        if value < least:
            raise InputError(f"{option} must be at least {least}, got {value}")
    own = pool
    model = checked(own)
    if not idle_ok:
        refuse_idle(1, own.size, own.system.devices, many=False)
    whole, longest = context + prompt + output, own.longest or model.longest
    if whole > longest:
        raise InputError(
            f"{whole} tokens of context, prompt and output are more than the {longest} that {own.model} was made for: "
            "give fewer"
        )
    policy = engine_on(device_of(own, own.first), own.engine, own.engine_options)
    host = policy.host()
    times = step_times(own, model, host=host)
    prompts = _prompts(policy, prompt, batch, context)
    steps = [
        *prompts,
        *(StepShape(batch, (), batch, batch * known, batch) for known in range(context + prompt + 1, whole)),
    ]
    front, each, last = front_seconds(own), [_seconds(times, step) for step in steps], len(prompts)
    decodes = each[last:]
    ttft = front + sum(each[:last])
    figures = _figures(ttft, decodes)
    moved = []
    for errors in each_moved(own.size) if bounded else ():
        others = step_times(own, model, moved=errors, host=host)
        others_s = [_seconds(others, step) for step in steps]
        moved.append(_figures(front + sum(others_s[:last]), others_s[last:]))
    middle = StepShape(batch, (), batch, round(batch * (context + prompt + output / 2)), batch)
    parts = [_breakdown(times, step) for step in prompts]
    breakdown = {"prompt": {name: sum(part[name] for part in parts) for name in parts[0]} | {"front": front}}
    if decodes:
        breakdown["decode"] = _breakdown(times, middle) | {"front": 0.0}
    kept = memory(
        model, own.system.model(0), precision_of(own.weights), kv_type_of(own.kv_cache), block_tokens=1,
        tokens=max(step.tokens for step in prompts), sequences=batch, tensor_parallel=own.tensor_parallel,
        stages=own.stages,
        utilisation=UTILISATION if own.utilisation is None else own.utilisation,
    )  # fmt: skip
    held = batch * model.kv_kept_bytes(whole - 1, kv_type_of(own.kv_cache), own.tensor_parallel, own.stages)
    states = batch * model.state_bytes(state_type(own, model) or "bfloat16", own.tensor_parallel)
    priced = list(zip(steps, each, strict=True))
    energy = request_energy(times.kernels, priced, own.stages, batch * output)
    pim = None
    if isinstance(times.kernels, PimKernels) and decodes:
        pim = times.kernels.report(batch, middle.context / batch)
    return OneRequest(
        own, prompt, output, batch, context, ttft, figures.get("tpot_s"), figures["e2e_s"], breakdown, held, kept, pim,
        energy, states, intervals(figures, moved, front_spread(own)) if bounded else {},
    )  # fmt: skip


def _prompts(policy: Policy, prompt: int, batch: int, context: int) -> list[StepShape]:
    """Steps in which an engine computes the prompts: one, or where its steps are smaller and it cuts prompts, as many
    as that takes, one prompt after another."""
    if (most := policy.max_tokens) is None or batch * prompt <= most or not _cuts(policy, most):
        return [StepShape(batch * prompt, ((prompt, context),) * batch, 0, 0, batch)]
    steps, done = [], 0
    while done < batch * prompt:
        step, chunks, sampled = min(most, batch * prompt - done), list[tuple[int, int]](), 0
        end = done + step
        while done < end:
            computed = done % prompt
            tokens = min(prompt - computed, end - done)
            chunks.append((tokens, context + computed))
            sampled += computed + tokens == prompt
            done += tokens
        steps.append(StepShape(step, tuple(chunks), 0, 0, sampled))
    return steps


def _cuts(policy: Policy, most: int) -> bool:
    """Whether it takes prompts that are longer than a step."""
    policy.attach(KVCache(_LARGE, policy.block_tokens), _LARGE)
    return not policy.room(Request(0, 0, 0, most + 1, 1))


def _figures(ttft_s: float, decodes: Sequence[float]) -> dict[str, float]:
    """Seconds to the first token, of each further one on average, and in all."""
    found = {"ttft_s": ttft_s, "e2e_s": ttft_s + float(np.sum(decodes))}
    return {**found, "tpot_s": float(np.mean(decodes))} if decodes else found


@dataclass(frozen=True)
class RequestClock:
    """The clock at which a request takes least energy.

    Attributes:
        clock_hz: of those that are quick enough.
        result: at it.
        tried: each clock in hertz with what came of it and whether it is quick enough, the highest first.
    """

    clock_hz: float
    result: OneRequest
    tried: tuple[tuple[float, OneRequest, bool], ...]


def least_energy_request(
    full: OneRequest, predict: Callable[[float, bool], OneRequest], slowdown: float
) -> RequestClock:
    """Look for the clock of least energy.

    Args:
        full: at the highest clock.
        predict: at a clock in hertz, and whether with its intervals, for which only the best is asked.
        slowdown: how much longer a request may take in all, as a part of it.

    Raises:
        InputError: a boost clock or what devices draw is not known.
    """
    from triosim.search.clock_search import NOTHING_DRAWN, clock_range, least_energy

    if full.energy is None:
        raise InputError(NOTHING_DRAWN)
    top, lowest = clock_range([device_of(full.pool, full.pool.first)])
    most = full.e2e_s * (1 + slowdown)
    found, best = least_energy(
        lambda clock: predict(clock, False), full, top, lowest, lambda one: one.joules, lambda one: one.e2e_s <= most
    )
    chosen = full if found[best] is full else predict(best, True)
    return RequestClock(best, chosen, tuple((clock, one, one.e2e_s <= most) for clock, one in found.items()))


def _seconds(times: ModelTimes, step: StepShape) -> float:
    """Through all stages."""
    return sum(times.ticks(step, stage) for stage in range(times.stages)) / PICOSECONDS_PER_SECOND


def _breakdown(times: ModelTimes, step: StepShape) -> dict[str, float]:
    """Seconds of all layers, and of what comes once."""
    kernels, tokens = times.kernels, np.array([times.computed(step)])
    layers = kernels.model.layers
    found = {name: layers * float(seconds[0]) for name, seconds in kernels.operators(tokens).items()}
    found["attention"] = layers * kernels.together(step.chunks, step.decodes, step.context / max(step.decodes, 1))
    if kernels.model.state:
        found["state"] = layers * kernels.states(step.chunks, step.decodes)
        found["attention"] -= found["state"]
    found["all_reduce"] = found["send"] = 0.0
    if times.communication is not None:
        size = 2.0 * tokens * kernels.model.width
        found["all_reduce"] = kernels.reduces * layers * float(times.communication.all_reduce(size)[0])
        found["send"] = (times.stages - 1) * times.communication.send(2.0 * step.tokens * kernels.model.width)
    found["embedding"] = float(kernels.embedding(tokens)[0])
    found["sampling"] = float(kernels.sampling([step.sampled])[0]) if step.sampled else 0.0
    device = round(sum(found.values()) * PICOSECONDS_PER_SECOND / times.stages)
    beyond = times.with_host(device, step.decodes + len(step.chunks), bool(step.chunks)) - device
    found["host"] = times.stages * beyond / PICOSECONDS_PER_SECOND
    return found
