"""The model that is served, as kernels of serving engines see it: sizes, types, bytes of weights and of the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import InputError, quoted, unknown
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication, rate
from triosim.serving.kv_cache import LayerGroups
from triosim.serving.states import ServedState
from triosim.sources.modelling import configured

if TYPE_CHECKING:
    from triosim.sources.models._scan import GatedDeltaNet, Mamba2Mixer


@dataclass(frozen=True)
class Precision:
    """How weights are stored and products computed.

    Attributes:
        multiplied: element type that is multiplied.
        stored: element type of the weights of linear layers; the others (embedding, head, norms) have 16 bits.
        scale_bytes: of scales, to an element of a weight.
        of_experts: whether, in a model with experts, only theirs are stored so and the other products have 16 bits.
    """

    multiplied: str
    stored: str
    scale_bytes: float = 0.0
    of_experts: bool = False

    @property
    def weight_bytes(self) -> float:
        """Of an element of a linear layer's weight, its scale included."""
        return DTYPE_BYTES[self.stored] + self.scale_bytes

    @property
    def casts(self) -> bool:
        """Whether activations are cast before a product."""
        return DTYPE_BYTES[self.multiplied] < 2


PRECISIONS = {
    "bf16": Precision("bfloat16", "bfloat16"),
    "fp16": Precision("float16", "float16"),
    "fp8": Precision("float8_e4m3fn", "float8_e4m3fn"),
    "int8": Precision("int8", "int8"),
    "w4a16": Precision("bfloat16", "int4", 2 / 128),
    "mxfp4": Precision("bfloat16", "float4_e2m1", 1 / 32, of_experts=True),
    "nvfp4": Precision("float4_e2m1", "float4_e2m1", 1 / 16),
}
"""Weights by name.  w4a16 has a 16-bit scale for 128 elements (AWQ and GPTQ), mxfp4 one of 8 bits for 32 (OCP
MX), of experts alone where there are any, as GPT-OSS is published (OpenAI, arXiv:2508.10925, section 2.1).  nvfp4 has
one of 8 bits for 16, and activations as narrow (NVIDIA's ModelOpt, of all linear layers but the head)."""

HALVES = ("bfloat16", "float16")
"""Element types of 16 bits, of weights, caches and activations."""


def halves_of(device: Accelerator) -> str:
    """The element type of activations on a device: bfloat16, but float16 where only that has units of its own.

    Servers do so: SGLang takes float16 below compute capability 8.0, and vLLM asks for it (``--dtype half``).

    Raises:
        InputError: the device has no compute peak.
    """
    wide, narrow = (multiplication(device, name).method for name in HALVES)
    if wide is MultiplicationMethod.IMPOSSIBLE:
        return HALVES[narrow is not MultiplicationMethod.IMPOSSIBLE]
    native = wide is MultiplicationMethod.NATIVE or narrow is not MultiplicationMethod.NATIVE
    return HALVES[not native and rate("float16", device) > rate("bfloat16", device)]


def default_weights(device: Accelerator) -> str:
    """Weights where nobody says: of 16 bits, as models are published or as the device multiplies.

    Raises:
        InputError: the device has no compute peak.
    """
    return "bf16" if halves_of(device) == "bfloat16" else "fp16"


PADDED = 1.5
"""How many times as many layers of one kind as of the other still make groups of the larger number (same file as
:func:`layers_of_group`)."""


def layers_of_group(near: int, far: int) -> int:
    """Layers that a group of a cache of two kinds of layers has: as many as there are of the rarer kind, of the other
    where it has less than half as many more (vLLM, ``vllm/v1/core/kv_cache_utils.py``)."""
    return max(near, far) if max(near, far) < PADDED * min(near, far) else min(near, far)


KV_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn", "int8": "int8"}
"""Types of the KV cache by name."""


