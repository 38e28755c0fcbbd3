"""DistilBERT: BERT with half the blocks, without kinds of tokens (Sanh et al., arXiv:1910.01108).

Module names are those of Hugging Face's ``DistilBertForMaskedLM``, trained on words alone: what a teacher scores is no
part of the step.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class DistilBERT(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.1

    model_types: ClassVar = ("distilbert",)
    fixed: ClassVar = {"activation": "gelu", "sinusoidal_pos_embds": False, "tie_word_embeddings": True}
    bounded: ClassVar = True
    writes: ClassVar = False

    @property
    def longest(self) -> int:
        return self.max_position_embeddings

    def problem(self) -> str:
        return divides(self, "n_heads", "dim")

    def weights(self) -> Weights:
        w, width = Weights(), self.dim
        w.embedding("distilbert.embeddings.word_embeddings", self.vocabulary, width)
        w.embedding("distilbert.embeddings.position_embeddings", self.max_position_embeddings, width)
        w.norm("distilbert.embeddings.LayerNorm", width)
        for i in range(self.n_layers):
            at = f"distilbert.transformer.layer.{i}"
            for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
                w.linear(f"{at}.attention.{name}", width, width)
            w.norm(f"{at}.sa_layer_norm", width)
            w.linear(f"{at}.ffn.lin1", width, self.hidden_dim)
            w.linear(f"{at}.ffn.lin2", self.hidden_dim, width)
            w.norm(f"{at}.output_layer_norm", width)
        w.linear("vocab_transform", width, width)
        w.norm("vocab_layer_norm", width)
        w.add("vocab_projector.bias", self.vocabulary)
        w.buffers["distilbert.embeddings.position_ids"] = ((1, self.max_position_embeddings), "int64")
        return w

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("distilbert", "DistilBertModel"):
            with net.module("embeddings", "Embeddings"):
                positions = net.slice(net.buffers[f"{net.path}.position_ids"], 1, 0, tokens.shape[1])
                x = net.add(net.embedding("word_embeddings", tokens), net.embedding("position_embeddings", positions))
                x = net.dropout(net.layer_norm("LayerNorm", x), self.dropout)
            for i in range(self.n_layers):
                with net.module(f"transformer.layer.{i}", "TransformerBlock"):
                    x = self._layer(net, x)
        x = net.layer_norm("vocab_layer_norm", net.gelu(net.linear("vocab_transform", x)))
        return net.linear("vocab_projector", x, tied="distilbert.embeddings.word_embeddings.weight")

    def _layer(self, net: Net, x: Tensor) -> Tensor:
        with net.module("attention", "DistilBertSelfAttention"):
            y = self._attention(net, x)
        x = net.layer_norm("sa_layer_norm", net.add(y, x))
        with net.module("ffn", "FFN"):
            y = net.dropout(net.linear("lin2", net.gelu(net.linear("lin1", x))), self.dropout)
        return net.layer_norm("output_layer_norm", net.add(y, x))

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.n_heads, width // self.n_heads)
        copied = net.kernels.copied_heads and net.kernels.attention == "unfused"
        q, k, v = (
            net.transpose(net.view(net.linear(f"{part}_lin", x), shape, strided_gradient=copied), 1, 2)
            for part in "qkv"
        )
        y = net.attention(q, k, v, causal=False, dropout=self.attention_dropout, padded=True)
        return net.linear("out_lin", net.view(net.transpose(y, 1, 2), (batch, length, width)))
