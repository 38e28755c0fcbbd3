"""What the generations of Gemma share: scaled embeddings that are also the head, and a gated GELU."""

from __future__ import annotations

from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward
from triosim.sources.models._tape import Tensor


@dataclass(frozen=True)
class GemmaLike(LlamaLike):
    """A Llama with Gemma's embedding and feed-forward part."""

    head_dim: int = 256
    tie_word_embeddings: bool = True

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def feed_forward(self, layer: int) -> Any:
        return FeedForward(self.hidden_size, self.intermediate_size, f"{self.layout.kind}MLP", "gelu_pytorch_tanh")


def capped(net: Net, scores: Tensor) -> Tensor:
    """Scores kept within limits by a hyperbolic tangent."""
    return net.scaled(net.tanh(net.scaled(scores, "aten::div")))


AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Norms of a block before and after each part."""
