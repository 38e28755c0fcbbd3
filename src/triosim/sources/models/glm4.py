"""GLM-4: norms around each part, half of each head rotated, gate and up in one product (GLM Team, arXiv:2406.12793)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import PartlyRotated
from triosim.sources.models._parts import FeedForward, SelfAttention

_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


@registered
@dataclass(frozen=True)
class GLM4(PartlyRotated):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    attention_bias: bool = True

    layout: ClassVar = Layout(
        "Glm4", norms=_NORMS, residual="around",
        order=("attention", "feed_forward", _NORMS[0], _NORMS[2], _NORMS[1], _NORMS[3]),
    )  # fmt: skip
    model_types: ClassVar = ("glm4",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.attention_bias)

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, "Glm4MLP", names=("gate_up_proj", "down_proj"), packed=True
        )
