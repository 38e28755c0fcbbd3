"""Joules of a request's steps on the devices of one replica.

A step takes static power for as long as it runs, joules of its FLOP, and of each byte that passes memory and caches:
weights once, keys and values of what is attended to, those that are stored, and activations.  Constants are those of
training (:mod:`triosim.energy.device`), and as there no step draws more than the TDP.  Hosts, links and cooling are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import ServedExperts, ServedHeads, ServedLatent
from triosim.serving.step_times import StepShape

if TYPE_CHECKING:
    from triosim.serving.pim_energy import BankShare


@dataclass(frozen=True)
class RequestEnergy:
    """Joules of all devices of the replica.

    Attributes:
        prompt_j, decode_j: of the prompt's step, and of all decodes.
        mean_w: of one device, from the beginning of the prompt to the last token.
        per_token_j: of all, to an output token.
        parts_j: of all: ``static``, ``flop``, ``memory``, ``cache``, and ``banks`` of memory that computes.
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


JOULES = ("static", "memory", "flop", "cache")
"""What devices draw joules for while they compute."""
BANKS = "banks"
"""And memory that computes."""


@dataclass(frozen=True)
class StepLoad:
    """Work of steps, of one or of many together.

    Attributes:
        steps: each of which reads the weights.
        tokens: computed, those that fill captured graphs too.
        decoded: of these, after prompts.
        context: keys that these attend to, each its own token included, summed.
        sampled: positions at which tokens are chosen.
        chunks, cached: tokens of each part of a prompt, and tokens computed before, of equal shape.
        share: of these parts that is computed here.
    """

    steps: float
    tokens: float
    decoded: float
    context: float
    sampled: float
    chunks: NDArray
    cached: NDArray
    share: float = 1.0

    @staticmethod
    def of(step: StepShape) -> StepLoad:
        """One step."""
        chunks = np.array(step.chunks, np.float64).reshape(-1, 2)
        prompts = float(chunks[:, 0].sum())
        return StepLoad(1, step.tokens, step.tokens - prompts, step.context, step.sampled, chunks[:, 0], chunks[:, 1])


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
    each = [joules(kernels, energy, StepLoad.of(step), seconds, stages) for step, seconds in steps]
    parts = {name: sum(one[name] for one in each) for name in each[0]}
    total, prompt = sum(parts.values()), sum(each[0].values())
    seconds = sum(took for _, took in steps)
    off = math.sqrt(sum((parts[name] * spread_of(energy, name)) ** 2 for name in parts)) / total
    devices = kernels.tensor_parallel * stages
    return RequestEnergy(
        prompt, total - prompt, total / seconds / devices, total / output, parts,
        (total * math.exp(-off), total * math.exp(off)), energy.source,
    )  # fmt: skip


def spread_of(energy: DeviceEnergy, part: str) -> float:
    """Of a part's joules; banks are as little known as the memory's pins."""
    return energy.spreads["memory" if part == BANKS else part]


def joules(
    kernels: ServingKernels, energy: DeviceEnergy, load: StepLoad, seconds: float, stages: int
) -> dict[str, float]:
    """Of one replica's devices, by part: ``static``, ``memory``, ``flop``, ``cache``, and ``banks`` where memory
    computes, whose power is not part of the device's TDP.

    Args:
        kernels: of one device, at its clock.
        energy: what it draws.
        load: what is computed.
        seconds: that takes, through all stages.
        stages: of the pipeline: while one works, others idle.
    """
    flop, moved = work_of(kernels, load)
    banks = _banked(kernels, load)
    if banks is not None:
        flop, moved = max(flop - banks.flop, 0.0), max(moved - banks.bytes, 0.0)
    working = kernels.tensor_parallel
    static = (energy.static_w + (stages - 1) * energy.idle_w) * working * seconds
    most = energy.tdp_w if kernels.held is None else min(energy.tdp_w, kernels.held.most_w)
    room = (most - energy.static_w) * working * seconds
    memory = min(moved * energy.memory_j_per_byte, room)
    computing, reading = (1.0, 1.0) if kernels.held is None else kernels.held.switching
    switching = {
        "flop": computing * flop * float(energy.flop_j[DTYPE_CODE[kernels.multiplied]]),
        "cache": reading * moved * energy.cache_j_per_byte,
    }  # fmt: skip
    part = min(1.0, (room - memory) / max(sum(switching.values()), 1e-300))
    found = {"static": static, "memory": memory, **{name: value * part for name, value in switching.items()}}
    return found if banks is None else found | {BANKS: banks.joules}