@dataclass(frozen=True)
class ServedExperts:
    """A layer's mixture of experts.

    Attributes:
        count, chosen: how many there are, and how many a token takes.
        inner: width within one.
        shared: width of what every token passes beside them, 0 where there is none.
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0


@dataclass(frozen=True)
class ServedHeads:
    """Heads of queries that share heads of keys and values.

    Attributes:
        heads, kv_heads: how many of each.
        head: length of one.
        window: positions that a token sees at most, its own among them; 0 for all.
        normed: whether queries and keys are normed head by head.
        gated: whether the product that makes queries makes gates of the results, too.
        sinks: whether each head's softmax has one more score.
    """

    heads: int
    kv_heads: int
    head: int
    window: int = 0
    normed: bool = False
    gated: bool = False
    sinks: bool = False

    def parameters(self, width: int) -> int:
        """Of its products, on a residual stream of so many elements."""
        return width * self.head * ((2 + self.gated) * self.heads + 2 * self.kv_heads)

    def whole_parameters(self, width: int) -> int:
        """Of them those that every device has whole."""
        return 0

    @property
    def between(self) -> int:
        """Elements of a token between its products: queries, results, keys, values and gates."""
        return self.head * ((1 + self.gated) * self.heads + 2 * self.kv_heads)

    @property
    def cached(self) -> tuple[int, int]:
        """Heads of the cache, and elements of a token in each; keys and values together."""
        return self.kv_heads, 2 * self.head


@dataclass(frozen=True)
class ServedLatent:
    """Keys and values of all heads made from one vector of a token, which is what is cached (multi-head latent
    attention, Liu et al., arXiv:2405.04434, section 2.1).

    Attributes:
        heads: of queries.
        rank, query_rank: of what keys and values, and what queries are made from; 0 for queries made directly.
        size, rotated, value: of a head's query and key without positions, with positions, and of its value.
    """

    heads: int
    rank: int
    query_rank: int
    size: int
    rotated: int
    value: int

    window = 0

    def parameters(self, width: int) -> int:
        """Of its products, on a residual stream of so many elements."""
        queries = (self.query_rank or width) * self.heads * (self.size + self.rotated)
        rest = self.rank * self.heads * (self.size + self.value) + self.heads * self.value * width
        return self.whole_parameters(width) + queries + rest

    def whole_parameters(self, width: int) -> int:
        """Of them those that every device has whole: down to the ranks."""
        return width * (self.query_rank + self.rank + self.rotated)

    @property
    def between(self) -> int:
        """Elements of a token between its products: queries, results and latent vectors."""
        return self.heads * (self.size + self.rotated + self.value) + self.query_rank + self.rank + self.rotated

    @property
    def cached(self) -> tuple[int, int]:
        """Heads of the cache, and elements of a token in each; values are a part of the keys."""
        return 1, self.rank + self.rotated


@dataclass(frozen=True)
class ServedLayer:
    """Layers that are alike.

    Attributes:
        count: how many of them the model has.
        attention: theirs; None where they have none.
        inner: width of the feed-forward part, where there are experts that of a dense layer; 0 where there is none.
        experts: in its place; None where there are none.
        state: of fixed size, in place of attention or beside it; None where there is none.
    """

    count: int
    attention: ServedHeads | ServedLatent | None
    inner: int
    experts: ServedExperts | None = None
    state: ServedState | None = None

    @property
    def reduces(self) -> int:
        """Results that devices which share the layer add up: of attention, of the state, of what follows."""
        return (self.attention is not None) + (self.state is not None) + bool(self.inner or self.experts)


@dataclass(frozen=True)
class ServedModel:
    """A decoder.

    Attributes:
        name: as the user typed it.
        width, vocabulary: of the residual stream, and tokens that there are.
        gated: whether feed-forward parts have a gate beside their first product.
        tied: whether the head uses the embedding's weights.
        longest: positions that the model was made for.
        parameters: all of them, tied ones once.
        kinds: its layers by kind, in order of the first of each.
        norms: of a layer on its residual stream.
        state_type: element type in which its states are kept, where its configuration says; ``""`` where it does not.
    """

    name: str
    width: int
    vocabulary: int
    gated: bool
    tied: bool
    longest: int
    parameters: int
    kinds: tuple[ServedLayer, ...]
    norms: int = 2
    state_type: str = ""

    @property
    def layers(self) -> int:
        """Of all kinds."""
        return sum(kind.count for kind in self.kinds)

    @property
    def heads(self) -> int:
        """Of queries; all layers with attention have as many.  Of values of the states, where no layer has any."""
        own = self._attention or self.state
        return own.heads if own else 0

    @property
    def _attention(self) -> ServedHeads | ServedLatent | None:
        return next((kind.attention for kind in self.kinds if kind.attention), None)

    @property
    def attention_layers(self) -> int:
        """Layers with attention, which have a cache."""
        return sum(kind.count for kind in self.kinds if kind.attention)

    @property
    def state(self) -> ServedState | None:
        """What layers with a state of fixed size keep, all the same; None where no layer has one."""
        return next((kind.state for kind in self.kinds if kind.state), None)

    @property
    def state_layers(self) -> int:
        """Layers with a state of fixed size."""
        return sum(kind.count for kind in self.kinds if kind.state)

    @property
    def experts(self) -> ServedExperts | None:
        """Of the layers that have some, None where no layer has."""
        return next((kind.experts for kind in self.kinds if kind.experts), None)

    @property
    def cached(self) -> tuple[int, int]:
        """Heads of a layer's cache, and elements of a token in each; all layers with attention have as many."""
        own = self._attention
        return own.cached if own else (0, 0)

    def alike(self, what: str) -> tuple[ServedLayer, ServedHeads]:
        """The only kind of layer, and its attention.

        Args:
            what: which option needs layers that are alike, with heads of keys and values.

        Raises:
            InputError: there are more, or attention is latent.
        """
        kind = self.kinds[0]
        own = kind.attention
        if len(self.kinds) > 1 or self.state or not isinstance(own, ServedHeads):
            form = "states of fixed size" if self.state else "latent attention"
            form = "layers that differ" if len(self.kinds) > 1 else form
            raise InputError(f"model {quoted(self.name)} has {form}, which {what} does not know: leave it out")
        return kind, own

    def of_one_layer(self) -> ServedModel:
        """The same with one layer, without experts, as what drafts beside it (EAGLE)."""
        return replace(self, kinds=(replace(self.kinds[0], count=1, experts=None),))

    @property
    def linear_parameters(self) -> int:
        """Of all layers' products."""
        parts = [(kind.count, part) for kind in self.kinds for part in (kind.attention, kind.state) if part]
        attention = sum(count * part.parameters(self.width) for count, part in parts)
        return attention + self._ups * self.width * sum(
            kind.count * (kind.experts.shared if kind.experts else kind.inner) for kind in self.kinds
        ) + self.expert_parameters  # fmt: skip

    @property
    def expert_parameters(self) -> int:
        """Of the products of all experts that tokens choose from."""
        return self._ups * self.width * sum(
            kind.count * kind.experts.count * kind.experts.inner for kind in self.kinds if kind.experts
        )  # fmt: skip

    @property
    def inner_of_token(self) -> int:
        """Elements between the feed-forward products that a token has, in the layer that has most."""
        return max(
            kind.experts.chosen * kind.experts.inner + kind.experts.shared if kind.experts else kind.inner
            for kind in self.kinds
        )

    @property
    def _ups(self) -> int:
        return 3 if self.gated else 2

    def dense(self, precision: Precision) -> Precision:
        """How weights other than experts' are stored: as they are where only those of experts have few bits."""
        return PRECISIONS["bf16"] if precision.of_experts and self.experts else precision

    @property
    def expert_layers(self) -> int:
        """Layers whose tokens choose experts."""
        return sum(kind.count for kind in self.kinds if kind.experts)

    def weight_bytes(
        self, precision: Precision, tensor_parallel: int = 1, stages: int = 1, attention_ranks: int = 1
    ) -> float:
        """Of one device: its part of the layers, and of embedding and head on the first and last stage the larger; of
        experts its part of those that all ranks of attention share."""
        rest = self.parameters - self.linear_parameters
        ends = rest if stages == 1 or self.tied else rest / 2
        beside = self.dense(precision).weight_bytes
        experts = self.expert_parameters
        products = experts * precision.weight_bytes / attention_ranks + (self.linear_parameters - experts) * beside
        attention = [(kind.count, kind.attention) for kind in self.kinds if kind.attention]
        whole = sum(count * own.whole_parameters(self.width) for count, own in attention) * beside
        return (products / stages + 2.0 * ends) / tensor_parallel + whole * (1 - 1 / tensor_parallel) / stages

    def kv_bytes(self, kv_type: str, tensor_parallel: int = 1, stages: int = 1) -> float:
        """Of one token on one device; heads of the cache fewer than devices are repeated.

        All layers with attention keep it, also those whose window it has left (:meth:`layer_groups` are of engines that
        do better).
        """
        return self.attention_layers / stages * self.kv_layer_bytes(kv_type, tensor_parallel)

    def kv_layer_bytes(self, kv_type: str, tensor_parallel: int) -> float:
        """Bytes of one token in one layer."""
        heads, elements = self.cached
        return max(heads / tensor_parallel, 1.0) * elements * DTYPE_BYTES[kv_type]

    def kv_block_bytes(self, kv_type: str, groups: LayerGroups, tensor_parallel: int = 1) -> float:
        """Of one token in the layers of a group, on one device."""
        return groups.layers * self.kv_layer_bytes(kv_type, tensor_parallel)

    def kv_kept_bytes(self, tokens: int, kv_type: str, tensor_parallel: int = 1, stages: int = 1) -> float:
        """Of a request with so many tokens on one device, where layers with a window keep no more than that."""
        attention = [(kind.count, kind.attention) for kind in self.kinds if kind.attention]
        places = sum(count * min(tokens, own.window or tokens) for count, own in attention)
        return places / stages * self.kv_layer_bytes(kv_type, tensor_parallel)

    def state_bytes(self, state_type: str, tensor_parallel: int = 1) -> float:
        """Of a sequence in all layers on one device."""
        return self.state_layers * self.state.bytes(state_type, tensor_parallel) if self.state else 0.0

    @property
    def windows(self) -> set[int]:
        """Positions that layers with a window see."""
        return {kind.attention.window for kind in self.kinds if kind.attention and kind.attention.window}

    def layer_groups(self) -> LayerGroups | None:
        """How a cache of groups of layers divides them; None where all layers are of one group.

        None also where windows differ, or more layers see all positions than a window.
        """
        windows = self.windows
        near = sum(kind.count for kind in self.kinds if kind.attention and kind.attention.window)
        far = self.layers - near
        if len(windows) != 1 or not far:
            return None
        size = layers_of_group(near, far)
        return LayerGroups(size, -(-near // size), windows.pop()) if far <= size else None


def served_model(name: str) -> ServedModel:
    """A model by name or by configuration file.

    Raises:
        InputError: there is none, it does not write text token by token, or its layers are of a form that is not
            served.
    """
    family: Any = configured(name).untrained()
    if type(family).__name__ == "GPT":
        attention = ServedHeads(family.n_head, family.n_head, family.n_embd // family.n_head)
        return ServedModel(
            name, family.n_embd, int(family.vocab_size), gated=False, tied=family.tie_word_embeddings,
            longest=family.longest, parameters=int(family.weights().count()),
            kinds=(ServedLayer(family.n_layer, attention, family.inner),),
        )  # fmt: skip
    return _of_decoder(name, family)


def _of_decoder(name: str, family: Any) -> ServedModel:
    """A family that says its parts layer by layer.

    Raises:
        InputError: they are of a form that is not served.
    """
    from triosim.sources.models._decoder import Decoder
    from triosim.sources.models._experts import Experts
    from triosim.sources.models._parts import FeedForward

    if not isinstance(family, Decoder) or not family.writes:
        raise _not_served(name, family, "is no decoder of text")
    if own := family.own_form():
        raise _not_served(name, family, own)
    counted: dict[ServedLayer, int] = {}
    for number in range(family.depth):
        layer = _layer(name, family, number)
        counted[layer] = counted.get(layer, 0) + 1
    kinds = tuple(replace(layer, count=count) for layer, count in counted.items())
    if len({(kind.attention.heads, kind.attention.cached) for kind in kinds if kind.attention}) > 1:
        raise _not_served(name, family, "has layers with different heads")
    if len({kind.state for kind in kinds if kind.state}) > 1:
        raise _not_served(name, family, "has layers with different states of fixed size")
    parts = [family.feed_forward(number) for number in range(family.depth)]
    gated = not any(
        part.gated is False if isinstance(part, Experts)
        else isinstance(part, FeedForward) and not part.packed and len(part.names) != 3 for part in parts
    )  # fmt: skip
    return ServedModel(
        name, family.width, int(family.vocab_size), gated=gated, tied=family.tie_word_embeddings,
        longest=family.longest, parameters=int(family.weights().count()), kinds=kinds, norms=len(family.layout.norms),
        state_type=getattr(family, "state_type", ""),
    )  # fmt: skip


def _layer(name: str, family: Any, number: int) -> ServedLayer:
    """One layer of a decoder."""
    from triosim.sources.models._experts import Experts
    from triosim.sources.models._granite import GraniteFeedForward
    from triosim.sources.models._parts import FeedForward
    from triosim.sources.models._scan import GatedDeltaNet, Mamba2Mixer
    from triosim.sources.models.falcon_h1 import SideBySide

    own: Any = family.attention(number)
    part: Any = family.feed_forward(number)
    state, shared = None, 0
    if isinstance(own, SideBySide):
        state, own = _state(own.mamba), own.attention
    elif isinstance(own, (Mamba2Mixer, GatedDeltaNet)):
        state, own = _state(own), None
    attention = None if own is None else _attention(name, family, own)
    if isinstance(part, GraniteFeedForward):
        shared = part.shared.inner if part.experts and part.shared else 0
        part = part.experts or part.shared
    if isinstance(part, Experts):
        shared = shared or (part.shared.inner if part.shared else 0)
        dense = int(getattr(family, "intermediate_size", part.inner))
        experts = ServedExperts(part.router.experts, part.router.chosen, part.inner, shared)
        return ServedLayer(1, attention, dense, experts, state)
    if part is not None and not isinstance(part, FeedForward):
        raise _not_served(name, family, "has feed-forward parts of their own form")
    return ServedLayer(1, attention, part.inner if part else 0, None, state)


def _attention(name: str, family: Any, own: Any) -> ServedHeads | ServedLatent:
    """That of a layer."""
    from triosim.sources.models._gated_attention import GatedAttention, OutputGatedAttention
    from triosim.sources.models._latent import LatentAttention
    from triosim.sources.models._parts import SelfAttention

    if isinstance(own, LatentAttention):
        return ServedLatent(own.heads, own.rank, own.query_rank, own.size, own.rotated, own.value)
    if isinstance(own, SelfAttention) and not own.unfused:
        window = own.window or getattr(own, "chunk", 0)
        normed = own.norm is not None or getattr(own, "normed", False)
        window = window if 0 < window < family.longest else 0
        gated = isinstance(own, (GatedAttention, OutputGatedAttention))
        return ServedHeads(own.heads, own.groups, own.size, window, normed, gated, own.sinks)
    if isinstance(own, SelfAttention):
        raise _not_served(name, family, "has attention with biases by distance")
    raise _not_served(name, family, "has layers of their own form in place of attention")


def _state(own: Mamba2Mixer | GatedDeltaNet) -> ServedState:
    """Of a layer of Mamba-2 or of gated linear attention."""
    from triosim.sources.models._scan import DELTA_CHUNK, Mamba2Mixer

    sizes = own.heads, own.size, own.groups, own.state, own.kernel
    if isinstance(own, Mamba2Mixer):
        return ServedState(*sizes, own.chunk, normed=own.normed, scaled=own.scaled)
    return ServedState(*sizes, DELTA_CHUNK, delta=True, regrouped=not own.apart)


def _not_served(name: str, family: Any, why: str) -> InputError:
    return InputError(
        f"model {quoted(name)} ({type(family).__name__}) {why}, which is not served: give a decoder, as Llama, Qwen, "
        "Gemma, Mixtral, DeepSeek or GPT"
    )


def precision_of(name: str) -> Precision:
    """By name.

    Raises:
        InputError: there is none.
    """
    if name not in PRECISIONS:
        raise unknown("precision of weights", name, PRECISIONS)
    return PRECISIONS[name]


def kv_type_of(name: str) -> str:
    """Element type of the KV cache by name.

    Raises:
        InputError: there is none.
    """
    if name not in KV_TYPES:
        raise unknown("type of the KV cache", name, KV_TYPES)
    return KV_TYPES[name]
