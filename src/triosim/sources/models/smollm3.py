"""SmolLM3: Llama whose every fourth block knows no positions (Hugging Face, 2025; Yang et al., arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._parts import SelfAttention


@registered
@dataclass(frozen=True)
class SmolLM3(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    no_rope_layer_interval: int = 4
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("SmolLM3")
    model_types: ClassVar = ("smollm3",)
    fixed: ClassVar = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "use_sliding_window": False}

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), rotated=(layer + 1) % self.no_rope_layer_interval != 0)
