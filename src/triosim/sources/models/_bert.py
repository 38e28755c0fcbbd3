"""BERT and its relatives: attention both ways, layer norm after each part.

Every position is scored and none is padding.  A family says how tokens become vectors and how vectors are scored.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class BERTLike(Text):
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

    kind: ClassVar[str]
    """What the names of its classes begin with; of its body in lower case."""
    fixed: ClassVar = {"hidden_act": "gelu", "is_decoder": False, "position_embedding_type": "absolute"}
    bounded: ClassVar = True
    writes: ClassVar = False

    @property
    def longest(self) -> int:
        return self.max_position_embeddings

    def problem(self) -> str:
        return divides(self, "num_attention_heads", "hidden_size")

    @abstractmethod
    def embed_weights(self, w: Weights, at: str) -> None:
        """Declare what turns tokens into vectors."""

    @abstractmethod
    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        """Tokens as the sum of three embeddings."""

    def widened(self, net: Net, x: Tensor) -> Tensor:
        """Embeddings as wide as the blocks."""
        return x

    @abstractmethod
    def head_weights(self, w: Weights) -> None:
        """Declare what scores."""

    @abstractmethod
    def score(self, net: Net, x: Tensor, table: str) -> Tensor:
        """Scores of the vocabulary; the last product's weight is the ``table`` of tokens."""

    def weights(self) -> Weights:
        w = Weights()
        width, inner, body = self.hidden_size, self.intermediate_size, self.kind.lower()
        self.embed_weights(w, f"{body}.embeddings")
        for i in range(self.num_hidden_layers):
            at = f"{body}.encoder.layer.{i}"
            for name in ("query", "key", "value"):
                w.linear(f"{at}.attention.self.{name}", width, width)
            w.linear(f"{at}.attention.output.dense", width, width)
            w.norm(f"{at}.attention.output.LayerNorm", width)
            w.linear(f"{at}.intermediate.dense", width, inner)
            w.linear(f"{at}.output.dense", inner, width)
            w.norm(f"{at}.output.LayerNorm", width)
        self.head_weights(w)
        return w

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        body = self.kind.lower()
        with net.module(body, f"{self.kind}Model"):
            with net.module("embeddings", f"{self.kind}Embeddings"):
                x = net.layer_norm("LayerNorm", self.embed(net, tokens))
                x = net.dropout(x, self.hidden_dropout_prob)
            x = self.widened(net, x)
            for i in range(self.num_hidden_layers):
                with net.module(f"encoder.layer.{i}", f"{self.kind}Layer"):
                    x = self._layer(net, x)
        return self.score(net, x, f"{body}.embeddings.word_embeddings.weight")

    def _layer(self, net: Net, x: Tensor) -> Tensor:
        with net.module("attention", f"{self.kind}Attention"):
            with net.module("self", f"{self.kind}SdpaSelfAttention"):
                y = self._attention(net, x)
            x = self._output(net, f"{self.kind}SelfOutput", y, x)
        with net.module("intermediate", f"{self.kind}Intermediate"):
            y = net.gelu(net.linear("dense", x))
        return self._output(net, f"{self.kind}Output", y, x)

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.num_attention_heads, width // self.num_attention_heads)
        copied = net.kernels.copied_heads and net.kernels.attention == "unfused"
        q, k, v = (
            net.transpose(net.view(net.linear(name, x), shape, strided_gradient=copied), 1, 2)
            for name in ("query", "key", "value")
        )
        y = net.attention(q, k, v, causal=False, dropout=self.attention_probs_dropout_prob, padded=True)
        return net.view(net.transpose(y, 1, 2), (batch, length, width))

    def _output(self, net: Net, kind: str, y: Tensor, x: Tensor) -> Tensor:
        with net.module("output", kind):
            y = net.dropout(net.linear("dense", y), self.hidden_dropout_prob)
            return net.layer_norm("LayerNorm", net.add(y, x))


def narrow_weights(w: Weights, at: str, vocabulary: Dim, sizes: tuple[int, int, int]) -> None:
    """Declare three embeddings of a width of their own; ``sizes`` are that width, positions and kinds of tokens."""
    width, positions, kinds = sizes
    w.embedding(f"{at}.word_embeddings", vocabulary, width)
    w.embedding(f"{at}.position_embeddings", positions, width)
    w.embedding(f"{at}.token_type_embeddings", kinds, width)
    w.norm(f"{at}.LayerNorm", width)
    for name in ("position_ids", "token_type_ids"):
        w.buffers[f"{at}.{name}"] = ((1, positions), "int64")


def narrow_sum(net: Net, tokens: Tensor) -> Tensor:
    """Their sum, positions and kinds read from buffers."""
    positions = net.slice(net.buffers[f"{net.path}.position_ids"], 1, 0, tokens.shape[1])
    row = net.tensor((1, tokens.shape[1]), "int64")
    net.operator(
        "aten::gather", ("self", "index"), (net.buffers[f"{net.path}.token_type_ids"], positions), (row,), {"dim": 1}
    )
    types = net.expanded(row, 0, tokens.shape[0])
    x = net.add(net.embedding("word_embeddings", tokens), net.embedding("token_type_embeddings", types))
    return net.add(x, net.embedding("position_embeddings", positions))
