"""OLMo 2: norms after each part, and of all queries and keys (Walsh et al., arXiv:2501.00656)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class OLMo2(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    layout: ClassVar = Layout(
        "Olmo2", norms=("post_attention_layernorm", "post_feedforward_layernorm"), residual="post"
    )
    model_types: ClassVar = ("olmo2",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, f"{self.layout.kind}RotaryEmbedding", full_precision=True),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), norm=Norm(self.num_attention_heads * self.head_size, f"{self.layout.kind}RMSNorm")
        )
