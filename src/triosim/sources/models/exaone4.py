"""EXAONE 4: heads normed, norms behind each part, three blocks in four with a window and positions (arXiv:2507.11407).

Blocks that see all tokens know no positions where others have a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import MostlyWindowed
from triosim.sources.models._parts import Norm, SelfAttention


@registered
@dataclass(frozen=True)
class EXAONE4(MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

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
        own: SelfAttention = super().attention(layer)
        rotated = own.window > 0 or not self.sliding_window
        return replace(own, norm=Norm(self.head_size, f"{self.layout.kind}RMSNorm"), norm_last=True, rotated=rotated)
