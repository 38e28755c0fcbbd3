"""EXAONE 4: heads normed, norms behind each part, three blocks in four with a window and positions (arXiv:2507.11407).

Blocks that see all tokens know no positions where others have a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import SLIDING, Layout, LlamaLike
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class EXAONE4(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    sliding_window: int = 0
    sliding_window_pattern: int = 4

    layout: ClassVar = Layout(
        "Exaone4", norms=("post_attention_layernorm", "post_feedforward_layernorm"), residual="post"
    )
    model_types: ClassVar = ("exaone4",)
    left_out: ClassVar = {"sliding_window": 4096}
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        pattern = table.get("sliding_window_pattern")
        if isinstance(pattern, str) and pattern == "L" * (len(pattern) - 1) + "G":
            return {**table, "sliding_window_pattern": len(pattern)}
        return table

    def attention(self, layer: int) -> SelfAttention:
        seen = self.of_kind(layer, SLIDING, (layer + 1) % self.sliding_window_pattern != 0)
        window = self.sliding_window if seen else 0
        norm = Norm(self.head_size, "Exaone4RMSNorm")
        rotated = window > 0 or not self.sliding_window
        return replace(super().attention(layer), norm=norm, norm_last=True, window=window, rotated=rotated)
