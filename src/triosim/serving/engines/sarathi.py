"""Sarathi-Serve (Agrawal et al. 2024): decodes always run, and prompts fill what they leave of a step's tokens."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request


@registered
@dataclass
class Sarathi(Policy):
    """Decodes first, then prompts that have begun, then new ones, each cut to the tokens that are left.

    Attributes:
        max_running: requests that may run at a time.
        max_tokens: tokens of a step (the chunk).
        watermark: share of all blocks that stays free when a request is admitted.
    """

    max_running: int = 128
    max_tokens: int | None = 512
    watermark: float = 0.01

    steady: ClassVar[bool] = True
    swaps: ClassVar[bool] = True

    def schedule(self) -> Batch:
        """Decodes, begun prompts, new prompts."""
        step: Batch = []
        begun: list[Request] = []
        ready = deque(self.ready())
        while ready and len(step) < self.per_step:
            request = ready.popleft()
            if not request.decoding:
                begun.append(request)
                continue
            while not self.cache.free:  # a decode is run only if a block is free, whether or not it takes one
                victim = ready.pop() if ready else request
                self.preempt(victim)
                if victim is request:
                    break
            else:
                self.cache.hold(request, request.known)
                step.append((request, 1))
        chunk = self.max_tokens if self.max_tokens is not None else sum(r.lacks for r in begun) + self._queued()
        left = max(chunk - len(step), 0)
        for request in begun:
            tokens = min(request.lacks, left)
            if tokens:
                step.append((request, tokens))
                left -= tokens
        return step + self._admitted(left, len(step))

    def _admitted(self, left: int, taken: int) -> Batch:
        step: Batch = []
        keep = self.watermark * self.cache.blocks
        while left and self.waiting and len(self.running) < self.max_running and taken + len(step) < self.per_step:
            request = self.waiting[0]
            if self.cache.free - ceil(request.known / self.block_tokens) < keep:
                break
            self.admit()
            self.cache.start(request, request.known)  # blocks of the whole prompt, however it is cut
            tokens = min(request.lacks, left)
            step.append((request, tokens))
            left -= tokens
        return step

    def _queued(self) -> int:
        return sum(request.known for request in self.waiting)

    def room(self, request: Request) -> str:
        """The whole prompt is held at once, and what is recomputed after an eviction too."""
        blocks = ceil((request.end - 1) / self.block_tokens)
        if self.cache.blocks - blocks < self.watermark * self.cache.blocks:
            return f"is longer than what the watermark leaves of the KV cache of {self.cache.tokens} tokens"
        return super().room(request)
