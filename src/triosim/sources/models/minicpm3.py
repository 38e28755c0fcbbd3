"""MiniCPM3: a small dense model with latent attention; embeddings, parts and what is scored are multiplied by numbers.

Source: Hu et al., arXiv:2404.06395 (the numbers); OpenBMB, MiniCPM3-4B, model card, 2024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama
from triosim.sources.models._latent import LatentAttention
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class MiniCPM3(LatentLlama):
    """Configuration, named as in Hugging Face's ``config.json``; ``v_head_dim`` 0 is the width over the heads."""

    kv_lora_rank: int = 256
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 32
    v_head_dim: int = 0

    layout: ClassVar = Layout("MiniCPM3", scaled=True)
    model_types: ClassVar = ("minicpm3",)
    left_out: ClassVar = {"tie_word_embeddings": True, "q_lora_rank": 768}
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "mlp_bias": False}

    def attention(self, layer: int) -> LatentAttention:
        own: LatentAttention = super().attention(layer)
        return replace(own, value=self.v_head_dim or self.hidden_size // self.num_attention_heads)

    def embed(self, net: Net, tokens: Tensor) -> Tensor:
        return net.scaled(super().embed(net, tokens))

    def score(self, net: Net, x: Tensor) -> Tensor:
        return super().score(net, net.scaled(x, "aten::div"))
