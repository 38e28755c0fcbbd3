"""FasterTransformer: a batch is chosen once and runs until all of its requests are done."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request


@registered
@dataclass
class FasterTransformer(Policy):
    """Nobody joins a batch; its requests reserve the longest length and give it back together.

    Attributes:
        max_running: requests that may run at a time, in all batches (one for each pipeline stage).
    """

    max_running: int = 128

    speculates: ClassVar[bool] = False
    receives: ClassVar[bool] = False
    vendors: ClassVar[tuple[str, ...]] = ("NVIDIA",)

    batches: list[list[Request]] = field(init=False, repr=False, default_factory=list)

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """As of any policy; no batch runs."""
        super().attach(cache, longest, stages)
        self.batches = []

    def schedule(self) -> Batch:
        """The next step of a batch that runs, else a new batch."""
        for number, batch in enumerate(self.batches):
            going = [request for request in batch if request.finished < 0]
            if not any(request.busy for request in going):
                self.batches.append(self.batches.pop(number))  # batches take turns
                return [(request, request.lacks) for request in going]
        new: list[Request] = []
        while self.waiting and len(new) < self.per_step and self.cache.start(self.waiting[0], self.longest):
            new.append(self.admit())
        if new:
            self.batches.append(new)
        return [(request, request.lacks) for request in new]

    def finish(self, request: Request) -> None:
        """The batch gives back its blocks when its last request is done."""
        self.running.remove(request)
        batch = next(batch for batch in self.batches if request in batch)
        if all(other.finished >= 0 for other in batch):
            self.batches.remove(batch)
            for other in batch:
                self.cache.release(other)

    def room(self, request: Request) -> str:
        """The longest length must fit, whatever the request's own is."""
        if self.longest > self.cache.tokens:
            return (
                f"cannot run: the engine reserves {self.longest} tokens for any request, and the KV cache holds "
                f"{self.cache.tokens}"
            )
        return super().room(request)
