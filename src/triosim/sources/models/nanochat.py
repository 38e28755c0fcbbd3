"""nanochat: norms without weights, one of them behind the embedding, a squared ReLU without a gate (Karpathy, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class NanoChat(BiasedAttention):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout("NanoChat")
    model_types: ClassVar = ("nanochat",)
    fixed: ClassVar = {"hidden_act": "relu2", "attention_dropout": (0.0, 0)}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "NanoChatRMSNorm", weight=False)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return self.norm(net, self.layout.last_norm, super().embed(net, tokens))

    def attention(self, layer: int) -> SelfAttention:
        norm = Norm(self.head_size, "NanoChatRMSNorm", weight=False)
        return replace(super().attention(layer), norm=norm, rotated_first=True)

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(self.hidden_size, self.intermediate_size, "NanoChatMLP", "relu2", names=("fc1", "fc2"))

    def score(self, net: Net, x: Tensor) -> Tensor:
        y = net.scaled(super().score(net, x), "aten::div")
        return net.scaled(net.tanh(y))
