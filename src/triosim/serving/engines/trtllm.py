"""TensorRT-LLM's in-flight batching (its documentation): whole prompts join others while tokens and blocks last.

Its cache takes a share of what weights and a full step leave (``free_gpu_memory_fraction`` of ``KvCacheConfig``, 0.9).
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Literal

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request
from triosim.serving.step_times import FRONT_S, TRTLLM, StepHost


@registered
@dataclass
class TrtLlm(Policy):
    """One budget of tokens a step, decodes first.

    Attributes:
        max_running: requests that may run at a time (``max_batch_size``).
        max_tokens: tokens of a step (``max_num_tokens``).
        capacity: ``no-evict`` admits a request only if it fits to its end (GUARANTEED_NO_EVICT); ``max-utilisation`` if
            it fits now; the latest arrivals pause when blocks run out (MAX_UTILIZATION).
        chunked: whether prompts may be cut (chunked context).
        overlap: whether a step is scheduled while another runs (PyTorch's executor; engines that were built do not).
    """

    max_running: int = 2048
    max_tokens: int | None = 8192
    block_tokens: int = 32
    capacity: Literal["no-evict", "max-utilisation"] = "no-evict"
    chunked: bool = False
    overlap: bool = True

    vendors: ClassVar[tuple[str, ...]] = ("NVIDIA",)
    two_attentions: ClassVar[bool] = True  # docs/source/advanced/gpt-attention.md: context and generation phases
    finds_prefixes: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    all_reduce: ClassVar[str] = "trtllm"
    casts_gathered: ClassVar[bool] = True
    free: ClassVar[bool] = True
    step_host: ClassVar[StepHost] = TRTLLM
    keeps_states: ClassVar[str] = "slots"
    library_products: ClassVar[bool] = True  # tensorrt_llm/_torch/modules/linear.py, cublas_scaled_mm: cuBLASLt
    casts_experts: ClassVar[bool] = True  # tensorrt_llm/_torch/model_config.py, get_mxfp4_quant_algo
    overlaps: ClassVar[bool] = True
    front_s: ClassVar[float] = FRONT_S
    fused_casts: ClassVar[frozenset[str]] = frozenset({"all-reduce", "activation", "attention"})

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """As of any policy."""
        super().attach(cache, longest, stages)
        self.ahead = self.ahead and self.overlap

    def schedule(self) -> Batch:
        """The running in order of arrival; then, unless somebody was paused, the waiting."""
        step: Batch = []
        left = self.max_tokens if self.max_tokens is not None else 1 << 62
        before, ready = len(self.waiting), deque(self.ready())
        while ready and left and len(step) < self.per_step:
            request = ready.popleft()
            tokens = min(request.lacks, left)
            while not self.cache.hold(request, request.computed + tokens):
                victim = ready.pop() if ready else request
                self.preempt(victim)
                if victim is request:
                    break
            else:
                step.append((request, tokens))
                left -= tokens
        left = left if len(self.waiting) == before else 0  # nobody joins when somebody was paused
        while left and self.waiting and len(self.running) < self.max_running and len(step) < self.per_step:
            request = self.waiting[0]
            found = self.cache.match(request)
            tokens = min(request.known - found, left)
            if tokens < request.known - found and not self.chunked:
                break
            to_come = request.end - 1 if self.capacity == "no-evict" else found + tokens
            if not self.cache.start(request, to_come):
                break
            self.admit()
            step.append((request, tokens))
            left -= tokens
        return step

    def received_tokens(self, request: Request) -> int:
        """As at admission, nobody is evicted later."""
        return request.end - 1 if self.capacity == "no-evict" else request.known

    def room(self, request: Request) -> str:
        """A prompt that is never cut must fit into one step, and what is recomputed after a pause too."""
        whole = request.prompt if self.capacity == "no-evict" else request.end - 1
        if not self.chunked and self.max_tokens is not None and whole > self.max_tokens:
            return f"is longer than the {self.max_tokens} tokens of a step, and without chunked a prompt is never cut"
        return super().room(request)
