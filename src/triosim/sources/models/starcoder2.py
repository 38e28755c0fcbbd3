"""StarCoder2: LayerNorm and biases, a window, few keys and values (Lozhkov et al., arXiv:2402.19173)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Windowed
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention


@registered
@dataclass(frozen=True)
class StarCoder2(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_act: str = "gelu_pytorch_tanh"
    use_bias: bool = True
    residual_dropout: float = 0.0
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("Starcoder2")
    model_types: ClassVar = ("starcoder2",)
    fixed: ClassVar = {"embedding_dropout": (0.0, 0)}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), bias=self.use_bias, last_bias=self.use_bias, last_dropout=self.residual_dropout,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "Starcoder2MLP", self.hidden_act, ("c_fc", "c_proj"),
            bias=self.use_bias, dropout=self.residual_dropout,
        )  # fmt: skip
