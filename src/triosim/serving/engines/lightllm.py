"""LightLLM: tokens are held one by one, and prompts are admitted only now and then, if they fit to the very end."""

from __future__ import annotations

from dataclasses import field
from itertools import accumulate
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request


@registered
@dataclass
class LightLlm(Policy):
    """After some decode steps, or when nothing runs, prompts are admitted whose future tokens fit at their peak.

    Attributes:
        max_running: requests that may run at a time.
        max_tokens: prompt tokens of a step.
        decode_steps: that pass before prompts are looked at again.
    """

    max_running: int = 128
    max_tokens: int | None = 4096
    block_tokens: int = 1
    decode_steps: int = 10
    passed: int = field(init=False, repr=False, default=0)

    pipelines: ClassVar[bool] = False

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """As of any policy; no step has passed."""
        super().attach(cache, longest, stages)
        self.passed = 0

    def schedule(self) -> Batch:
        """Prompts when it is their turn and some fit, else decodes."""
        if not self.running or self.passed >= self.decode_steps:
            self.passed = 0
            if step := self._prompts():
                return step
        self.passed += 1
        for request in self.running:
            self.cache.hold(request, request.known)
        return [(request, 1) for request in self.running]

    def _prompts(self) -> Batch:
        step: Batch = []
        tokens = 0
        spans = [(request.remaining, request.known) for request in self.running]
        room = self.cache.tokens - self._held_by_others()
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            tokens += request.known
            spans.append((request.remaining, request.known))
            if tokens > (self.max_tokens or tokens) or self._peak(spans) > room:
                break
            self.admit()
            self.cache.start(request, request.known)
            step.append((request, request.lacks))
        return step

    def _held_by_others(self) -> int:
        """Tokens of requests that do not run here any more, and are still being sent to where they do."""
        held = self.cache.blocks - self.cache.free - sum(request.blocks for request in self.running)
        return max(held, 0) * self.block_tokens

    @staticmethod
    def _peak(spans: list[tuple[int, int]]) -> int:
        """Most tokens held at a time if nobody joins, from each request's remaining and known tokens.

        When a request ends, those with as many or more tokens to come have all grown by what it had to come.
        """
        spans = sorted(spans, reverse=True)
        held = accumulate(known for _, known in spans)
        return max(remaining * number + total for number, ((remaining, _), total) in enumerate(zip(spans, held), 1))  # noqa: B905

    def received_tokens(self, request: Request) -> int:
        """As at admission, nobody is evicted later."""
        return request.end - 1

    def room(self, request: Request) -> str:
        """A prompt must fit into one step, and prompt and output into the cache."""
        if self.max_tokens is not None and request.prompt > self.max_tokens:
            return f"is longer than the {self.max_tokens} tokens of a step, and this engine never cuts a prompt"
        return super().room(request) or (
            "" if request.end <= self.cache.tokens else f"is longer than the KV cache of {self.cache.tokens} tokens"
        )
