"""Falcon: one or few heads of keys and values, both parts of the same input (Almazrouei et al., arXiv:2311.16867)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._family import divides
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention

_LAYOUT = {
    "kind": "Falcon", "body": "transformer", "embedding": "word_embeddings", "blocks": "h", "last_norm": "ln_f",
    "attention": "self_attention", "residual": "parallel",
}  # fmt: skip


@registered
@dataclass(frozen=True)
class Falcon(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int = 65024
    num_kv_heads: int = 0
    ffn_hidden_size: int = 0
    new_decoder_architecture: bool = False
    multi_query: bool = True
    bias: bool = False
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True

    model_types: ClassVar = ("falcon",)
    fixed: ClassVar = {"alibi": False, "parallel_attn": True, "hidden_dropout": 0.0, "attention_dropout": 0.0}

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The newer architecture norms the input of each part apart."""
        norms = ("ln_attn", "ln_mlp") if self.new_decoder_architecture else ("input_layernorm",)
        return Layout(**_LAYOUT, norms=norms)  # type: ignore[arg-type]

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    def problem(self) -> str:
        return divides(self, "num_attention_heads", "hidden_size") or divides(self, "groups", "num_attention_heads")

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.hidden_size // self.num_attention_heads, "FalconRotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.groups, self.hidden_size // self.num_attention_heads,
            "FalconAttention", ("query_key_value",), "dense", bias=self.bias, last_bias=self.bias,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        inner = self.ffn_hidden_size or 4 * self.hidden_size
        names = ("dense_h_to_4h", "dense_4h_to_h")
        return FeedForward(self.hidden_size, inner, "FalconMLP", "gelu", names, bias=self.bias)
