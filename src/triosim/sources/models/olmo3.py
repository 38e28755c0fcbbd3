"""OLMo 3: OLMo 2, three blocks in four with a window (Olmo Team, Ai2, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._parts import Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class OLMo3(MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 4096

    layout: ClassVar = Layout(
        "Olmo3", norms=("post_attention_layernorm", "post_feedforward_layernorm"), residual="post"
    )
    model_types: ClassVar = ("olmo3",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "Olmo3RotaryEmbedding", full_precision=True),)

    def attention(self, layer: int) -> SelfAttention:
        norm = Norm(self.num_attention_heads * self.head_size, "Olmo3RMSNorm")
        return replace(super().attention(layer), norm=norm)
