"""vLLM version 1: one budget of tokens a step, without phases; running requests first, then waiting ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy


@registered
@dataclass
class Vllm(Policy):
    """Each request computes what it lacks or what is left of the budget, so that long prompts are cut.

    A running request that finds no block frees those of the latest arrivals, which wait in front of all others and are
    computed again.  Nobody is admitted in such a step.

    Attributes:
        max_running: requests that may run at a time (``max_num_seqs``).
        max_tokens: tokens of a step (``max_num_batched_tokens``).
        priority: whether requests with the lowest priority go first (``scheduling_policy``).
    """

    max_running: int = 256
    max_tokens: int | None = 2048
    priority: bool = False

    finds_prefixes: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    swaps: ClassVar[bool] = True

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """As of any policy."""
        super().attach(cache, longest, stages)
        self.by_priority = self.priority

    def schedule(self) -> Batch:
        """The running in order of arrival; then, if nobody had to give way, the waiting."""
        step: Batch = []
        left = self.max_tokens if self.max_tokens is not None else 1 << 62
        preempted = False
        ready = self.in_order()
        while ready and left:
            request = ready.popleft()
            tokens = min(request.known - request.computed, left)
            while not self.cache.hold(request, request.computed + tokens):
                preempted = True
                victim = ready.pop() if ready else request
                self.preempt(victim)
                if victim is request:
                    break
            else:
                step.append((request, tokens))
                left -= tokens
        while not preempted and left and self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            found = self.cache.match(request)
            tokens = min(request.known - found, left)
            if not self.cache.start(request, found + tokens):
                break
            self.admit()
            step.append((request, tokens))
            left -= tokens
        return step
