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

    @property
    def linear_parameters(self) -> int:
        """Of all layers' products."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + self.width * self.inner * (3 if self.gated else 2))

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
        InputError: there is none, or it does not write text token by token.
    """
    family: Any = configured(name)
    kind = type(family).__name__
    if kind == "Llama":
        layers, width, heads = family.num_hidden_layers, family.hidden_size, family.num_attention_heads
        kv_heads, head, inner = family.key_value_heads, family.head_size, family.intermediate_size
    elif kind == "GPT":
        layers, width, heads, inner = family.n_layer, family.n_embd, family.n_head, family.inner
        kv_heads, head = heads, width // heads
    else:
        raise InputError(f"model {quoted(name)} is of a family, {kind}, that is not served: give a Llama or a GPT")
    return ServedModel(
        name, layers, width, heads, kv_heads, head, inner, vocabulary=int(family.vocab_size), gated=kind == "Llama",
        tied=family.tie_word_embeddings, longest=family.longest, parameters=int(family.weights().count()),
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
