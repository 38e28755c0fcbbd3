"""The text encoders of CLIP, which diffusion models read: a decoder's blocks, and the state of the last token.

Module names are those of Hugging Face's ``CLIPTextModel``, as its files have them.  Diffusion models take the states of
all tokens or, ``projected``, one vector made of the last one; trained by itself the encoder is so by the squared error
of that, a gradient as a diffusion model sends it.  Sources: Radford et al., arXiv:2103.00020; Cherti et al.,
arXiv:2212.07143 (OpenCLIP).
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Decoder, Layout
from triosim.sources.models._family import divides
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category


@registered
@dataclass(frozen=True)
class CLIPText(Decoder):
    """Configuration, named as in Hugging Face's ``config.json``; ``projected`` is ``CLIPTextModelWithProjection``."""

    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    vocab_size: int = 49408
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    attention_dropout: float = 0.0
    projection_dim: int = 512
    projected: bool = False

    layout: ClassVar = Layout(
        "CLIPText", body="text_model", embedding="embeddings.token_embedding", blocks="encoder.layers",
        last_norm="final_layer_norm", head="", norms=("layer_norm1", "layer_norm2"), block="EncoderLayer",
        order=("attention", "layer_norm1", "feed_forward", "layer_norm2"),
    )  # fmt: skip
    model_types: ClassVar = ("clip_text_model",)
    architectures: ClassVar = {"CLIPTextModelWithProjection": {"projected": True}}
    fixed: ClassVar = {"hidden_act": ("quick_gelu", "gelu")}
    bounded: ClassVar = True
    writes: ClassVar = False

    def problem(self) -> str:
        known = self.hidden_act in self.fixed["hidden_act"]
        return divides(self, "num_attention_heads", "hidden_size") or (
            "" if known else "hidden_act must be quick_gelu or gelu"
        )

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def attention(self, layer: int) -> SelfAttention:
        heads = self.num_attention_heads
        return SelfAttention(
            self.hidden_size, heads, heads, self.hidden_size // heads, "CLIPAttention",
            ("k_proj", "v_proj", "q_proj"), "out_proj", bias=True, last_bias=True, dropout=self.attention_dropout,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "CLIPMLP", self.hidden_act, ("fc1", "fc2"), bias=True
        )

    def embed_weights(self, w: Weights, body: str) -> None:
        super().embed_weights(w, body)
        w.embedding(f"{body}.embeddings.position_embedding", self.max_position_embeddings, self.hidden_size)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        places = net.unsqueeze(net.positions(tokens), 0)
        return net.add(super().embed(net, tokens), net.embedding("embeddings.position_embedding", places))

    def weights(self) -> Weights:
        w = super().weights()
        if self.projected:
            w.linear("text_projection", self.hidden_size, self.projection_dim, bias=False)
        return w

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        tokens, _ = super().inputs(net, batch, size)
        made = (batch, self.projection_dim) if self.projected else (*tokens.shape, self.hidden_size)
        return tokens, net.tensor(made, net.precision, Category.LABEL)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(net, scores, labels)

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        x = super().forward(net, tokens)
        last = _last(net, tokens, x)
        return net.linear("text_projection", last) if self.projected else x

    def score(self, net: Net, x: Tensor) -> Tensor:
        return x


def _last(net: Net, tokens: Tensor, x: Tensor) -> Tensor:
    """The states [batch, width] of the last token of each text, of which the number is the highest."""
    batch, width = x.shape[0], x.shape[2]
    numbers, at, of = net.to(tokens, "int32"), net.tensor((batch,), "int64"), net.tensor((batch,), "int64")
    net.operator("aten::argmax", ("self",), (numbers,), (at,), {"dim": -1})
    net.operator("aten::arange", (), (), (of,))
    y = net.tensor((batch, width), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::index", ("self", "indices", "indices"), (x, of, at), (y,))

    def rule(g: Tensor) -> None:
        empty, whole = net.tensor(x.shape, x.dtype), net.tensor(x.shape, x.dtype)
        net.operator("aten::new_zeros", (), (), (empty,))
        roles = ("self", "indices", "indices", "values")
        net.operator("aten::index_put", roles, (empty, of, at, g), (whole,), {"accumulate": True})
        net.give(x, whole)

    net.derivative(row, (y,), rule)
    return y
