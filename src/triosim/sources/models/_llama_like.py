"""Llama's parts under Llama's keys, and what families share that have a few keys more.

A family inherits the classes whose keys its configuration has: ``class SmolLM3(Biased, Windowed)``.  Each changes the
parts that the next one makes, by ``super().attention(layer)``; what a family alone has stands in its own file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.models._decoder import Decoder
from triosim.sources.models._family import Kinds, Share, divides
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
LAYER_TYPES = (FULL, SLIDING, CHUNKED, LINEAR)
"""What Hugging Face calls the attention of a block; chunks of Llama 4 are as long as its usual sequences."""


@dataclass(frozen=True)
class LlamaLike(Decoder):
    """Decoders whose configuration has Llama's keys and whose parts are Llama's, but for what a family overrides."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False
    layer_types: Kinds = ()

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values; as many as of queries unless the configuration says otherwise."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def of_kind(self, layer: int, kind: str, usual: bool) -> bool:
        """Whether the attention of a block is of a kind of :data:`LAYER_TYPES`: as the configuration says of each
        block, else as is usual in the family."""
        return self.layer_types[layer] == kind if self.layer_types else usual

    def problem(self) -> str:
        return listed_for_each(self, "layer_types") or self.heads_problem()

    def heads_problem(self) -> str:
        """What is wrong with the sizes of heads."""
        return (
            ("" if self.head_dim else divides(self, "num_attention_heads", "hidden_size"))
            or divides(self, "num_key_value_heads", "num_attention_heads")
            or ("" if self.head_size % 2 == 0 else f"a head of {self.head_size} has no halves to rotate")
        )

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, f"{self.layout.kind}RotaryEmbedding"),)

    def attention(self, layer: int) -> Any:
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size,
            f"{self.layout.kind}Attention",
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        return FeedForward(self.hidden_size, self.intermediate_size, f"{self.layout.kind}MLP")


@dataclass(frozen=True)
class BiasedAttention(LlamaLike):
    """Whose products of attention may have biases."""

    attention_bias: bool = False

    def attention(self, layer: int) -> Any:
        return replace(super().attention(layer), bias=self.attention_bias, last_bias=self.attention_bias)


@dataclass(frozen=True)
class Biased(BiasedAttention):
    """Whose products of the feed-forward part may have biases too."""

    mlp_bias: bool = False

    def feed_forward(self, layer: int) -> Any:
        return replace(super().feed_forward(layer), bias=self.mlp_bias)


@dataclass(frozen=True)
class PartlyRotated(LlamaLike):
    """Of whose heads a share is rotated."""

    partial_rotary_factor: Share = 0.5

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.partial_rotary_factor), f"{self.layout.kind}RotaryEmbedding"),)


@dataclass(frozen=True)
class Windowed(LlamaLike):
    """Whose blocks, or some of them, attend to a window of the tokens before; 0 is no window."""

    sliding_window: int = 0

    def usual_window(self, layer: int) -> bool:
        """Whether a block has the window where the configuration does not say what each block is."""
        return True

    def window(self, layer: int) -> int:
        """Tokens that a block attends to; 0 for all."""
        return self.sliding_window if self.of_kind(layer, SLIDING, self.usual_window(layer)) else 0

    def attention(self, layer: int) -> Any:
        return replace(super().attention(layer), window=self.window(layer))


@dataclass(frozen=True)
class MostlyWindowed(Windowed):
    """Whose every n-th block attends to all tokens, the others to a window."""

    sliding_window_pattern: int = 4

    def usual_window(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0


def listed_for_each(family: LlamaLike, key: str) -> str:
    """For :meth:`Family.problem`: complains if a list that says something of each block ends before the last."""
    listed, depth = len(getattr(family, key)), family.num_hidden_layers
    return f"{key} has {listed} entries for {depth} blocks: give one for each" if 0 < listed < depth else ""
