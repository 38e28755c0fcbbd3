"""ALBERT: BERT whose blocks share their weights, embeddings narrower than they (Lan et al., arXiv:1909.11942).

Module names are those of Hugging Face's ``AlbertForMaskedLM``, trained on masked words; which of two sentences comes
first is not asked.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._bert import BERTLike, narrow_sum, narrow_weights
from triosim.sources.models._net import Net
from triosim.sources.models._parts import GELU, activate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ALBERT(BERTLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    vocab_size: int = 30000
    embedding_size: int = 128
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    kind: ClassVar = "Albert"
    model_types: ClassVar = ("albert",)
    fixed: ClassVar = {"hidden_act": ("gelu_new", *GELU), "position_embedding_type": "absolute"}

    def problem(self) -> str:
        few = self.num_hidden_groups > self.num_hidden_layers
        return super().problem() or ("num_hidden_groups is more than num_hidden_layers" if few else "")

    def embed_weights(self, w: Weights, at: str) -> None:
        narrow_weights(
            w, at, self.vocabulary, (self.embedding_size, self.max_position_embeddings, self.type_vocab_size)
        )

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return narrow_sum(net, tokens)

    def weights(self) -> Weights:
        w, width, inner = Weights(), self.hidden_size, self.intermediate_size
        self.embed_weights(w, "albert.embeddings")
        w.linear("albert.encoder.embedding_hidden_mapping_in", self.embedding_size, width)
        for group in range(self.num_hidden_groups):
            for i in range(self.inner_group_num):
                at = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{i}"
                w.norm(f"{at}.full_layer_layer_norm", width)
                for name in ("query", "key", "value", "dense"):
                    w.linear(f"{at}.attention.{name}", width, width)
                w.norm(f"{at}.attention.LayerNorm", width)
                w.linear(f"{at}.ffn", width, inner)
                w.linear(f"{at}.ffn_output", inner, width)
        self.head_weights(w)
        return w

    def head_weights(self, w: Weights) -> None:
        w.add("predictions.bias", self.vocabulary)
        w.norm("predictions.LayerNorm", self.embedding_size)
        w.linear("predictions.dense", self.hidden_size, self.embedding_size)

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("albert", "AlbertModel"):
            with net.module("embeddings", "AlbertEmbeddings"):
                x = net.layer_norm("LayerNorm", self.embed(net, tokens))
                x = net.dropout(x, self.hidden_dropout_prob)
            with net.module("encoder", "AlbertTransformer"):
                x = net.linear("embedding_hidden_mapping_in", x)
                for i in range(self.num_hidden_layers):
                    group = i * self.num_hidden_groups // self.num_hidden_layers
                    for layer in range(self.inner_group_num):
                        with net.module(f"albert_layer_groups.{group}.albert_layers.{layer}", "AlbertLayer"):
                            x = self._layer(net, x)
        return self.score(net, x, "albert.embeddings.word_embeddings.weight")

    def _layer(self, net: Net, x: Tensor) -> Tensor:
        with net.module("attention", "AlbertAttention"):
            y = net.dropout(net.linear("dense", self._attention(net, x)), self.hidden_dropout_prob)
            x = net.layer_norm("LayerNorm", net.add(x, y))
        y = net.linear("ffn_output", activate(net, net.linear("ffn", x), self.hidden_act))
        return net.layer_norm("full_layer_layer_norm", net.add(y, x))

    def score(self, net: Net, x: Tensor, table: str) -> Tensor:
        with net.module("predictions", "AlbertMLMHead"):
            x = net.layer_norm("LayerNorm", activate(net, net.linear("dense", x), self.hidden_act))
            return net.linear("decoder", x, tied=table, bias="predictions.bias")
