"""Mistral: Llama with attention to a window of the tokens before (Jiang et al., arXiv:2310.06825)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout, LlamaLike
from triosim.sources.models._parts import SelfAttention


@registered
@dataclass(frozen=True)
class Mistral(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 0

    layout: ClassVar = Layout("Mistral")
    model_types: ClassVar = ("mistral", "ministral")
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), window=self.sliding_window if self.of_kind(layer, SLIDING, True) else 0
        )
