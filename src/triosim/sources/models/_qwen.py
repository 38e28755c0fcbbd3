"""What dense Qwen models share: a window that later blocks see where a configuration turns it on."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._decoder import SLIDING, LlamaLike
from triosim.sources.models._family import Count
from triosim.sources.models._parts import SelfAttention


@dataclass(frozen=True)
class QwenLike(LlamaLike):
    """A Llama with Qwen's window."""

    sliding_window: int = 0
    use_sliding_window: bool = False
    max_window_layers: Count = 28

    left_out: ClassVar = {"sliding_window": 4096}

    def attention(self, layer: int) -> SelfAttention:
        seen = self.use_sliding_window and self.of_kind(layer, SLIDING, layer >= self.max_window_layers)
        return replace(super().attention(layer), window=self.sliding_window if seen else 0)
