"""SmolLM3: Llama whose every fourth block knows no positions (Hugging Face, 2025; Yang et al., arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Blocks
from triosim.sources.models._llama_like import Biased, Windowed, listed_for_each
from triosim.sources.models._parts import SelfAttention


@registered
@dataclass(frozen=True)
class SmolLM3(Biased, Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    no_rope_layer_interval: int = 4
    no_rope_layers: Blocks = ()
    """For each block whether it knows positions; empty: all but every :attr:`no_rope_layer_interval`-th."""
    use_sliding_window: bool = False
    tie_word_embeddings: bool = True

    layout: ClassVar = Layout("SmolLM3")
    model_types: ClassVar = ("smollm3",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def problem(self) -> str:
        return super().problem() or listed_for_each(self, "no_rope_layers")

    def rotated(self, layer: int) -> bool:
        """Whether a block knows positions."""
        if self.no_rope_layers:
            return self.no_rope_layers[layer] != 0
        return (layer + 1) % self.no_rope_layer_interval != 0

    def usual_window(self, layer: int) -> bool:
        return not self.rotated(layer)

    def window(self, layer: int) -> int:
        return super().window(layer) if self.use_sliding_window else 0

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), rotated=self.rotated(layer))
