"""RoBERTa and XLM-RoBERTa: BERT whose positions are counted among the tokens that are no padding.

Module names are those of Hugging Face's ``RobertaForMaskedLM``.  Sources: Liu et al., arXiv:1907.11692; Conneau et al.,
arXiv:1911.02116.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._bert import BERTLike
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

PADDING = 2
"""Rows of the table of positions that stand before the first token's (fairseq: the number of padding and one more)."""


@registered
@dataclass(frozen=True)
class RoBERTa(BERTLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1

    kind: ClassVar = "Roberta"
    model_types: ClassVar = ("roberta", "xlm-roberta", "camembert")

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - PADDING

    def problem(self) -> str:
        few = self.max_position_embeddings <= PADDING
        return super().problem() or (f"max_position_embeddings must be more than {PADDING}" if few else "")

    def embed_weights(self, w: Weights, at: str) -> None:
        w.embedding(f"{at}.word_embeddings", self.vocabulary, self.hidden_size)
        w.embedding(f"{at}.token_type_embeddings", self.type_vocab_size, self.hidden_size)
        w.norm(f"{at}.LayerNorm", self.hidden_size)
        w.embedding(f"{at}.position_embeddings", self.max_position_embeddings, self.hidden_size)
        for name in ("position_ids", "token_type_ids"):
            w.buffers[f"{at}.{name}"] = ((1, self.max_position_embeddings), "int64")

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        positions = _positions(net, tokens)
        types = net.expanded(net.buffers[f"{net.path}.token_type_ids"], 0, tokens.shape[0])
        types = _step(net, "gather", (types, positions), "int64", {"dim": 1})
        x = net.add(net.embedding("word_embeddings", tokens), net.embedding("token_type_embeddings", types))
        return net.add(x, net.embedding("position_embeddings", positions))

    def head_weights(self, w: Weights) -> None:
        w.add("lm_head.bias", self.vocabulary)
        w.linear("lm_head.dense", self.hidden_size, self.hidden_size)
        w.norm("lm_head.layer_norm", self.hidden_size)

    def score(self, net: Net, x: Tensor, table: str) -> Tensor:
        with net.module("lm_head", "RobertaLMHead"):
            x = net.layer_norm("layer_norm", net.gelu(net.linear("dense", x)))
            return net.linear("decoder", x, tied=table, bias="lm_head.bias")


def _positions(net: Net, tokens: Tensor) -> Tensor:
    """How many tokens up to each are no padding, behind :data:`PADDING`; the type is changed back and forth."""
    mask = net.to(_step(net, "ne", (tokens,), "bool"), "int32")
    counted = net.to(_step(net, "cumsum", (mask,), "int64", {"dim": 1}), "int32")
    counted = net.to(_step(net, "mul", (net.shifted(counted), mask), "int32"), "int64")
    return net.shifted(counted)


def _step(net: Net, name: str, inputs: tuple[Tensor, ...], dtype: str, args: dict[str, object] | None = None) -> Tensor:
    """An operator on whole numbers that gives one for each token."""
    y = net.tensor(inputs[-1].shape, dtype)
    second = "index" if name == "gather" else "other"
    net.operator(f"aten::{name}", ("self", second)[: len(inputs)], inputs, (y,), args)
    return y
