"""vLLM as published (Kwon et al. 2023): a step is either whole prompts or decodes, and prompts go first."""

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
class Vllm2023(Policy):
    """Prompts are never cut; a request whose decode finds no block free evicts the latest arrival.

    Attributes:
        max_running: requests that may run at a time.
        max_tokens: requests of a step times the longest of their prompts (they are padded to it).
        watermark: share of all blocks that stays free when a request is admitted.
        padded: whether prompts of a step are padded to the longest of them.
    """

    max_running: int = 128
    max_tokens: int | None = 4096
    watermark: float = 0.01

    padded: ClassVar[bool] = True
    speculates: ClassVar[bool] = False
    steady: ClassVar[bool] = True
    swaps: ClassVar[bool] = True

    def schedule(self) -> Batch:
        """Prompts if any can be admitted, else decodes."""
        return self._prompts() or self._decodes()

    def _prompts(self) -> Batch:
        step: Batch = []
        longest, together, keep = 0, 0, self.watermark * self.cache.blocks
        while self.waiting and len(self.running) < self.max_running and len(step) < self.per_step:
            request = self.waiting[0]
            if request.away:  # no prompt begins before those come back that gave way
                break
            longest, together = max(longest, request.known), together + request.known
            tokens = (len(step) + 1) * longest if self.padded else together
            blocks = ceil(request.known / self.block_tokens)
            if tokens > (self.max_tokens or tokens) or self.cache.free - blocks < keep:
                break
            self.admit()
            self.cache.start(request, request.known)
            step.append((request, request.lacks))
        return step

    def _decodes(self) -> Batch:
        step: Batch = []
        ready = deque(self.ready())
        running = len(self.running)
        while ready and len(step) < self.per_step:
            request = ready.popleft()
            while not self.cache.free:  # a decode is run only if a block is free, whether or not it takes one
                victim = ready.pop() if ready else request
                self.preempt(victim)
                if victim is request:
                    break
            else:
                self.cache.hold(request, request.known)
                step.append((request, 1))
        if len(self.running) == running:
            step += self._back(len(step))
        return step

    def _back(self, taken: int) -> Batch:
        """Those whose blocks are on the host, unless somebody had to give way."""
        step: Batch = []
        keep = self.watermark * self.cache.blocks
        while self.waiting and self.waiting[0].away and len(self.running) < self.max_running:
            request = self.waiting[0]
            blocks = ceil(request.known / self.block_tokens)
            if self.cache.free - blocks < keep or taken + len(step) == self.per_step:
                break
            self.admit()
            self.cache.start(request, request.known)
            step.append((request, 1))
        return step

    def room(self, request: Request) -> str:
        """A prompt must fit into one step, and what is recomputed after an eviction too."""
        if self.max_tokens is not None and request.end - 1 > self.max_tokens:
            return f"is longer than the {self.max_tokens} tokens of a step, and this engine never cuts a prompt"
        blocks = ceil((request.end - 1) / self.block_tokens)
        if self.cache.blocks - blocks < self.watermark * self.cache.blocks:
            return f"is longer than what the watermark leaves of the KV cache of {self.cache.tokens} tokens"
        return super().room(request)
