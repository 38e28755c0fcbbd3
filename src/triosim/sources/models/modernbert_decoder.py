"""Ettin's decoders: ModernBERT whose tokens see those before them alone (Weller et al., arXiv:2507.11412)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._parts import SelfAttention
from triosim.sources.models.modernbert import ModernBERT


@registered
@dataclass(frozen=True)
class ModernBERTDecoder(ModernBERT):
    """Configuration, named as in Hugging Face's ``config.json``."""

    kind: ClassVar = "ModernBertDecoder"
    block: ClassVar = "Layer"
    before_scores: ClassVar = "lm_head"
    writes: ClassVar = True
    model_types: ClassVar = ("modernbert-decoder",)

    def attention(self, layer: int) -> SelfAttention:
        own = super().attention(layer)
        return replace(own, names=("q_proj", "k_proj", "v_proj"), causal=True, window=max(own.window - 1, 0))
