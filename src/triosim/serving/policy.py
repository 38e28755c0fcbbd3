"""The interface of scheduling policies: who gets how many tokens in the next step of a replica.

A policy sees requests that wait, in order of arrival, and those that run.  Whenever the replica can start a step, it
asks :meth:`Policy.schedule`.  What an answer must keep to is checked by the replica (:mod:`triosim.serving.replica`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal, TypeVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.registry import Registry
from triosim.hardware.accelerator import Accelerator
from triosim.serving.kv_cache import KVCache
from triosim.serving.requests import Request
from triosim.serving.step_times import NO_HOST, StepHost

T = TypeVar("T")

Batch = list[tuple[Request, int]]
"""Requests of one step and how many of the tokens that they lack are computed in it."""

CASTING = ("norm", "all-reduce", "activation", "attention")
"""Kernels that may write 8 bits for the product after them: norms, norms in the kernel that adds up over devices, what
stands between the products of a feed-forward layer, and attention.

* vLLM: ``fuse_norm_quant`` and ``fuse_act_quant`` are on, ``fuse_attn_quant`` is off
  (https://docs.vllm.ai/en/stable/design/fusions/).
* TensorRT-LLM: attention does (``out_scale`` in ``tensorrt_llm/_torch/modules/attention.py``), activations do
  (``_apply_activation`` in ``modules/gated_mlp.py``), and norms in an all-reduce (``RESIDUAL_RMS_NORM_QUANT_FP8`` in
  ``models/modeling_llama.py``); on one device ``static_quantize_e4m3_per_tensor`` is a kernel of its own until a pass
  of April 2026, which needs torch.compile (its pull requests 14629 and 12674).
* SGLang: none on NVIDIA GPUs; its issue 31504 of July 2026 counts the kernels that cast, and the fusion with norms of
  its pull request 32994 is off by default.
"""


EXCHANGES = ("gather", "all-to-all")
"""How tokens go to experts that ranks of data-parallel attention share: all are gathered on all devices and results are
reduced and scattered, or each goes to the devices of its experts.  On the devices of a server the former is what

* vLLM does (``all2all_backend`` is ``allgather_reducescatter``; https://docs.vllm.ai/en/stable/serving/data_parallel_deployment/),
  the latter with ``deepep_high_throughput`` and others that are named;
* SGLang does (``_dp_gather`` of ``layers/dp_attention.py``), the latter with ``--moe-a2a-backend deepep``;
* TensorRT-LLM does without a multi-node NVLink (``AllGatherReduceScatter`` of
  ``_torch/modules/fused_moe/communication/communication_factory.py``), in the type of the products
  (``run_post_quant_allgather`` in ``fused_moe_cutlass.py``).
"""


@dataclass
class Policy(ABC):
    """Schedules the requests of one replica.

    One subclass a file in ``serving/engines``, a dataclass whose fields are its options.

    Attributes:
        max_running: requests that may run at a time.
        max_tokens: tokens that a step may compute, None for any number.
        block_tokens: tokens of a block of the KV cache.
        expert_exchange: one of :data:`EXCHANGES`.
        graph_sizes: of the captured graphs that decodes run in, filled up, as ``1/2/4/8``; ``""``: those of vLLM, in
            which prompts of few tokens run too.
        casts_gathered: whether tokens are cast for the products before they are gathered.
        pipelines: whether the engine can run its steps through several pipeline stages.
        finds_prefixes: whether the engine looks for prompts in its cache unless it is told otherwise.
        radix: whether what it finds them in is a radix tree, not a table of hashes.
        steady: the promise that a step in which all running requests decode is followed by the same until somebody
            arrives, ends or finds no block, so that the replica need not ask.  Options or counters that change with
            every step break it.
        swaps: whether what requests that give way have computed can be kept on the host.
        speculates: whether the engine verifies drafts (:mod:`triosim.serving.speculation`).
        receives: whether the engine can go on with requests whose prompts were computed elsewhere.
        hybrid_kv_cache: whether layers with a window give back what they see no more
            (:class:`triosim.serving.kv_cache.LayerGroups`).
        keeps_states: how it keeps states of fixed size beside the blocks of its cache, one of the ways of
            :mod:`triosim.serving.state_cache`; ``""``: it does not.
        fused_casts: kernels of the engine that write 8 bits where a product of 8 bits follows, of :data:`CASTING`;
            before other such products a kernel of its own casts.
        joins_shared: whether a shared expert is one more of the routed ones where it can be
            (:data:`triosim.serving.kernel_times.JOINED_EXPERTS`).
        library_products: whether a library multiplies 8 bits, not kernels of CUTLASS's that it brings along
            (:attr:`triosim.kernels.work.gemm.Gemm.library`).
        tuned_tiles: whose tables of tiles for products of experts it has
            (:func:`triosim.kernels.physical.tuned_tiles.tuned`); ``""``: none.
        casts_experts: whether tokens have 8 bits where matrix instructions read experts' weights of 4 (data-centre
            Blackwell), not 16.
        two_attentions: whether prompts and decodes of a step have an attention kernel each where FlashAttention-2 runs,
            which serves both in one call.
        sinks_by_triton: whether a kernel of Triton's serves attention with sinks where FlashAttention-2 runs, which
            knows none (:mod:`triosim.serving.triton_attention`).
        step_host: what its host does for each step.
        front_s: seconds from when a client asks until the engine knows of it, and back with the first token: HTTP,
            tokenizer, messages between processes.
        overlaps: whether a step is scheduled as soon as the one before begins, so that the device need not wait: who
            comes while a step runs is not in the next one, but in the one after it.
        all_reduce: its own all-reduces, by name (:mod:`triosim.serving.peer_all_reduce`); ``""``: it takes a library's.
        vendors: of the devices that the engine runs on; all if there are none.
        static: whether the engine's share of the memory is of weights and KV cache alone, and steps use what is left.
        free: whether it is of what weights and a full step leave, and of the KV cache alone.
        waiting: requests that hold nothing, first come first.
        running: admitted requests in order of arrival.
        cache: the replica's KV cache.
        stages: of the pipeline, each of which may have a step in flight.
        longest: tokens, prompt and output together, that a request may have.
        by_priority: whether requests of lower ``priority`` go before others, and evict them.
        per_step: requests in one step where each pipeline stage has its share of those running.
        ahead: whether the engine, as it is set, ``overlaps``; on several pipeline stages none does.
    """

    max_running: int = 128
    max_tokens: int | None = None
    block_tokens: int = 16
    expert_exchange: Literal["gather", "all-to-all"] = "gather"
    graph_sizes: str = ""

    casts_gathered: ClassVar[bool] = False
    pipelines: ClassVar[bool] = True
    finds_prefixes: ClassVar[bool] = False
    radix: ClassVar[bool] = False
    steady: ClassVar[bool] = False
    swaps: ClassVar[bool] = False
    speculates: ClassVar[bool] = True
    receives: ClassVar[bool] = True
    vendors: ClassVar[tuple[str, ...]] = ()
    static: ClassVar[bool] = False
    free: ClassVar[bool] = False
    keeps_states: ClassVar[str] = ""
    fused_casts: ClassVar[frozenset[str]] = frozenset()
    joins_shared: ClassVar[bool] = False
    library_products: ClassVar[bool] = False
    tuned_tiles: ClassVar[str] = ""
    casts_experts: ClassVar[bool] = False
    two_attentions: ClassVar[bool] = False
    sinks_by_triton: ClassVar[bool] = False
    all_reduce: ClassVar[str] = ""
    step_host: ClassVar[StepHost] = NO_HOST
    overlaps: ClassVar[bool] = False
    front_s: ClassVar[float] = 0.0
    hybrid_kv_cache: bool = field(init=False, repr=False, default=False)

    waiting: deque[Request] = field(init=False, repr=False, default_factory=deque)
    running: list[Request] = field(init=False, repr=False, default_factory=list)
    cache: KVCache = field(init=False, repr=False)
    stages: int = field(init=False, repr=False, default=1)
    longest: int = field(init=False, repr=False, default=0)
    by_priority: bool = field(init=False, repr=False, default=False)
    per_step: int = field(init=False, repr=False, default=0)
    ahead: bool = field(init=False, repr=False, default=False)

    def attach(self, cache: KVCache, longest: int, stages: int = 1) -> None:
        """Begin with nothing to do.

        Raises:
            InputError: the engine has no pipelines.
        """
        if stages > 1 and not self.pipelines:
            raise InputError(
                f"the engine {type(self).__name__} runs on one pipeline stage, not {stages}: use tensor parallelism or "
                "another engine"
            )
        self.waiting, self.running = deque(), []
        self.cache, self.longest, self.stages = cache, longest, stages
        self.per_step = max(self.max_running // stages, 1)
        self.ahead = self.overlaps and stages == 1

    @abstractmethod
    def schedule(self) -> Batch:
        """The next step: each request at most once, with 1 to ``request.lacks`` tokens for which it holds blocks.

        Empty if nothing can run now.  Requests that are ``busy`` are in a step on another pipeline stage.
        """

    def room(self, request: Request) -> str:
        """Why a request can never run, as the end of a sentence; empty if it can."""
        if request.end > self.longest:
            return f"is longer than the {self.longest} tokens that the model or --max-length allows"
        if request.end - 1 > (most := self.cache.longest(self.max_tokens)):
            return f"is longer than the KV cache of {most} tokens"
        return ""

    def host(self) -> StepHost:
        """What the engine's host does for each step."""
        return self.step_host

    def graphs(self) -> tuple[int, ...]:
        """The sizes of ``graph_sizes``.

        Raises:
            InputError: they are no ascending whole numbers.
        """
        try:
            sizes = tuple(int(size) for size in self.graph_sizes.split("/")) if self.graph_sizes else ()
        except ValueError:
            sizes = (0,)
        if any(size <= before for before, size in zip((0, *sizes), sizes, strict=False)):
            raise InputError(
                f"graph-sizes {quoted(self.graph_sizes)}: give whole numbers above zero that ascend, as 1/2/4/8"
            )
        return sizes

    def defaults_on(self, device: str, memory_bytes: float) -> Mapping[str, int]:
        """Options that the engine sets by the device that it finds, unless somebody gives them."""
        return {}

    def received_tokens(self, request: Request) -> int:
        """For how many tokens blocks are held when a request comes whose prompt was computed elsewhere."""
        return request.known

    # --- what policies are made of --------------------------------------------------------------------------------

    def ready(self) -> list[Request]:
        """Running requests that are in no step, in order of arrival."""
        return self.running if self.stages == 1 else [request for request in self.running if not request.busy]

    def queue(self, request: Request, first: bool = False) -> None:
        """A request waits: behind all others, before all of them, or where its priority and its arrival put it."""
        if self.by_priority:
            self.waiting.insert(bisect(self.waiting, _rank(request), key=_rank), request)
        elif first:
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def in_order(self) -> list[Request]:
        """As :meth:`ready`, in the order in which they are served; who comes last gives way first."""
        if self.by_priority:
            return sorted(self.ready(), key=_rank)
        return self.running[:] if self.stages == 1 else self.ready()

    def admit(self) -> Request:
        """Take the first waiting request among those that run."""
        request = self.waiting.popleft()
        if self.running and self.running[-1].number > request.number:
            insort(self.running, request, key=_by_arrival)
        else:
            self.running.append(request)
        return request

    def preempt(self, request: Request) -> None:
        """Take back all that a request holds: it waits before all others, and computes again what is not kept on the
        host."""
        self.running.remove(request)
        if self.cache.put_away(request):
            request.away = request.computed
        else:
            request.prefill = request.known
        self.cache.release(request)
        request.computed = 0
        request.restarts += 1
        self.queue(request, first=True)

    def finish(self, request: Request) -> None:
        """A request has all its tokens; called by the replica when the step ends."""
        self.running.remove(request)
        self.cache.release(request)


ENGINES = Registry("triosim.serving.engines", "triosim.serving.engines", "serving engine", Policy)
"""Scheduling policies of tokens by name (``--engine``)."""
IMAGE_ENGINES = Registry("triosim.serving.image_engines", "triosim.serving.image_engines", "engine of images", Policy)
"""Those of diffusion models, whose tokens are denoising steps."""


def fused_casts(engine: str) -> frozenset[str]:
    """Kernels of an engine, by name or file, that write 8 bits for the products after them.

    Raises:
        InputError: there is no such engine, or no such kernel.
    """
    found = frozenset(ENGINES.chosen(engine).fused_casts)
    if unknown := sorted(found - set(CASTING)):
        raise InputError(f"engine {quoted(engine)}: fused_casts has {', '.join(unknown)}: give {', '.join(CASTING)}")
    return found


def _rank(request: Request) -> tuple[int, int]:
    return request.priority, request.number


def _by_arrival(request: Request) -> int:
    return request.number


def engine_on(
    device: Accelerator, name: str, options: Mapping[str, str], engines: Registry[Policy] = ENGINES
) -> Policy:
    """A fresh policy, with the options that were typed and what the engine sets by the device.

    Raises:
        InputError: there is no such engine, or an option is not one of its, or lets it do nothing.
    """
    policy = part(engines, name, options, "engine")
    for option in ("max_running", "max_tokens", "block_tokens"):
        value = getattr(policy, option, None)
        if value is not None and value < 1:
            raise InputError(f"engine {name}: {option.replace('_', '-')} must be at least 1, got {value}")
    given = {option.replace("-", "_") for option in options}
    for option, value in policy.defaults_on(device.name, device.memory_bytes or 0.0).items():
        if option not in given:
            setattr(policy, option, value)
    return policy


def part(registry: Registry[T], name: str, options: Mapping[str, str], what: str) -> T:
    """A registered part, or one of a user's file, with its options.

    Raises:
        InputError: there is none, the file holds something else, or an option is not one of its.
    """
    made = configured(registry.chosen(name), options, f"{what} {name}")
    for key, text in options.items():
        value = getattr(made, key.replace("-", "_"), None)
        if isinstance(value, int | float) and not 0 <= value < 1e15:
            raise InputError(f"{what} {name}: {key} must be a number from 0 up, got {quoted(text)}")
    return made
