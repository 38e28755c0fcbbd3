"""OPT: learned positions, ReLU (Zhang et al., arXiv:2205.01068); two rows of positions are for padding."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._family import divides
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class OPT(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    ffn_dim: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int = 50272
    max_position_embeddings: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout(
        "OPT", body="model.decoder", last_norm="final_layer_norm", feed_forward="", model="Decoder",
        norms=("self_attn_layer_norm", "final_layer_norm"), last_norm_first=True,
        order=("attention", "self_attn_layer_norm", "feed_forward", "final_layer_norm"),
    )  # fmt: skip
    model_types: ClassVar = ("opt",)
    fixed: ClassVar = {"activation_function": "relu", "do_layer_norm_before": True, "enable_bias": True}
    bounded: ClassVar = True

    def problem(self) -> str:
        return divides(self, "num_attention_heads", "hidden_size")

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def attention(self, layer: int) -> SelfAttention:
        heads = self.num_attention_heads
        return SelfAttention(
            self.hidden_size, heads, heads, self.hidden_size // heads, "OPTAttention",
            ("k_proj", "v_proj", "q_proj"), "out_proj", bias=True, last_bias=True, scaled=True,
            dropout=self.attention_dropout, last_dropout=self.dropout,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(self.hidden_size, self.ffn_dim, "", "relu", ("fc1", "fc2"), bias=True, dropout=self.dropout)

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        w.embedding(f"{body}.embed_positions", self.max_position_embeddings + 2, self.hidden_size)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        positions = net.tensor(tokens.shape, "int64")  # counted from the mask of padding
        net.operator("aten::cumsum", ("self",), (net.zeros(tokens),), (positions,), {"dim": 1})
        return net.add(super().embed(net, tokens), net.embedding("embed_positions", positions))
