"""SGLang (its documentation): prompts before decodes, never mixed; admission keeps room for part of what is to come."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast, AtMost
from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request
from triosim.serving.step_times import FRONT_S, SGLANG, StepHost

LEAST, DECAY_STEPS = 0.14, 600
"""Of the first share, the least that it decays to, and decode steps in which it does."""
RETRACT_STEPS, MOST_TO_COME = 20, 4096
"""Decode steps that must have room after a retraction, output tokens of a request that admission reckons with."""


@registered
@dataclass
class SgLang(Policy):
    """A new request must fit with all its output, and those that run with a share of theirs.

    The share falls with every decode step, and jumps up when blocks run out and requests have to be retracted.

    Attributes:
        max_running: requests that may run at a time.
        max_tokens: prompt tokens of a step (``chunked-prefill-size``); the last prompt is cut to it.
        share: of the remaining output of running requests that is kept free at first.
    """

    max_running: int = 2048
    max_tokens: int | None = 8192
    block_tokens: int = 1
    share: Annotated[float, AtLeast(0), AtMost(1)] = 0.7
    ratio: float = field(init=False, repr=False, default=0.0)

    finds_prefixes: ClassVar[bool] = True
    radix: ClassVar[bool] = True
    static: ClassVar[bool] = True
    joins_shared: ClassVar[bool] = True
    all_reduce: ClassVar[str] = "custom"
    tuned_tiles: ClassVar[str] = "sglang"
    casts_experts: ClassVar[bool] = True  # flashinfer_mxfp4_moe_precision "default"; vLLM asks for it by a variable
    step_host: ClassVar[StepHost] = SGLANG
    keeps_states: ClassVar[str] = "share"
    overlaps: ClassVar[bool] = True
    front_s: ClassVar[float] = FRONT_S

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """As of any policy; the share is that of the beginning."""
        super().attach(cache, longest, stages)
        self.ratio = self.share

    def schedule(self) -> Batch:
        """Prompts, if one has begun or can be admitted; else decodes."""
        return self._prompts() or self._decodes()

    def _prompts(self) -> Batch:
        step: Batch = []
        left = self.max_tokens if self.max_tokens is not None else 1 << 62
        for request in (one for one in self.ready() if not one.decoding):
            step.append((request, min(request.lacks, left)))
            left -= step[-1][1]
        kept = 0.0
        for request in self.running:
            kept += min(request.remaining, MOST_TO_COME) * self.ratio
        free = self.cache.free * self.block_tokens - kept
        while left and self.waiting and len(self.running) < self.max_running and len(step) < self.per_step:
            request = self.waiting[0]
            found = self.cache.match(request)
            free -= request.known - found + min(request.remaining, MOST_TO_COME)
            if (free < 0 and self.running) or not self.cache.start(request, request.known):
                break
            tokens = min(request.lacks, left)
            step.append((self.admit(), tokens))
            left -= tokens
        return step

    def _decodes(self) -> Batch:
        ready = sorted(self.ready(), key=_progress)
        if ready and self.cache.free < self._needed(ready, 1):
            while len(ready) > 1 and self.cache.free < self._needed(ready, RETRACT_STEPS):
                self.preempt(ready.pop(0))
            told = sum(request.known - request.prompt for request in ready) + RETRACT_STEPS * len(ready)
            self.ratio = min(1.0, told / sum(request.end - request.prompt for request in ready))
        self.ratio = max(self.ratio - self.share * (1 - LEAST) / DECAY_STEPS, self.share * LEAST)
        return [(request, 1) for request in self.ready()[: self.per_step] if self.cache.hold(request, request.known)]

    def _needed(self, ready: list[Request], steps: int) -> int:
        """Blocks that so many more decode steps take."""
        return sum(self.cache.needs(request, min(request.known + steps - 1, request.end - 1)) for request in ready)


def _progress(request: Request) -> tuple[int, int]:
    """Those with the least output and the longest prompts are retracted first."""
    return request.known - request.prompt, -request.prompt
