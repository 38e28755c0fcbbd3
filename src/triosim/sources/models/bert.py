"""BERT (Devlin et al., arXiv:1810.04805), under the module names of Hugging Face's ``BertForMaskedLM``."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._bert import BERTLike
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class BERT(BERTLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    kind: ClassVar = "Bert"
    model_types: ClassVar = ("bert",)

    def embed_weights(self, w: Weights, at: str) -> None:
        w.embedding(f"{at}.word_embeddings", self.vocabulary, self.hidden_size)
        w.embedding(f"{at}.position_embeddings", self.max_position_embeddings, self.hidden_size)
        w.embedding(f"{at}.token_type_embeddings", self.type_vocab_size, self.hidden_size)
        w.norm(f"{at}.LayerNorm", self.hidden_size)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        types = net.zeros(tokens)
        x = net.add(net.embedding("word_embeddings", tokens), net.embedding("token_type_embeddings", types))
        return net.add(x, net.embedding("position_embeddings", net.unsqueeze(net.positions(tokens), 0)))

    def head_weights(self, w: Weights) -> None:
        w.add("cls.predictions.bias", self.vocabulary)
        w.linear("cls.predictions.transform.dense", self.hidden_size, self.hidden_size)
        w.norm("cls.predictions.transform.LayerNorm", self.hidden_size)

    def score(self, net: Net, x: Tensor, table: str) -> Tensor:
        with net.module("cls.predictions", "BertLMPredictionHead"):
            with net.module("transform", "BertPredictionHeadTransform"):
                x = net.layer_norm("LayerNorm", net.gelu(net.linear("dense", x)))
            return net.linear("decoder", x, tied=table, bias="cls.predictions.bias")
