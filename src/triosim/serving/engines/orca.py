"""Orca (Yu et al. 2022): requests join and leave between steps, and each reserves the longest length it could reach."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request


@registered
@dataclass
class Orca(Policy):
    """Requests that run go on, then whole prompts join; nothing is ever evicted.

    Attributes:
        max_running: requests that may run at a time.
    """

    max_running: int = 128

    speculates: ClassVar[bool] = False
    steady: ClassVar[bool] = True

    def schedule(self) -> Batch:
        """One token for each request that runs, and new prompts while their longest length fits."""
        step: Batch = [(request, request.lacks) for request in self.ready()[: self.per_step]]
        while self.waiting and len(self.running) < self.max_running and len(step) < self.per_step:
            if not self.cache.start(self.waiting[0], self.longest):
                break
            request = self.admit()
            step.append((request, request.lacks))
        return step

    def received_tokens(self, request: Request) -> int:
        """As at admission, nobody is evicted later."""
        return self.longest

    def room(self, request: Request) -> str:
        """The longest length must fit, whatever the request's own is."""
        if self.longest > self.cache.tokens:
            return (
                f"cannot run: the engine reserves {self.longest} tokens for any request, and the KV cache holds "
                f"{self.cache.tokens}"
            )
        return super().room(request)
