"""Joules of a request's steps on the devices of one replica.

A step takes static power for as long as it runs, joules of its FLOP, and of each byte that passes memory and caches:
weights once, keys and values of what is attended to, those that are stored, and activations.  Constants are those of
training (:mod:`triosim.energy.device`), and as there no step draws more than the TDP.  Hosts, links and cooling are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import ServedExperts, ServedHeads, ServedLatent
from triosim.serving.step_times import StepShape


@dataclass(frozen=True)
class RequestEnergy:
    """Joules of all devices of the replica.

    Attributes:
        prompt_j, decode_j: of the prompt's step, and of all decodes.
        mean_w: of one device, from the beginning of the prompt to the last token.
        per_token_j: of all, to an output token.
        parts_j: of all: ``static``, ``flop``, ``memory``, ``cache``.
        interval_j: 90 % interval of all at the predicted times, from those of the constants.
        source: where the constants are from.
    """

    prompt_j: float
    decode_j: float
    mean_w: float
    per_token_j: float
    parts_j: dict[str, float]
    interval_j: tuple[float, float]
    source: str

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "request_j": self.prompt_j + self.decode_j, "prompt_j": self.prompt_j, "decode_j": self.decode_j,
            "mean_w_per_device": self.mean_w, "per_output_token_j": self.per_token_j, "parts_j": self.parts_j,
            "interval_j": list(self.interval_j), "source": self.source,
        }  # fmt: skip


def request_energy(
    kernels: ServingKernels, steps: Sequence[tuple[StepShape, float]], stages: int, output: int
) -> RequestEnergy | None:
    """Of the steps of requests that run alone.

    Args:
        kernels: of one device.
        steps: each with its seconds through all stages; the first one computes the prompt.
        stages: of the pipeline: while one works, others idle.
        output: tokens of all requests together.

    Returns:
        None where nobody knows what the device draws.
    """
    energy = device_energy(kernels.device, EnergyConstants())
    if energy is None:
        return None
    each = [_joules(kernels, energy, step, seconds, stages) for step, seconds in steps]
    parts = {name: sum(one[name] for one in each) for name in each[0]}
    total, prompt = sum(parts.values()), sum(each[0].values())
    seconds = sum(took for _, took in steps)
    off = math.sqrt(sum((parts[name] * energy.spreads[name]) ** 2 for name in parts)) / total
    devices = kernels.tensor_parallel * stages
    return RequestEnergy(
        prompt, total - prompt, total / seconds / devices, total / output, parts,
        (total * math.exp(-off), total * math.exp(off)), energy.source,
    )  # fmt: skip


def _joules(
    kernels: ServingKernels, energy: DeviceEnergy, step: StepShape, seconds: float, stages: int
) -> dict[str, float]:
    """Of one step by part."""
    flop, moved = work_of(kernels, step)
    working = kernels.tensor_parallel
    static = (energy.static_w + (stages - 1) * energy.idle_w) * working * seconds
    room = (energy.tdp_w - energy.static_w) * working * seconds
    memory = min(moved * energy.memory_j_per_byte, room)
    switching = {
        "flop": flop * float(energy.flop_j[DTYPE_CODE[kernels.precision.multiplied]]),
        "cache": moved * energy.cache_j_per_byte,
    }  # fmt: skip
    part = min(1.0, (room - memory) / max(sum(switching.values()), 1e-300))
    return {"static": static, "memory": memory, **{name: joules * part for name, joules in switching.items()}}


def work_of(kernels: ServingKernels, step: StepShape) -> tuple[float, float]:
    """FLOP of a step and bytes that it moves, on all devices of a replica together."""
    model, precision = kernels.model, kernels.precision
    head = float(model.width * model.vocabulary)
    flop, weights, rows, read = 2 * head * step.sampled, 2 * head * (step.sampled > 0), 0.0, 0.0
    ups = 3 if model.gated else 2
    beside = model.dense(precision).weight_bytes
    for kind in model.kinds:
        own = kind.experts
        every = ups * model.width * own.inner if own else 0  # parameters of an expert
        dense = kind.attention.parameters(model.width) + ups * model.width * (own.shared if own else kind.inner)
        chosen, touched = (own.chosen, _touched(own, step.tokens)) if own else (0, 0.0)
        spent, attended = _attended(kind.attention, step)
        flop += kind.count * (2 * (dense + chosen * every) * step.tokens + spent)
        weights += kind.count * (dense * beside + touched * every * precision.weight_bytes)
        inner = chosen * own.inner + own.shared if own else kind.inner
        between = 8 * model.width + 3 * kind.attention.between + (2 * ups) * inner
        rows += kind.count * between * step.tokens
        read += kind.count * attended
    heads, elements = model.cached
    cache = DTYPE_BYTES[kernels.kv_type] * heads * elements * (read + model.layers * step.tokens)
    activations = DTYPE_BYTES["bfloat16"] * (rows + 3 * model.vocabulary * step.sampled)
    return flop, weights + cache + activations


def _touched(own: ServedExperts, tokens: int) -> float:
    """Experts of a layer that so many tokens, each choosing by chance, read."""
    return max(own.count * (1 - (1 - own.chosen / own.count) ** tokens), own.chosen)


def _attended(own: ServedHeads | ServedLatent, step: StepShape) -> tuple[float, float]:
    """FLOP of a layer's attention, and positions of its cache that it reads."""
    if isinstance(own, ServedLatent):  # decodes attend to the latent vectors, prompts to keys and values of the heads
        decoding, prompting = own.heads * (2 * own.rank + own.rotated), own.heads * (own.size + own.rotated + own.value)
    else:
        decoding = prompting = 2 * own.heads * own.head
    context = float(step.context)
    if own.window and step.decodes:
        context = step.decodes * min(context / step.decodes, float(own.window))
    pairs = sum(_pairs(count, cached, own.window) for count, cached in step.chunks)
    held = sum(count + (min(cached, own.window) if own.window else cached) for count, cached in step.chunks)
    return 2.0 * (decoding * context + prompting * pairs), context + held


def _pairs(count: int, cached: int, window: int) -> float:
    """Queries and keys of a chunk that meet: each of ``count`` positions sees those before it and its own, within the
    window where there is one."""
    free = count if not window else min(max(window - cached, 0), count)
    return free * cached + free * (free + 1) / 2 + (count - free) * window
