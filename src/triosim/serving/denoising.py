"""Replicas of diffusion models: each step takes noise off a batch of images.

A request of ``n`` steps is a prompt of one token and ``n`` tokens of output: every step computes one token of it and
gives the next, so that the first token is the first step and tokens are steps from there on.  The step in which an
image joins encodes its text first, and the one in which it ends paints it; the others of the batch wait for both.

Steps may leave out most of the network and use what an earlier one left (Ma et al., "DeepCache", arXiv:2312.00858).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import InputError, quoted
from triosim.core.units import format_bytes, picoseconds
from triosim.hardware.power import held_back
from triosim.hardware.system import System
from triosim.serving.capacity import UTILISATION, ReplicaMemory
from triosim.serving.communication import ReplicaCommunication
from triosim.serving.denoiser import DECODES, IN_8_BITS, TYPES, Denoiser, denoiser
from triosim.serving.forward_passes import ForwardPasses, fitting
from triosim.serving.kernel_times import NOTHING_MOVED, KernelErrors
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.replica import Replica
from triosim.serving.request_energy import JOULES
from triosim.serving.requests import MOST_TOKENS, Request
from triosim.serving.step_times import StepShape, StepTimes
from triosim.sources import modelling
from triosim.stacks import load as load_stack
from triosim.transform.quantization import weights_in_8_bits

if TYPE_CHECKING:
    from triosim.serving.pool import Pool
    from triosim.serving.pool_times import PricedPools

Joules = NDArray[np.float64] | None
"""By :data:`triosim.serving.request_energy.JOULES`; None where nobody knows what devices draw."""
STYLES = ("ulysses", "ring", "usp", "gather")
"""How devices that share the tokens of images get what attention needs."""
BY_ITSELF = (1, 1, STYLES[0], 0)
"""Of a network that one device runs: devices that share its layers, and its tokens, and how."""
Sharing = tuple[int, int, str, int]
MOST_IMAGES = 1024
"""At a time on one replica; more of them is a slip."""


@dataclass(frozen=True)
class StepCache:
    """Steps that use what an earlier one left.

    Attributes:
        every: the first of so many steps runs the whole network.
        share: time of another step over that.
    """

    every: int
    share: float


def parse_step_cache(text: str) -> StepCache:
    """``3,share=0.3``: how much of the network the others run depends on the method, and so has no default.

    Raises:
        InputError: it is not of that form.
    """
    every, _, rest = text.partition(",")
    key, _, share = rest.partition("=")
    try:
        found = StepCache(int(every), float(share))
    except ValueError:
        found = StepCache(0, 0.0)
    if key.strip() != "share" or found.every < 1 or not 0 <= found.share <= 1:
        raise InputError(
            f"--step-cache {quoted(text)}: give how often a whole step comes and what the others take of one, as "
            "3,share=0.3"
        )
    return found


@dataclass(frozen=True)
class GuidanceGroups:
    """Groups of devices that share the samples of a guided step, each of which has the whole denoiser.

    They compute at the same time; before the next step each gets the predictions of the others (``use_cfg_parallel`` of
    xDiT, ``cfg_parallel_size`` of vLLM-Omni and SGLang).

    Attributes:
        system: the machine.
        first: device of the replica; groups follow each other from there on.
        groups: how many.
        size: devices of each.
        moved: how far off transfers are taken to be, in standard deviations.
    """

    system: System
    first: int
    groups: int
    size: int
    moved: float = 0.0

    def off(self, moved: float) -> GuidanceGroups:
        """The same where transfers are off by so much."""
        return replace(self, moved=moved)

    @cached_property
    def _between(self) -> ReplicaCommunication:
        return ReplicaCommunication(self.system, 1, first=self.first, moved=self.moved, stride=self.size)

    def seconds(self, model: Denoiser, images: int) -> float:
        """Of gathering the predictions for so many images."""
        size = images * model.passes * model.latents * DTYPE_BYTES[TYPES["bf16"]]
        return float(self._between.all_gather(np.array([float(size)]), self.groups)[0])


class DenoisingWork(NamedTuple):
    """Images of one step: those that run the whole network, those that do not, those that join and those that end."""

    whole: int
    skipping: int
    joining: int
    ending: int


@dataclass
class DenoisingTimes(StepTimes):
    """Times and joules of denoising steps.

    Attributes:
        model: what is served.
        denoiser, encoders, decoder: its networks.
        cache: which steps run only a part; None: none.
        guidance: the groups of devices that share the samples of a step; None where one runs them all.
    """

    model: Denoiser
    denoiser: ForwardPasses
    encoders: tuple[ForwardPasses, ...]
    decoder: ForwardPasses
    cache: StepCache | None = None
    guidance: GuidanceGroups | None = None
    _known: dict[DenoisingWork, tuple[int, Joules]] = field(init=False, repr=False, default_factory=dict)

    def with_errors(self, moved: KernelErrors) -> DenoisingTimes:
        """The same with kernels that are off by so much."""
        encoders = tuple(one.with_errors(moved) for one in self.encoders)
        guidance = None if self.guidance is None else self.guidance.off(moved.network)
        return DenoisingTimes(
            self.model,
            self.denoiser.with_errors(moved),
            encoders,
            self.decoder.with_errors(moved),
            self.cache,
            guidance,
        )

    @property
    def groups(self) -> int:
        """Of devices, each of which runs as many samples of a step."""
        return 1 if self.guidance is None else self.guidance.groups

    @property
    def passes(self) -> int:
        """Samples of a step for one image in each of the groups."""
        return self.model.passes // self.groups

    def ticks(self, step: StepShape, stage: int) -> int:
        """Of a step of so many images that neither join nor end."""
        return self.step(DenoisingWork(step.tokens, 0, 0, 0))[0]

    def step(self, work: DenoisingWork) -> tuple[int, Joules]:
        """Picoseconds of a step, and what its devices draw."""
        found = self._known.get(work)
        if found is None:
            found = self._known[work] = self._step(work)
        return found

    def _step(self, work: DenoisingWork) -> tuple[int, Joules]:
        share, each = 1.0 if self.cache is None else self.cache.share, self.groups
        parts = [(self.denoiser, self.passes * work.whole, 1.0, each)]
        parts.append((self.denoiser, self.passes * work.skipping, share, each))
        parts += [(encoder, self.model.passes * work.joining, 1.0, 1) for encoder in self.encoders]
        parts.append((self.decoder, work.ending, 1.0, 1))
        seconds = 0.0 if self.guidance is None else self.guidance.seconds(self.model, work.whole + work.skipping)
        joules: Joules = np.zeros(len(JOULES))
        for part, samples, of_it, groups in parts:
            if samples:
                taken = part.of(samples)
                seconds += of_it * taken.seconds
                joules = None if joules is None or taken.joules is None else joules + of_it * groups * taken.joules
        return max(picoseconds(seconds, "a step"), 1), joules

    def memory(self, capacity: float, utilisation: float) -> ReplicaMemory:
        """How the memory of the fullest device is divided; a block is what an image takes.

        Raises:
            InputError: not even one image fits.
        """
        passes = self.passes
        one, two = self.denoiser.of(passes), self.denoiser.of(2 * passes)
        first, second = self.decoder.of(1), self.decoder.of(2)
        own = 2 * one.reserved - two.reserved  # of no image
        painted = 2 * first.reserved - second.reserved
        around = sum(2 * encoder.of(1).reserved - encoder.of(2).reserved for encoder in self.encoders)
        left = utilisation * capacity
        images = min(
            fitting(around + painted, one, two, left), fitting(around + own, first, second, left), MOST_IMAGES
        )  # fmt: skip
        if images < 1:
            raise InputError(
                f"{self.model.name} does not fit: {format_bytes(around + own + painted)} of weights and an image "
                f"beside them are more than {utilisation:.0%} of {format_bytes(capacity)}: use more devices (--tp), a "
                "smaller --image-size or a larger device"
            )
        block = max(two.reserved - one.reserved, second.reserved - first.reserved)
        weights = around + own + painted
        return ReplicaMemory(capacity, weights, 0.0, 0.0, left - weights, block, images)


class DenoisingReplica(Replica):
    """A replica whose steps are of images.

    Args:
        number, policy, cache: as of any replica.
        times: prices its steps.

    """

    def __init__(self, number: int, policy: Policy, cache: KVCache, times: DenoisingTimes) -> None:
        super().__init__(number, policy, cache, times, MOST_TOKENS)
        self.denoising = times
        self.joules = np.zeros(len(JOULES))

    def start(self, now: int, horizon: int = 0) -> int:
        """As of any replica; steps are played one by one."""
        batch = self._asked() if not self.in_flight else []
        if not batch:
            return -1
        shape = self._taken(batch, now)
        ticks, joules = self.denoising.step(self._work(batch))
        self.joules = None if joules is None or self.joules is None else self.joules + joules
        self.busy[0] += ticks
        end = self.free_at[0] = now + ticks
        self.begins(batch, shape, [(now, end)])
        return end

    def _work(self, batch: Batch) -> DenoisingWork:
        cache = self.denoising.cache
        places = [request.known - request.prompt for request, _ in batch]
        whole = len(places) if cache is None else sum(place % cache.every == 0 for place in places)
        ending = sum(request.remaining == 1 for request, _ in batch)
        return DenoisingWork(whole, len(places) - whole, places.count(0), ending)

    def lose(self, now: int) -> list[Request]:
        """As of any replica; latents are lost with it, so that images begin again."""
        lost = super().lose(now)
        for request in lost:
            request.known = request.prefill = request.prompt
            request.first_token = request.last_token = -1
        return lost


# --- of a pool --------------------------------------------------------------------------------------------------------


def checked_denoiser(own: Pool) -> Denoiser:
    """The model, if a pool of it can be formed.

    Raises:
        InputError: it cannot.
    """
    if own.weights not in TYPES:
        raise InputError(f"{own.model} is served with weights {', '.join(TYPES)}, not {quoted(own.weights)}")
    of_tokens = (
        ("--pp", own.stages > 1), ("--dp", own.attention_ranks > 1), ("--ep", own.expert_ranks > 1),
        ("--speculate", own.speculation is not None), ("--lora", own.adapters is not None),
        ("--kv-tier", bool(own.tiers)), ("--kv-blocks", own.blocks is not None),
        ("--preemption", own.preemption != "recompute"), ("--prefix-caching", own.prefix_caching is not None),
        ("--max-length", own.longest is not None), ("--host-time", own.host_s > 0),
        ("the role " + own.role, own.role != "both"), ("--kv-cache", own.kv_cache != "bf16"),
        ("--eviction", own.eviction != "lru"), ("--step-times", bool(own.step_times)),
    )  # fmt: skip
    for option, given in of_tokens:
        if given:
            raise InputError(f"{option} is of models that write tokens, and {own.model} makes images: leave it out")
    if own.context_style not in STYLES:
        raise InputError(f"--cp-style is one of {', '.join(STYLES)}, not {quoted(own.context_style)}")
    if own.context_style == "usp" and (own.context_ulysses < 1 or own.context_parallel % own.context_ulysses):
        raise InputError(
            f"--cp-style usp: give --cp-ulysses N, those that exchange heads, which divides --cp {own.context_parallel}"
        )
    if own.step_cache is not None:
        parse_step_cache(own.step_cache)
    found, groups = denoiser(own.model, own.image_size), own.guidance_parallel
    if found.passes % groups:
        has = "the two of guidance: give 1 or 2" if found.passes > 1 else "one, its guidance is distilled: leave it out"
        raise InputError(f"--cfg-parallel {groups} shares the samples of a step, and {own.model} has {has}")
    return found


def denoising_replicas(
    own: Pool, model: Denoiser, number: int, moved: KernelErrors, policies: Sequence[Policy], priced: PricedPools | None
) -> tuple[list[Replica], ReplicaMemory | None]:
    """Fresh replicas, as of :func:`triosim.serving.pool_replicas.replicas_of`.

    Raises:
        InputError: not even one image fits.
    """
    kinds: dict[str, tuple[DenoisingTimes, ReplicaMemory | None]] = {}
    replicas: list[Replica] = []
    for place, policy in enumerate(policies):
        first = own.first + place * own.size
        device = own.system.model(first)
        if device.name not in kinds:
            key = (id(own.system), own.first, device.name, moved, model, *_typed(own))
            times = priced.get(key) if priced is not None else None
            if not isinstance(times, DenoisingTimes):
                times = _times(own, model, first, moved)
            if priced is not None:
                priced[key] = times
            share = UTILISATION if own.utilisation is None else own.utilisation
            kinds[device.name] = (
                times,
                None if device.memory_bytes is None else times.memory(device.memory_bytes, share),
            )
        times, kept = kinds[device.name]
        images = KVCache(MOST_IMAGES if kept is None else kept.blocks, MOST_TOKENS)
        replicas.append(DenoisingReplica(number + place, policy, images, times))
    all_kept = [kept for _, kept in kinds.values() if kept is not None]
    return replicas, min(all_kept, key=lambda kept: kept.blocks, default=None)


def _times(own: Pool, model: Denoiser, first: int, moved: KernelErrors) -> DenoisingTimes:
    """Of a replica from a device on: its devices share the denoiser, one of them runs encoders and decoder."""
    times = _unmoved(own.system, model, first, *_typed(own))
    return times if moved == NOTHING_MOVED else times.with_errors(moved)


def _typed(own: Pool) -> tuple[str, Sharing, int, str | None, str | None, float | None, float | None]:
    """What times depend on beside model and devices: the last arguments of :func:`_unmoved`."""
    sharing = (own.tensor_parallel, own.context_parallel, own.context_style, own.context_ulysses)
    return own.weights, sharing, own.guidance_parallel, own.step_cache, own.stack, own.power_cap_w, own.clock_hz


@kept(8)
def _unmoved(
    system: System, model: Denoiser, first: int, weights: str, sharing: Sharing, groups: int, step_cache: str | None,
    stack: str | None, power_cap_w: float | None, clock_hz: float | None,
) -> DenoisingTimes:  # fmt: skip
    """The same with kernels that take what is predicted: found once for all that are asked how unsure it is."""
    loaded = None if stack is None else load_stack(stack)
    limited = held_back(system, power_cap_w, clock_hz)

    def passes(name: str, sharing: Sharing, image_size: int | None, configuration: Mapping[str, bool]) -> ForwardPasses:
        more = {} if loaded is None else loaded.model_options
        trace = modelling.model(
            name, precision=TYPES[weights], image_size=image_size, training=False, configuration=configuration, **more
        )
        if weights == IN_8_BITS and name == model.name:
            trace = weights_in_8_bits(trace)
        return ForwardPasses(trace, limited, first, *sharing, loaded)

    return DenoisingTimes(
        model, passes(model.name, sharing, model.image_size, {}),
        tuple(passes(name, BY_ITSELF, None, {}) for name in model.pipeline.encoders),
        passes(model.pipeline.decoder, BY_ITSELF, model.image_size, DECODES),
        None if step_cache is None else parse_step_cache(step_cache),
        GuidanceGroups(system, first, groups, sharing[0] * sharing[1]) if groups > 1 else None,
    )  # fmt: skip
