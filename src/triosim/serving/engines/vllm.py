"""vLLM version 1: one budget of tokens a step, without phases; running requests first, then waiting ones.

Defaults are those of its OpenAI server on NVIDIA devices, versions 0.12 to 0.14:
* tokens and requests of a step, and what a large device is: ``EngineArgs.get_batch_defaults`` of
  ``vllm/engine/arg_utils.py`` (``UsageContext.OPENAI_API_SERVER``; the A100 is none since pull request 17885);
* ``SchedulerConfig`` of ``vllm/config/scheduler.py``: ``policy`` ``"fcfs"``, ``disable_hybrid_kv_cache_manager`` off;
* scheduling ahead: on since 0.14.0 (pull request 27614); the model runner that leaves no gap between steps: version 2,
  for dense models the default since 0.25.0 (pull request 44443), else version 1;
* blocks of 16 tokens and finding prefixes: ``CacheConfig`` of ``vllm/config/cache.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.step_times import FRONT_S, NO_HOST, VLLM_AHEAD, VLLM_WAITING, StepHost

LARGE = 70 * 2**30
"""Bytes of memory from which on its server takes a device for a large one (``get_batch_defaults``)."""


@registered
@dataclass
class Vllm(Policy):
    """Each request computes what it lacks or what is left of the budget, so that long prompts are cut.  A running one
    that finds no block frees those of the latest arrivals, which wait in front of all others and are computed again;
    nobody is admitted in such a step.

    Attributes:
        max_running: requests that may run at a time (``max_num_seqs``); 256, on large devices 1,024.
        max_tokens: tokens of a step (``max_num_batched_tokens``); 2,048, on large devices 8,192.
        priority: whether requests with the lowest priority go first (``scheduling_policy``).
        async_scheduling: whether a step is scheduled while the one before runs; else the device waits for the host.
        model_runner: version of what runs the steps, 1 or 2.
    """

    max_running: int = 256
    max_tokens: int | None = 2048
    priority: bool = False
    hybrid_kv_cache: bool = True
    async_scheduling: bool = True
    model_runner: Literal[1, 2] = 1
    finds_prefixes: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    swaps: ClassVar[bool] = True
    all_reduce: ClassVar[str] = "custom"
    tuned_tiles: ClassVar[str] = "vllm"
    sinks_by_triton: ClassVar[bool] = True
    keeps_states: ClassVar[str] = "blocks"
    fused_casts: ClassVar[frozenset[str]] = frozenset({"norm", "activation"})
    overlaps: ClassVar[bool] = True
    front_s: ClassVar[float] = FRONT_S

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        super().attach(cache, longest, stages)
        self.by_priority, self.ahead = self.priority, self.ahead and self.async_scheduling

    def host(self) -> StepHost:
        """All is hidden where steps are scheduled ahead, but for a gap that the first model runner leaves."""
        return (VLLM_AHEAD if self.model_runner == 1 else NO_HOST) if self.async_scheduling else VLLM_WAITING

    def defaults_on(self, device: str, memory_bytes: float) -> Mapping[str, int]:
        """Larger steps on devices of 70 GiB or more, but for the A100, as its server has them."""
        return {"max_running": 1024, "max_tokens": 8192} if memory_bytes >= LARGE and "A100" not in device else {}

    def schedule(self) -> Batch:
        """The running in order of arrival; then, if nobody had to give way, the waiting."""
        step: Batch = []
        left = self.max_tokens if self.max_tokens is not None else 1 << 62
        preempted, place, ready, hold = False, 0, self.in_order(), self.cache.hold
        last = len(ready)
        while place < last and left:
            request = ready[place]
            place += 1
            tokens = lacks if (lacks := request.known - request.computed) < left else left
            while not hold(request, request.computed + tokens):
                preempted = True
                if last == place:
                    self.preempt(request)
                    break
                last -= 1
                self.preempt(ready[last])
            else:
                step.append((request, tokens))
                left -= tokens
        while self.waiting and left and not preempted and len(self.running) < self.max_running:
            request = self.waiting[0]
            found = self.cache.match(request)
            tokens = min(request.known - found, left)
            if not self.cache.start(request, found + tokens):
                break
            self.admit()
            step.append((request, tokens))
            left -= tokens
        return step
