"""BERT (Devlin et al., arXiv:1810.04805): attention both ways, layer norm after each part.

Module names are those of Hugging Face's ``BertForMaskedLM``; every position is scored and none is padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triosim.core.registry import registered
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net, Weights
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class BERT(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1

    model_types: ClassVar = ("bert",)
    fixed: ClassVar = {"hidden_act": "gelu", "is_decoder": False, "position_embedding_type": "absolute"}
    bounded: ClassVar = True

    @property
    def longest(self) -> int:
        return self.max_position_embeddings

    def problem(self) -> str:
        return divides(self, "num_attention_heads", "hidden_size")

    def weights(self) -> Weights:
        w = Weights()
        width, inner = self.hidden_size, self.intermediate_size
        w.embedding("bert.embeddings.word_embeddings", self.vocabulary, width)
        w.embedding("bert.embeddings.position_embeddings", self.max_position_embeddings, width)
        w.embedding("bert.embeddings.token_type_embeddings", self.type_vocab_size, width)
        w.norm("bert.embeddings.LayerNorm", width)
        for i in range(self.num_hidden_layers):
            at = f"bert.encoder.layer.{i}"
            for name in ("query", "key", "value"):
                w.linear(f"{at}.attention.self.{name}", width, width)
            w.linear(f"{at}.attention.output.dense", width, width)
            w.norm(f"{at}.attention.output.LayerNorm", width)
            w.linear(f"{at}.intermediate.dense", width, inner)
            w.linear(f"{at}.output.dense", inner, width)
            w.norm(f"{at}.output.LayerNorm", width)
        w.add("cls.predictions.bias", self.vocabulary)
        w.linear("cls.predictions.transform.dense", width, width)
        w.norm("cls.predictions.transform.LayerNorm", width)
        return w

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("bert", "BertModel"):
            with net.module("embeddings", "BertEmbeddings"):
                x = self._embed(net, tokens)
            for i in range(self.num_hidden_layers):
                with net.module(f"encoder.layer.{i}", "BertLayer"):
                    x = self._layer(net, x)
        with net.module("cls.predictions", "BertLMPredictionHead"):
            with net.module("transform", "BertPredictionHeadTransform"):
                x = net.layer_norm("LayerNorm", net.gelu(net.linear("dense", x)))
            return net.linear("decoder", x, tied="bert.embeddings.word_embeddings.weight", bias="cls.predictions.bias")

    def _embed(self, net: Net, tokens: Tensor) -> Tensor:
        types = net.zeros(tokens)
        x = net.add(net.embedding("word_embeddings", tokens), net.embedding("token_type_embeddings", types))
        x = net.add(x, net.embedding("position_embeddings", net.unsqueeze(net.positions(tokens), 0)))
        return net.dropout(net.layer_norm("LayerNorm", x), self.hidden_dropout_prob)

    def _layer(self, net: Net, x: Tensor) -> Tensor:
        with net.module("attention", "BertAttention"):
            with net.module("self", "BertSdpaSelfAttention"):
                y = self._attention(net, x)
            x = self._output(net, "BertSelfOutput", y, x)
        with net.module("intermediate", "BertIntermediate"):
            y = net.gelu(net.linear("dense", x))
        return self._output(net, "BertOutput", y, x)

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.num_attention_heads, width // self.num_attention_heads)
        q, k, v = (net.transpose(net.view(net.linear(name, x), shape), 1, 2) for name in ("query", "key", "value"))
        y = net.attention(q, k, v, causal=False, dropout=self.attention_probs_dropout_prob)
        return net.view(net.transpose(y, 1, 2), (batch, length, width))

    def _output(self, net: Net, kind: str, y: Tensor, x: Tensor) -> Tensor:
        with net.module("output", kind):
            y = net.dropout(net.linear("dense", y), self.hidden_dropout_prob)
            return net.layer_norm("LayerNorm", net.add(y, x))
