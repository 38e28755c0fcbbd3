"""ELECTRA: BERT that tells replaced words from others, and the one that replaces them (Clark et al., arXiv:2003.10555).

Module names are those of Hugging Face's ``ElectraForPreTraining`` (``discriminator``) and ``ElectraForMaskedLM``.  Each
is trained alone; ELECTRA's own pre-training runs a small one of the second kind beside the first.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._bert import BERTLike, narrow_sum, narrow_weights
from triosim.sources.models._losses import cross_entropy_of_scores
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ELECTRA(BERTLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    embedding_size: int = 128
    discriminator: bool = False

    kind: ClassVar = "Electra"
    model_types: ClassVar = ("electra",)
    architectures: ClassVar = {"ElectraForPreTraining": {"discriminator": True}}

    def embed_weights(self, w: Weights, at: str) -> None:
        narrow_weights(
            w, at, self.vocabulary, (self.embedding_size, self.max_position_embeddings, self.type_vocab_size)
        )
        if self.embedding_size != self.hidden_size:
            w.linear("electra.embeddings_project", self.embedding_size, self.hidden_size)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return narrow_sum(net, tokens)

    def widened(self, net: Net, x: Tensor) -> Tensor:
        return x if self.embedding_size == self.hidden_size else net.linear("embeddings_project", x)

    def head_weights(self, w: Weights) -> None:
        if self.discriminator:
            w.linear("discriminator_predictions.dense", self.hidden_size, self.hidden_size)
            w.linear("discriminator_predictions.dense_prediction", self.hidden_size, 1)
        else:
            w.norm("generator_predictions.LayerNorm", self.embedding_size)
            w.linear("generator_predictions.dense", self.hidden_size, self.embedding_size)
            w.add("generator_lm_head.bias", self.vocabulary)

    def score(self, net: Net, x: Tensor, table: str) -> Tensor:
        if self.discriminator:
            with net.module("discriminator_predictions", "ElectraDiscriminatorPredictions"):
                x = net.linear("dense_prediction", net.gelu(net.linear("dense", x)))
            return net.view(x, x.shape[:2], "aten::squeeze")
        with net.module("generator_predictions", "ElectraGeneratorPredictions"):
            x = net.layer_norm("LayerNorm", net.gelu(net.linear("dense", x)))
        return net.linear("generator_lm_head", x, tied=table)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_of_scores(net, scores, labels) if self.discriminator else super().loss(net, scores, labels)
