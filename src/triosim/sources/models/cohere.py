"""Command R and R+: both parts of the same input, neighbours in a head turned in float32 (Cohere, 2024)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import BiasedAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotary, SelfAttention
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class Cohere(BiasedAttention):
    """Configuration, named as in Hugging Face's ``config.json``."""

    use_qk_norm: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("Cohere", norms=("input_layernorm",), residual="parallel")
    model_types: ClassVar = ("cohere",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "CohereLayerNorm", bias=False)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "CohereRotaryEmbedding", full_precision=True),)

    def attention(self, layer: int) -> SelfAttention:
        own: SelfAttention = super().attention(layer)
        return HeadScaledAttention(**vars(own)) if self.use_qk_norm else own

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x))


@dataclass(frozen=True)
class HeadScaledAttention(SelfAttention):
    """Attention whose queries and keys are normed by head, each head with weights of its own."""

    def weights(self, w: Weights, at: str) -> None:
        super().weights(w, at)
        for name, heads in zip(self.norms, (self.heads, self.groups), strict=True):
            w.add(f"{at}.{name}.weight", heads, self.size)

    def _heads(self, net: Net, name: str, x: Tensor) -> Tensor:
        y = super()._heads(net, name, x)
        if name[0] == "v":
            return y
        y = net.transpose(y, 1, 2)
        with net.module(self._norm_of(name[0]), "CohereLayerNorm"):
            y = net.scaled_by(net.layer_norm("standardized", y), net.parameter("weight"))
        return net.transpose(y, 1, 2)
