"""The model that is served, as kernels of serving engines see it: sizes, types, bytes of weights and of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import InputError, quoted, unknown
from triosim.sources.modelling import configured


@dataclass(frozen=True)
class Precision:
    """How weights are stored and products computed.

    Attributes:
        multiplied: element type that is multiplied.
        stored: element type of the weights of linear layers; the others (embedding, head, norms) have 16 bits.
        scale_bytes: of scales, to an element of a weight.
    """

    multiplied: str
    stored: str
    scale_bytes: float = 0.0

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
    "mxfp4": Precision("bfloat16", "float4_e2m1", 1 / 32),
}
"""Weights by name.  w4a16 has a 16-bit scale for 128 elements (AWQ and GPTQ), mxfp4 one of 8 bits for 32 (OCP MX)."""

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
class ServedModel:
    """A decoder of equal layers.

    Attributes:
        name: as the user typed it.
        layers, width, heads, kv_heads, head, inner, vocabulary: sizes; head is the length of one, inner the width of
            the feed-forward part.
        gated: whether the feed-forward part has a gate beside its first product.
        tied: whether the head uses the embedding's weights.
        longest: positions that the model was made for.
        parameters: all of them, tied ones once.
        experts: in place of the feed-forward part; None where there are none.
        norms: of a layer on its residual stream.
        head_norms: whether queries and keys are normed head by head.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    gated: bool
    tied: bool
    longest: int
    parameters: int
    experts: ServedExperts | None = None
    norms: int = 2
    head_norms: bool = False

    @property
    def linear_parameters(self) -> int:
        """Of all layers' products."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.kv_heads)
        inner = self.inner
        if own := self.experts:
            inner = own.count * own.inner + own.shared
        return self.layers * (attention + self.width * inner * (3 if self.gated else 2))

    @property
    def inner_of_token(self) -> int:
        """Elements between the feed-forward products that a token has."""
        own = self.experts
        return self.inner if own is None else own.chosen * own.inner + own.shared

    def weight_bytes(self, precision: Precision, tensor_parallel: int = 1, stages: int = 1) -> float:
        """Of one device: its part of the layers, and of embedding and head on the first and last stage the larger."""
        rest = self.parameters - self.linear_parameters
        ends = rest if stages == 1 or self.tied else rest / 2
        return (self.linear_parameters * precision.weight_bytes / stages + 2.0 * ends) / tensor_parallel

    def kv_bytes(self, kv_type: str, tensor_parallel: int = 1, stages: int = 1) -> float:
        """Of one token on one device; key heads fewer than devices are repeated."""
        heads = max(self.kv_heads / tensor_parallel, 1.0)
        return 2 * self.layers / stages * heads * self.head * DTYPE_BYTES[kv_type]


def served_model(name: str) -> ServedModel:
    """A model by name or by configuration file.

    Raises:
        InputError: there is none, it does not write text token by token, or its layers are of a form that is not
            served.
    """
    family: Any = configured(name)
    if type(family).__name__ == "GPT":
        heads = family.n_head
        return ServedModel(
            name, family.n_layer, family.n_embd, heads, heads, family.n_embd // heads, family.inner,
            vocabulary=int(family.vocab_size), gated=False, tied=family.tie_word_embeddings, longest=family.longest,
            parameters=int(family.weights().count()),
        )  # fmt: skip
    return _of_decoder(name, family)


def _of_decoder(name: str, family: Any) -> ServedModel:
    """A family that says its parts layer by layer.

    Raises:
        InputError: they differ from layer to layer, or are of a form that is not served.
    """
    from triosim.sources.models._decoder import Decoder
    from triosim.sources.models._experts import Experts
    from triosim.sources.models._parts import FeedForward, SelfAttention

    def refuse(why: str) -> InputError:
        return InputError(
            f"model {quoted(name)} ({type(family).__name__}) {why}, which is not served: give one whose layers are all "
            "alike, as Llama, Qwen, Mistral, Mixtral or GPT"
        )

    if not isinstance(family, Decoder):
        raise refuse("is no decoder of text")
    attention, part = family.attention(0), family.feed_forward(0)
    if not isinstance(attention, SelfAttention) or not isinstance(part, FeedForward | Experts):
        raise refuse("has layers of a form of their own")
    if any(family.attention(i) != attention or family.feed_forward(i) != part for i in range(1, family.depth)):
        raise refuse("has layers that differ")
    if 0 < attention.window < family.longest:
        raise refuse(f"sees a window of {attention.window} tokens")
    if attention.unfused:
        raise refuse("has attention with biases by distance")
    experts, inner, gated = None, 0, True
    if isinstance(part, Experts):
        shared = part.shared.inner if part.shared else 0
        experts = ServedExperts(part.router.experts, part.router.chosen, part.inner, shared)
        inner = int(getattr(family, "intermediate_size", part.inner))
    else:
        inner, gated = part.inner, part.packed or len(part.names) == 3
    return ServedModel(
        name, family.depth, family.width, attention.heads, attention.groups, attention.size, inner,
        vocabulary=int(family.vocab_size), gated=gated, tied=family.tie_word_embeddings, longest=family.longest,
        parameters=int(family.weights().count()), experts=experts, norms=len(family.layout.norms),
        head_norms=attention.norm is not None,
    )  # fmt: skip


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
