"""Mamba: blocks of selective scans alone, on a residual stream in float32 (Gu & Dao, arXiv:2312.00752)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._mamba import MambaMixer
from triosim.sources.models._mamba_like import MambaLike, mamba_layout

SIXTEENTH = 16
"""Part of the width that steps are made of where a configuration has it ``auto``."""


@registered
@dataclass(frozen=True)
class Mamba(MambaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    state_size: int = 16
    expand: int = 2
    time_step_rank: int = 0  # for none, a sixteenth of the width
    tie_word_embeddings: bool = True

    layout: ClassVar = mamba_layout("Mamba")
    model_types: ClassVar = ("mamba",)
    fixed: ClassVar = {"hidden_act": "silu", "residual_in_fp32": True}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Without the channels, which follow from ``expand``, and a rank that is ``auto``."""
        derived = ("intermediate_size", *(["time_step_rank"] if table.get("time_step_rank") == "auto" else []))
        return {key: value for key, value in table.items() if key not in derived}

    def problem(self) -> str:
        return ""

    def attention(self, layer: int) -> MambaMixer:
        return MambaMixer(
            self.hidden_size, self.expand * self.hidden_size,
            self.time_step_rank or math.ceil(self.hidden_size / SIXTEENTH), self.state_size, self.conv_kernel,
            f"{self.layout.kind}Mixer", bias=self.use_bias, conv_bias=self.use_conv_bias,
        )  # fmt: skip
