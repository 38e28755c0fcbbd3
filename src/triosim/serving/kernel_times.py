"""Kernels of a serving engine, priced by the physical models: the work of a layer, of attention and of sampling.

Serving kernels are fewer than a training forward's: queries, keys and values are one product, gate and up are one, the
residual is added by the kernel that normalizes, new keys and values are stored by a small kernel, and only positions
that are sampled get logits.  A prompt's chunk and a batch of decodes attend to a paged cache.

Where products have 8 bits, a kernel of its own casts before each of them, unless the kernel before it writes 8 bits.
Which of an engine's do, its policy says (:attr:`triosim.serving.policy.Policy.fused_casts`).  Where a router reads the
norm too, that writes 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.estimate import Z90, Estimates
from triosim.kernels.physical.attention import family_of, resolved
from triosim.kernels.physical.kinds import Work, price
from triosim.kernels.physical.tuned_tiles import tuned
from triosim.kernels.work.attention import attention
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.kernels.work.stream import CODE, Stream
from triosim.serving import mixed_attention, state_kernels, triton_attention
from triosim.serving.expert_ranks import TOGETHER, ExpertRanks
from triosim.serving.mixed_attention import MixedDevice
from triosim.serving.model import (
    HALVES,
    Precision,
    ServedExperts,
    ServedHeads,
    ServedLatent,
    ServedLayer,
    ServedModel,
    halves_of,
)
from triosim.serving.states import ServedState

if TYPE_CHECKING:
    from triosim.serving.clocked import ThrottledDevice

Seconds = NDArray[np.float64]
Attention = ServedHeads | ServedLatent

JOINED_EXPERTS = 256
"""Experts of a layer that SGLang joins with the shared one: of DeepSeek-V3 and R1, on NVIDIA GPUs, without expert
parallelism (``determine_num_fused_shared_experts`` of its ``models/deepseek_v2.py``)."""
EXPERT_LAUNCHES = 6
"""Kernels that routed experts launch beside one: the choice of experts, two that sort tokens by them, a product, the
activation and the sum (``fused_experts_impl`` of SGLang's ``layers/moe/fused_moe_triton/fused_moe.py``)."""
_VOCABULARY_MULTIPLE = 64
"""Engines pad the rows of an embedding, and so the columns of logits, to a multiple of it
(``DEFAULT_VOCAB_PADDING_SIZE`` of vLLM's and SGLang's ``vocab_parallel_embedding.py``)."""
TILE_ROWS = 64
"""Rows of queries in a tile of FlashAttention's decoding kernels with split keys (``kBlockM``)."""


class KernelErrors(NamedTuple):
    """Errors of whole classes of kernels, in standard deviations: kernels of a class are off together.

    Attributes:
        products: matrix products.
        attention: of prompts and decodes; scans too, which take its place in layers with states.
        others: what is bound by the bytes that it moves.
        network: all-reduces and sends.
        host: what the engine's host takes in a step.
        software: all steps, by what the name of an engine does not tell (:mod:`triosim.serving.software`).
    """

    products: float = 0.0
    attention: float = 0.0
    others: float = 0.0
    network: float = 0.0
    host: float = 0.0
    software: float = 0.0


NOTHING_MOVED = KernelErrors()


def each_moved(ranks: int) -> list[KernelErrors]:
    """One class after another off by a standard deviation; the network only where there are several ranks."""
    return [NOTHING_MOVED._replace(**{name: 1.0}) for name in KernelErrors._fields if name != "network" or ranks > 1]


EIGHT_BITS = "float8_e4m3fn"
"""To which tokens are cast for experts whose weights of 4 bits matrix instructions read."""
WHOLE = "e2e.mean"
"""The figure by which ends are looked for."""


def ends_moved(
    found: Mapping[str, float], moved: Sequence[Mapping[str, float]], errors: Sequence[KernelErrors]
) -> list[KernelErrors]:
    """All classes off together, by which requests take as long as nine of ten times at most, and at least, as if the
    logarithm of that were linear in them.

    Args:
        found: figures by name.
        moved: what each becomes when one class of kernels is off by a standard deviation.
        errors: these, as of :func:`each_moved`.
    """
    slopes = _slopes(WHOLE, found, moved)
    steepest = math.hypot(*slopes)
    shares = np.array([Z90 * slope / steepest if steepest else 0.0 for slope in slopes])
    off = shares @ np.array(errors)
    return [KernelErrors(*off.tolist()), KernelErrors(*(-off).tolist())]


def _slopes(name: str, found: Mapping[str, float], moved: Sequence[Mapping[str, float]]) -> list[float]:
    """By how much the logarithm of a figure grows for each class that is off by a standard deviation."""
    return [math.log(other[name] / found[name]) for other in moved]


def intervals(
    found: Mapping[str, float], moved: Sequence[Mapping[str, float]], first: float = 0.0,
    ends: Sequence[Mapping[str, float]] = (),
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """90 % intervals of figures above zero.

    Classes err apart from each other, and their logarithms are added as if figures were linear in them.  They are not
    where requests queue: a replica that is almost fully used makes them wait many times as long when its steps take a
    little longer, but never less than their own steps when these take less.  So what figures become at the ends counts,
    as many times as their own interval is wider than what their slopes make of those ends.

    Args:
        found: figures by name.
        moved: what each becomes when one class of kernels is off by a standard deviation (:func:`each_moved`).
        first: by how much first tokens may come later beside, in the unit of figures whose names begin with ``ttft``.
        ends: what each becomes when all classes are off together (:func:`ends_moved`); none where figures are linear.
    """
    out = {}
    for name, value in found.items():
        if value > 0 and all(other[name] > 0 for other in (*moved, *ends)):
            slopes = _slopes(name, found, moved)
            width = Z90 * math.hypot(*slopes)
            below, above = width, width
            if ends:
                whole = _slopes(WHOLE, found, moved)
                along = Z90 * sum(map(mul, slopes, whole)) / (math.hypot(*whole) or 1.0)
                if abs(along) > ALIGNED * width:
                    changes = [width / abs(along) * math.log(other[name] / value) for other in ends]
                    below, above = max(0.0, -min(changes)), max(0.0, *changes)
            later = math.log1p(first / value) if name.startswith("ttft") else 0.0
            out[name] = value * math.exp(-below), value * math.exp(math.hypot(above, later))
    return out


ALIGNED = 0.5
"""Part of a figure's interval that its slopes make of the ends from which on these say how it bends: most of it, which
is chosen."""


def _moved(found: Estimates, z: float) -> Seconds:
    """Times whose class is off by so many standard deviations, each by its own spread."""
    return found.seconds * np.exp(z * found.spread / Z90) if z else found.seconds


def _launched_once(each: Seconds, launched: float) -> float:
    """Seconds of one call for all chunks, from those of a call for each and of a call for a single token."""
    return max(float(each.sum()) - (len(each) - 1) * launched, launched)


@dataclass(frozen=True)
class ServingKernels:
    """The kernels of one device of a replica.

    Attributes:
        model: what is served.
        device: that it runs on.
        precision: of weights and products.
        kv_type: element type of the KV cache.
        tensor_parallel: devices that share each layer.
        family: of attention kernels (:data:`triosim.kernels.work.attention.FAMILIES`).
        moved: how far off the models are taken to be.
        experts_apart: whether routed experts are left out, which devices beyond these share.
        expert_ranks: of the devices of ``tensor_parallel``, those with experts of their own; the devices of a rank
            divide each of its experts.
        held: the clock that a power cap or a clock limit leaves; None at the full clock.
        state_type: element type of states of fixed size, where the model has some.
        fused_casts: kernels that write 8 bits for a product of 8 bits after them, as of a policy.
        joins_shared: whether a shared expert is one more of the routed ones, as of a policy.
        library_products: whether a library multiplies 8 bits, as of a policy.
        tuned_tiles: whose tables of tiles it has for products of experts, as of a policy.
        sinks_by_triton: whether attention with sinks has a kernel of its own, as of a policy.
        two_attentions: whether prompts and decodes have a kernel each, as of a policy.
        casts_experts: whether tokens have 8 bits where experts' weights of 4 are read natively, as of a policy.
    """

    model: ServedModel
    device: Accelerator
    precision: Precision
    kv_type: str = "bfloat16"
    tensor_parallel: int = 1
    family: str = "paged"
    moved: KernelErrors = NOTHING_MOVED
    experts_apart: bool = False
    expert_ranks: ExpertRanks = TOGETHER
    held: ThrottledDevice | None = None
    state_type: str = "bfloat16"
    fused_casts: frozenset[str] = frozenset()
    joins_shared: bool = False
    library_products: bool = False
    tuned_tiles: str = ""
    sinks_by_triton: bool = False
    two_attentions: bool = False
    casts_experts: bool = False

    @cached_property
    def halves(self) -> str:
        """Element type of what has 16 bits: that of the weights, else what the device multiplies natively."""
        stored = self.precision.stored
        return stored if stored in HALVES else halves_of(self.device)

    @property
    def multiplied(self) -> str:
        """Element type of products by the weights."""
        return self._multiplied(self.precision)

    def _multiplied(self, precision: Precision) -> str:
        return self.halves if precision.multiplied in HALVES else precision.multiplied

    def _estimates(self, work: Work) -> Estimates:
        """Times of kernels at the clock of the device."""
        found = price(work, self.device)
        return found if self.held is None else replace(found, seconds=self.held.seconds(work, found))

    def _price(self, work: Work, z: float) -> Seconds:
        """The same, whose class is off by so many standard deviations."""
        return _moved(self._estimates(work), z)

    @property
    def reduces(self) -> float:
        """All-reduces of a layer among the devices that share it, of layers that differ the mean: after attention,
        after what keeps a state, and after what follows unless its tokens travel to experts elsewhere."""
        parts = sum(kind.count * kind.reduces for kind in self.model.kinds) / self.model.layers
        return parts - (self.model.expert_layers / self.model.layers if self.experts_apart else 0)

    def _heads(self, own: ServedHeads) -> tuple[float, float]:
        """Query and key heads of one device."""
        return own.heads / self.tensor_parallel, max(own.kv_heads / self.tensor_parallel, 1.0)

    @property
    def _shares(self) -> list[tuple[float, ServedLayer]]:
        """Kinds of layers, and the part of all layers that is of each."""
        layers = self.model.layers
        return [(kind.count / layers, kind) for kind in self.model.kinds]

    def operators(self, tokens: ArrayLike) -> Mapping[str, Seconds]:
        """Each operator of a layer that depends on the number of tokens alone, shape of ``tokens``; where layers differ
        the mean of them."""
        found: dict[str, Seconds] = {}
        for share, kind in self._shares:
            for name, seconds in self._operators(kind, np.asarray(tokens, np.float64)).items():
                found[name] = found.get(name, 0.0) + share * seconds
        return found

    @cached_property
    def launches(self) -> float:
        """Kernels of a layer beside its attention, or the update of its state; of layers that differ the mean."""
        one = np.ones(1)
        return sum(share * len(self._operators(kind, one)) for share, kind in self._shares)

    @cached_property
    def eager_launches(self) -> float:
        """Kernels of a layer that an engine launches one by one where no graph holds them, all-reduces left out; of
        layers that differ the mean.  Beside those of :attr:`launches`: attention, norms of queries and of keys, which
        are a kernel each, casts, and what routed experts take (:data:`EXPERT_LAUNCHES`)."""
        total = self.launches + 1.0
        eight = DTYPE_BYTES[self._multiplied(self.model.dense(self.precision))] == 1
        for share, kind in self._shares:
            own, casts = kind.attention, 0
            if own is not None:
                latent = isinstance(own, ServedLatent)
                total += share * (isinstance(own, ServedLatent) or own.normed)
                casts += (1 + latent) * (not self._norms_cast) + ("attention" not in self.fused_casts)
            if kind.experts is not None:
                total += share * (EXPERT_LAUNCHES + 2 * eight)
            else:
                casts += (not self._norms_cast) + ("activation" not in self.fused_casts)
            total += share * casts * eight
        return total

    def _operators(self, kind: ServedLayer, n: NDArray[np.float64]) -> dict[str, Seconds]:
        """Those of a kind of layer."""
        model, own = self.model, kind.attention
        size = n * model.width
        norm = self._stream("layer_norm", 2 * size, 2 * size, n, model.width)
        cast = self._stream("layer_norm", 2 * size, size + self._left(self._norms_cast) * size, n, model.width)
        found = {"input_norm": cast}
        if own is not None:
            found |= self._latent(own, n) if isinstance(own, ServedLatent) else self._grouped(own, n)
        if kind.state is not None:
            found |= self._stateful(kind.state, n)
        if model.norms > 1:
            found["post_norm"] = (model.norms - 2) * norm + (cast if kind.experts is None else norm)
        if kind.experts is None:
            return found | (self._feed_forward(n, kind.inner / self.tensor_parallel) if kind.inner else {})
        return found | self._experts(n, kind.experts)

    def _grouped(self, own: ServedHeads, n: NDArray[np.float64]) -> dict[str, Seconds]:
        """What surrounds attention of grouped heads."""
        heads, kv_heads = self._heads(own)
        query, keys = heads * own.head, kv_heads * own.head
        made = query + 2 * keys + (query if own.gated else 0)
        found = {"qkv": self._product(n, made, self.model.width, apart=not self._norms_cast)}
        if own.normed:
            found["head_norm"] = self._stream(
                "layer_norm", n * (query + keys), n * (query + keys), n * (heads + kv_heads), own.head
            )
        if own.gated:
            found["attention_gate"] = self._stream("elementwise", 2 * n * query, n * query)
        return found | {
            "rotary": self._stream("elementwise", n * (query + keys), n * (query + keys)),
            "kv_store": self._stream("elementwise", 2 * n * keys, 2 * n * keys),
            "attention_output": self._product(n, self.model.width, query, apart="attention" not in self.fused_casts),
        }

    def _stateful(self, own: ServedState, n: NDArray[np.float64]) -> dict[str, Seconds]:
        """What surrounds the scan or the update of a state.

        The product of steps and rates of the delta rule is one of its own, and their decays a kernel.  Gates and norms
        of Mamba-2 are of its groups, those of the delta rule of its heads.
        """
        heads, groups = own.shares(self.tensor_parallel)
        values, made = own.values(self.tensor_parallel), own.made(self.tensor_parallel)
        if own.delta:
            found = {
                "in_proj": self._product(n, made - 2 * heads, self.model.width, apart=not self._norms_cast)
                + self._product(n, 2 * heads, self.model.width, apart=False),
                "decays": self._stream("elementwise", 2 * n * heads, 4 * n * heads),  # of which results have 32 bits
            }
        else:
            found = {"in_proj": self._product(n, made, self.model.width, apart=not self._norms_cast)}
        if own.regrouped or own.scaled:
            found["in_proj_order" if own.regrouped else "in_proj_scale"] = self._stream(
                "elementwise", n * made, n * made
            )
        rows = heads if own.delta else groups
        gated = (
            self._stream("register_norm", 2 * n * values, n * values, n * rows, round(values / rows)) if own.normed
            else self._stream("elementwise", 2 * n * values, n * values)
        )  # fmt: skip
        return found | {"gated_norm": gated, "out_proj": self._product(n, self.model.width, values)}

    def _latent(self, own: ServedLatent, n: NDArray[np.float64]) -> dict[str, Seconds]:
        """What surrounds latent attention.

        The products down to the ranks are one, on every device whole.  What turns latent vectors into keys and values
        of heads takes the same work whether they are written out, as for prompts, or the queries and results of decodes
        are turned instead.
        """
        width, heads, both = self.model.width, own.heads / self.tensor_parallel, own.rank + own.rotated
        queries, apart = heads * (own.size + own.rotated), not self._norms_cast
        found: dict[str, Seconds] = {}
        if own.query_rank:
            ranks = own.query_rank + own.rank
            found["down"] = self._product(n, own.query_rank + both, width, apart=apart)
            found["latent_norm"] = self._stream("layer_norm", n * ranks, n * ranks, 2 * n, ranks // 2)
            found["queries"] = self._product(n, queries, own.query_rank, apart=apart)
        else:
            found["down"] = self._product(n, queries + both, width, apart=apart)
            found["latent_norm"] = self._stream("layer_norm", n * own.rank, n * own.rank, n, own.rank)
        turned = n * (heads + 1) * own.rotated
        return found | {
            "rotary": self._stream("elementwise", turned, turned),
            "kv_store": self._stream("elementwise", n * both, n * both),
            "heads": self._product(n, heads * (own.size + own.value), own.rank, apart=False),
            "attention_output": self._product(n, width, heads * own.value, apart="attention" not in self.fused_casts),
        }

    def _feed_forward(self, n: NDArray[np.float64], inner: float, routed: bool = False) -> dict[str, Seconds]:
        ups, fused = 2 if self.model.gated else 1, "activation" in self.fused_casts
        return {
            "up": self._product(n, ups * inner, self.model.width, apart=routed or not self._norms_cast),
            "activation": self._stream("elementwise", ups * n * inner, self._left(fused) * n * inner),
            "down": self._product(n, self.model.width, inner, apart=not fused),
        }

    def _experts(self, n: NDArray[np.float64], own: ServedExperts) -> dict[str, Seconds]:
        """The router, the grouped products of the experts that are chosen, and what every token passes.

        Only the weights of experts that are chosen are read (:class:`triosim.serving.expert_ranks.ExpertRanks`).
        """
        model = self.model
        router = gemm(n, np.full(n.shape, own.count), np.full(n.shape, model.width), self.halves)
        found = {
            "router": self._price(router, self.moved.products)
            + self._stream("softmax", n * own.count, 2 * n * own.chosen, n, own.count),
        }
        joined = self._joins_shared(own)
        if not self.experts_apart:
            inner = own.inner * self.expert_ranks.ranks / self.tensor_parallel
            found["experts"] = self._routed(n, own, inner, self.expert_ranks, beside=1.0 if joined else 0.0)
        if own.shared and not joined:
            always = self._feed_forward(n, own.shared / self.tensor_parallel, routed=True)
            found |= {f"shared_{name}": seconds for name, seconds in always.items()}
        return found

    def _joins_shared(self, own: ServedExperts) -> bool:
        """Whether every token chooses the shared expert among the routed ones, in the same call."""
        alike = own.shared == own.inner and own.count == JOINED_EXPERTS
        together = not self.experts_apart and self.expert_ranks.ranks == 1
        return self.joins_shared and alike and together and self.device.vendor in ("NVIDIA", "")

    def _routed(
        self, n: NDArray[np.float64], own: ServedExperts, inner: float, ranks: ExpertRanks, beside: float = 0.0
    ) -> Seconds:
        """The grouped products that so many tokens choose, on the fullest of the devices that share the experts, each
        with so much of the inner width of its own; ``beside`` these, experts that all tokens choose."""
        stored = self.precision
        family = self._experts_family(stored.stored)
        multiplied = EIGHT_BITS if family == "native" and self.casts_experts else self._multiplied(stored)
        local = np.full(n.shape, own.count / ranks.ranks + beside)
        tiles = stored.weight_bytes == 2 and tuned(self.tuned_tiles, self.device.name, local, np.full(n.shape, inner))
        calls = experts(
            ranks.rows(n, own) / own.chosen, own.chosen + beside, self.model.width, inner,
            ranks.touched(n, own) + beside, dtype=multiplied, weight_dtype=stored.stored, family=family,
            gated=self.model.gated, chance=True, tuned=tiles,
        )  # fmt: skip
        calls = replace(calls, weight_bytes=np.full(len(calls), stored.weight_bytes))
        return self._price(calls, self.moved.products)

    def _experts_family(self, stored: str) -> str:
        """Kernels of products by weights of that type; AMD's GPUs before CDNA4 have no instruction that reads 4-bit
        floats, and vLLM takes Triton's there (``get_mxfp4_backend`` of its ``quantization/mxfp4.py``).  On Blackwell's
        data-centre dies it, SGLang and TensorRT-LLM have kernels whose instructions read them (ibid.)."""
        if DTYPE_BYTES[stored] >= 1:
            return "triton"
        if self._multiplied(self.precision) == "float4_e2m1":
            return "cutedsl"
        if stored == "float4_e2m1" and family_of(self.device) == "trtllm":
            return "native"
        known = "float4_e2m1" in self.device.peak_flops or stored != "float4_e2m1"
        return "marlin" if known or self.device.vendor != "AMD" else "upcast"

    def routed(self, tokens: ArrayLike, ranks: ExpertRanks) -> Seconds:
        """Seconds of the routed experts of all layers on the fullest of the devices that share them, each with whole
        ones.

        Args:
            tokens: that choose, on all devices.
            ranks: the devices.
        """
        n = np.asarray(tokens, np.float64)
        total = np.zeros(n.shape)
        for kind in self.model.kinds:
            if kind.experts is not None:
                total += kind.count * self._routed(n, kind.experts, kind.experts.inner, ranks)
        return total

    def layer(self, tokens: ArrayLike) -> Seconds:
        """All of :meth:`operators`."""
        return np.asarray(sum(self.operators(tokens).values()), np.float64)

    def embedding(self, tokens: ArrayLike) -> Seconds:
        """Rows of the embedding, and the last norm."""
        n = np.asarray(tokens, np.float64)
        size = n * self.model.width
        return self._stream("elementwise", size, size) + self._stream("layer_norm", 2 * size, size, n, self.model.width)

    def sampling(self, sampled: ArrayLike) -> Seconds:
        """Logits of so many positions in 16 bits, and a token of each: the sampler reads them as float32 and takes the
        largest."""
        n = np.asarray(sampled, np.float64)
        own = math.ceil(self.model.vocabulary / _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE / self.tensor_parallel
        width = np.full(n.shape, self.model.width)
        product = gemm(n, np.full(n.shape, own), width, self.halves)
        logits = self._price(product, self.moved.products)
        size = n * self.model.vocabulary
        return (
            logits
            + self._stream("elementwise", size, 2 * size)
            + self._stream("softmax", 2 * size, 2 * n, n, 2 * self.model.vocabulary)
        )

    def joining(self, tokens: ArrayLike) -> Seconds:
        """The product that makes one hidden state of two (EAGLE)."""
        return self._product(
            np.asarray(tokens, np.float64), self.model.width / self.tensor_parallel, 2 * self.model.width
        )

    def residual(self, tokens: ArrayLike) -> Seconds:
        """A product of the model's width, and what is added to it (a head of Medusa)."""
        n = np.asarray(tokens, np.float64)
        columns, inner = np.full(n.shape, self.model.width / self.tensor_parallel), np.full(n.shape, self.model.width)
        product = self._price(gemm(n, columns, inner, self.halves), self.moved.products)
        size = n * self.model.width
        return product + self._stream("elementwise", 2 * size, size)

    def adapted(self, tokens: int, adapters: int, rank: int) -> float:
        """Seconds of what adapters add to a layer: for each group of products a kernel down to the rank and one up.

        Args:
            tokens: of the step, each with an adapter.
            adapters: different ones among them.
            rank: of each.
        """
        model, (kind, own) = self.model, self.model.alike("--lora")
        heads, kv_heads = self._heads(own)
        query, keys = heads * own.head, kv_heads * own.head
        inner = kind.inner / self.tensor_parallel
        groups = (  # what goes in, how many products, what comes out of all
            (model.width, 3, query + 2 * keys),
            (query, 1, float(model.width)),
            (model.width, 2 if model.gated else 1, (2 if model.gated else 1) * inner),
            (inner, 1, float(model.width)),
        )
        down_in = np.array([tokens * come + adapters * rank * come * count for come, count, _ in groups])
        between = np.array([float(tokens * rank * count) for _, count, _ in groups])
        leave = np.array([tokens * out for _, _, out in groups])
        up_in = between + leave + np.array([adapters * rank * out for _, _, out in groups])
        down, up = self._stream("elementwise", down_in, between), self._stream("elementwise", up_in, leave)
        return float(down.sum() + up.sum())

    def passes(self, queries: int) -> int:
        """How often decode attention reads the keys when each sequence has so many queries: a tile of its kernel has
        :data:`TILE_ROWS` rows, of the heads that share a key head and their queries."""
        kv_heads, _ = self.model.cached
        shared = self.model.heads / self.tensor_parallel / max(kv_heads / self.tensor_parallel, 1.0)
        return math.ceil(shared * queries / TILE_ROWS) // max(math.ceil(shared / TILE_ROWS), 1)

    def decode(self, sequences: ArrayLike, keys: ArrayLike) -> Seconds:
        """Attention of one layer for sequences with so many keys each, the new one included; of layers that differ the
        mean.  The update of its state, where it has one, is of the same."""
        count, length = np.asarray(sequences, np.float64), np.asarray(keys, np.float64)
        return self._mean(lambda own: self._decode(own, count, length)) + self._states(self._updated, count, length)

    def prefill(self, tokens: ArrayLike, cached: ArrayLike) -> Seconds:
        """Attention of one layer for a chunk of a prompt after what is cached of it; of layers that differ the mean.
        The scan to its state, where it has one, is of the same."""
        n, before = np.asarray(tokens, np.float64), np.asarray(cached, np.float64)
        return self._mean(lambda own: self._prefill(own, n, before)) + self._states(self._scanned, n, before)

    def _mean(self, price: Callable[[Attention], Seconds]) -> Seconds:
        """Over all layers of what depends on their attention, which is priced once for each kind of it."""
        shares: dict[Attention, float] = {}
        for share, kind in self._shares:
            if kind.attention is not None:
                shares[kind.attention] = shares.get(kind.attention, 0.0) + share
        return np.asarray(sum(share * price(own) for own, share in shares.items()), np.float64)

    def _states(
        self, price: Callable[[ServedState, NDArray[np.float64]], Seconds], sizes: NDArray[np.float64],
        beside: NDArray[np.float64],
    ) -> Seconds:  # fmt: skip
        """Over all layers of what depends on their states and on ``sizes`` alone, in the shape of both columns."""
        shape, own = np.broadcast_shapes(sizes.shape, beside.shape), self.model.state
        if own is None:
            return np.zeros(shape)
        known = distinct(np.ravel(sizes))
        seconds = price(own, known)[np.searchsorted(known, sizes)]
        return np.broadcast_to(self.model.state_layers / self.model.layers * seconds, shape)

    def _updated(self, own: ServedState, sequences: NDArray[np.float64]) -> Seconds:
        """The update of a layer's states by one token of each sequence."""
        kernels = state_kernels.update(own, sequences, self.tensor_parallel, DTYPE_BYTES[self.state_type])
        shifted, updated = (self._price(work, self.moved.others) for work in kernels)
        return np.asarray(shifted + state_kernels.updating(own, updated), np.float64)

    def _scanned(self, own: ServedState, tokens: NDArray[np.float64]) -> Seconds:
        """The scan of a layer for a chunk of a prompt."""
        item = DTYPE_BYTES[self.state_type]
        kernels = state_kernels.scan(own, tokens, self.tensor_parallel, item, self.halves)
        moved = [self.moved.others if isinstance(work, Stream) else self.moved.attention for work in kernels]
        return np.asarray(sum(self._price(work, z) for work, z in zip(kernels, moved, strict=True)), np.float64)

    def _decode(self, own: Attention, sequences: NDArray[np.float64], keys: NDArray[np.float64]) -> Seconds:
        if isinstance(own, ServedLatent):  # all heads read the one vector of a token
            head = own.rank + own.rotated
            return self._attention(sequences, 1.0, keys, (own.heads, 1, head), head_v=own.rank, latent=True)
        return self._attention(sequences, 1.0, keys, (own.heads, own.kv_heads, own.head), window=own.window)

    def _prefill(self, own: Attention, tokens: NDArray[np.float64], cached: NDArray[np.float64]) -> Seconds:
        if isinstance(own, ServedLatent):  # keys and values of what is cached are written out too
            sizes = (own.heads, own.heads, own.size + own.rotated)
            seconds = self._attention(1.0, tokens, tokens + cached, sizes, head_v=own.value)
            columns = own.heads / self.tensor_parallel * (own.size + own.value)
            again = self._product(np.maximum(np.broadcast_to(cached, seconds.shape), 1.0), columns, own.rank)
            return seconds + np.where(cached > 0, again, 0.0)
        sizes = (own.heads, own.kv_heads, own.head)
        return self._attention(1.0, tokens, tokens + cached, sizes, window=own.window)

    @property
    def one_call(self) -> bool:
        """Whether the engine's kernel serves a step's prompts and decodes in one call (FlashAttention-2, on GPUs)."""
        family = resolved(self.family, self.device)
        return self.device.kind in GPUS and family in ("flash2", "paged") and not self.two_attentions

    def _one_call_of(self, own: ServedHeads) -> tuple[MixedDevice, float]:
        """The device as the one call uses it, and how far off that is taken to be: by the spread of prompts' attention
        on this device."""
        heads, kv_heads = self._heads(own)
        on = MixedDevice.of(self.device, heads, kv_heads, own.head, DTYPE_BYTES[self.kv_type], self.halves)
        found = price(attention(1, 256, 256, heads, kv_heads, own.head, self.halves), self.device)
        if self.held is not None:
            on = replace(on, step_s=on.step_s / self.held.prompts)
        return on, math.exp(self.moved.attention * float(found.spread[0]) / Z90)

    @cached_property
    def _one_calls(self) -> dict[Attention, tuple[MixedDevice, float]]:
        """Of the kinds of attention for which there is one."""
        own = [kind.attention for kind in self.model.kinds if kind.attention]
        return {one: self._one_call_of(one) for one in own if isinstance(one, ServedHeads) and not one.window}

    def together(self, chunks: Sequence[tuple[int, int]], decodes: int, context: float) -> float:
        """Seconds of a layer's attention for a step's chunks (tokens, cached) and decodes (their number, mean keys); of
        layers that differ the mean.

        One call where the kernel serves both, else one for all chunks and one for the decodes.  Scans and updates of
        states, which are kernels of their own in any case, come to it.
        """
        attention = float(self._mean(lambda own: np.array(self._together(own, chunks, decodes, context))))
        return attention + self.states(chunks, decodes) if self.model.state else attention

    def states(self, chunks: Sequence[tuple[int, int]], decodes: int) -> float:
        """Seconds in which a layer scans a step's chunks and updates the states of its decodes; of all layers the
        mean."""
        none = np.zeros(1)
        total = float(self._states(self._updated, np.array([float(decodes)]), none)[0]) if decodes else 0.0
        if chunks:
            each = self._states(self._scanned, np.array([float(tokens) for tokens, _ in chunks]), none)
            total += _launched_once(each, float(self._states(self._scanned, np.ones(1), none)[0]))
        return total

    @cached_property
    def _sinks_factors(self) -> dict[Attention, float]:
        """Of the kinds of attention that Triton's kernel for sinks serves: by what it is slower than at the full clock,
        and off."""
        if not (self.sinks_by_triton and triton_attention.runs_on(self.device)):
            return {}
        own = [one.attention for one in self.model.kinds if isinstance(one.attention, ServedHeads)]
        slower = 1.0 if self.held is None else 1 / self.held.prompts
        return {one: slower * self._one_call_of(one)[1] for one in own if one.sinks}

    def _together(self, own: Attention, chunks: Sequence[tuple[int, int]], decodes: int, context: float) -> float:
        if chunks and isinstance(own, ServedHeads) and (factor := self._sinks_factors.get(own)) is not None:
            heads, kv_heads = self._heads(own)
            found = triton_attention.steps(chunks, decodes, context, heads / kv_heads, own.window)
            return factor * triton_attention.seconds(self.device, self.halves, kv_heads, own.head, found)
        if self.one_call and chunks and own in self._one_calls:
            on, factor = self._one_calls[own]
            work = mixed_attention.work_of(chunks, decodes, context)
            return float(mixed_attention.seconds(work, on, mixed_attention.constants())) * factor
        total = float(self._decode(own, np.array([float(decodes)]), np.array([context]))[0]) if decodes else 0.0
        if chunks:
            sizes, cached = (np.array(column, np.float64) for column in zip(*chunks, strict=True))
            each = self._prefill(own, sizes, cached)
            launched = float(self._prefill(own, np.ones(1), np.zeros(1))[0])
            total += _launched_once(each, launched)
        return total

    def _attention(
        self, batch: ArrayLike, queries: ArrayLike, keys: ArrayLike, sizes: tuple[int, int, int], *,
        head_v: int | None = None, window: int = 0, latent: bool = False,
    ) -> Seconds:  # fmt: skip
        """One call for each row; ``sizes`` are heads of queries and of keys, of all devices, and the length of one."""
        heads, kv_heads, head = sizes
        size, count, length = np.broadcast_arrays(batch, queries, keys)
        work = attention(
            size, count, length, heads / self.tensor_parallel, max(kv_heads / self.tensor_parallel, 1.0), head,
            self.halves, head_v=head_v, window=float(window), latent=latent,
            kv_dtype=None if self.kv_type in HALVES else self.kv_type, family=self.family,
        )  # fmt: skip
        return self._price(work, self.moved.attention)

    @property
    def _norms_cast(self) -> bool:
        """Whether norms write 8 bits for the products after them; some only in the kernel that adds up over devices."""
        return "norm" in self.fused_casts or ("all-reduce" in self.fused_casts and self.tensor_parallel > 1)

    def _left(self, casts: bool) -> float:
        """What a kernel writes for the product after it, of 16 bits."""
        return 0.5 * DTYPE_BYTES[self._multiplied(self.model.dense(self.precision))] if casts else 1.0

    def _product(self, rows: NDArray, columns: float, inner: float, apart: bool = True) -> Seconds:
        """By weights as stored; ``apart``: a kernel of its own casts what they multiply, where that has 8 bits."""
        own = self.model.dense(self.precision)
        columns_of, inner_of = np.full(rows.shape, columns), np.full(rows.shape, inner)
        work = gemm(
            rows, columns_of, inner_of, self._multiplied(own), casts=own.casts and apart, library=self.library_products
        )
        stored = np.full(len(work), own.weight_bytes)
        return self._price(replace(work, b_bytes=stored), self.moved.products)

    def _stream(
        self, kind: str, read: NDArray, written: NDArray, rows: NDArray | None = None, length: int = 0
    ) -> Seconds:
        """Elements of 16 bits that a kernel reads and writes; ``rows`` of ``length`` elements are summed over."""
        ones = np.ones(len(read))
        work = Stream(
            np.full(len(read), CODE[kind], np.int8), 2.0 * read, 2.0 * written, ones if rows is None else rows,
            2.0 * length * ones, ones,
        )  # fmt: skip
        return self._price(work, self.moved.others)
