"""BLOOM: attention with linear biases (ALiBi), embeddings normed (Le Scao et al., arXiv:2211.05100).

Scores and weights of attention are tensors of their own, as in the framework that it was trained with.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout, SizeNames
from triosim.sources.models._family import divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

_NORMS = ("input_layernorm", "post_attention_layernorm")


@registered
@dataclass(frozen=True)
class Bloom(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    n_layer: int
    n_head: int
    vocab_size: int = 250880
    seq_length: int = 2048
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = True

    sizes: ClassVar = SizeNames(depth="n_layer", longest="seq_length")
    layout: ClassVar = Layout(
        "Bloom", body="transformer", embedding="word_embeddings", blocks="h", last_norm="ln_f", block="Block",
        attention="self_attention", norms=_NORMS, order=(_NORMS[0], "attention", _NORMS[1], "feed_forward"),
    )  # fmt: skip
    model_types: ClassVar = ("bloom",)
    other_names: ClassVar = {
        "n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    }  # fmt: skip
    fixed: ClassVar = {"apply_residual_connection_post_layernorm": False}

    def problem(self) -> str:
        return divides(self, "n_head", "hidden_size")

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        self.norm.weights(w, f"{body}.word_embeddings_layernorm")

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return self.norm(net, "word_embeddings_layernorm", super().embed(net, tokens))

    def attention(self, layer: int) -> SelfAttention:
        return SelfAttention(
            self.hidden_size, self.n_head, self.n_head, self.hidden_size // self.n_head, "BloomAttention",
            ("query_key_value",), "dense", bias=True, last_bias=True, dropout=self.attention_dropout,
            last_dropout=self.hidden_dropout, unfused=True,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, 4 * self.hidden_size, "BloomMLP", "gelu_pytorch_tanh",
            ("dense_h_to_4h", "dense_4h_to_h"), bias=True, dropout=self.hidden_dropout,
        )  # fmt: skip