def _banked(kernels: ServingKernels, load: StepLoad) -> BankShare | None:
    """What memory that computes takes over; None where there is none."""
    if kernels.device.pim is None:
        return None
    from triosim.serving.pim import PimKernels  # nobody else needs it
    from triosim.serving.pim_energy import bank_share

    return bank_share(kernels, load) if isinstance(kernels, PimKernels) else None


def work_of(kernels: ServingKernels, load: StepLoad) -> tuple[float, float]:
    """FLOP, and bytes that are moved, on all devices of a replica together."""
    model, precision = kernels.model, kernels.precision
    head = float(model.width * model.vocabulary)
    flop, weights = 2 * head * load.sampled, 2 * head * (load.steps if load.sampled else 0)
    rows = read = states = 0.0
    ups = 3 if model.gated else 2
    beside = model.dense(precision).weight_bytes
    for kind in model.kinds:
        own = kind.experts
        every = ups * model.width * own.inner if own else 0  # parameters of an expert
        parts = [part for part in (kind.attention, kind.state) if part]
        dense = sum(part.parameters(model.width) for part in parts)
        dense += ups * model.width * (own.shared if own else kind.inner)
        chosen, touched = (own.chosen, _touched(own, load)) if own else (0, 0.0)
        spent, attended = _attended(kind.attention, load) if kind.attention else (0.0, 0.0)
        if kind.state:
            spent += kind.state.update_flop * load.tokens
            states += kind.count * 2 * kind.state.bytes(kernels.state_type) * _updates(load)
        flop += kind.count * (2 * (dense + chosen * every) * load.tokens + spent)
        weights += kind.count * (load.steps * dense * beside + touched * every * precision.weight_bytes)
        inner = chosen * own.inner + own.shared if own else kind.inner
        between = 8 * model.width + 3 * sum(part.between for part in parts) + (2 * ups) * inner
        rows += kind.count * between * load.tokens
        read += kind.count * attended
    heads, elements = model.cached
    cache = DTYPE_BYTES[kernels.kv_type] * heads * elements * (read + model.attention_layers * load.tokens)
    activations = DTYPE_BYTES["bfloat16"] * (rows + 3 * model.vocabulary * load.sampled)
    return flop, weights + cache + states + activations


def _updates(load: StepLoad) -> float:
    """How often the state of a sequence is read and written: by each token that is decoded, each part of a prompt."""
    return load.decoded + load.share * len(load.chunks)


def _touched(own: ServedExperts, load: StepLoad) -> float:
    """Experts of a layer that are read, over all steps: tokens choose by chance, each prompt is in a step of its own
    while there are steps, and steps have equally many decodes."""
    with_prompts = min(load.steps, load.share * len(load.chunks))
    decoding, missed = load.decoded / load.steps, 1 - own.chosen / own.count
    prompts = (load.tokens - load.decoded) / with_prompts if with_prompts else 0.0

    def read(tokens: float) -> float:
        return max(own.count * (1 - missed**tokens), own.chosen) if tokens else 0.0

    return with_prompts * read(decoding + prompts) + (load.steps - with_prompts) * read(decoding)


def _attended(own: ServedHeads | ServedLatent, load: StepLoad) -> tuple[float, float]:
    """FLOP of a layer's attention, and positions of its cache that it reads."""
    if isinstance(own, ServedLatent):  # decodes attend to the latent vectors, prompts to keys and values of the heads
        decoding, prompting = own.heads * (2 * own.rank + own.rotated), own.heads * (own.size + own.rotated + own.value)
    else:
        decoding = prompting = 2 * own.heads * own.head
    context = load.context
    if own.window and load.decoded:
        context = load.decoded * min(context / load.decoded, float(own.window))
    pairs = held = 0.0
    for at in rows_of(len(load.chunks)):
        chunks, cached = load.chunks[at].astype(np.float64), load.cached[at].astype(np.float64)
        pairs += load.share * float(_pairs(chunks, cached, own.window).sum())
        before = np.minimum(cached, own.window) if own.window else cached
        held += load.share * float((chunks + before).sum())
    return 2.0 * (decoding * context + prompting * pairs), context + held


def rows_of(count: int) -> list[slice]:
    """Rows a million at a time, so that what is made of them takes little memory."""
    return [slice(first, first + ROWS) for first in range(0, count, ROWS)]


ROWS = 1 << 20
"""At a time."""


def _pairs(count: NDArray[np.float64], cached: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Queries and keys of chunks that meet: each of ``count`` positions sees those before it and its own, within the
    window where there is one."""
    free = np.clip(window - cached, 0, count) if window else count
    return np.asarray(free * cached + free * (free + 1) / 2 + (count - free) * window, np.float64)
