"""Mamba-2: blocks of a state-space model alone, on a residual stream in float32 (Dao & Gu, arXiv:2405.21060)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._mamba_like import MambaLike, mamba_layout
from triosim.sources.models._scan import Mamba2Mixer


@registered
@dataclass(frozen=True)
class Mamba2(MambaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_heads: int = 128
    head_dim: int = 64
    state_size: int = 128
    n_groups: int = 8
    chunk_size: int = 256
    tie_word_embeddings: bool = False

    layout: ClassVar = mamba_layout("Mamba2")
    model_types: ClassVar = ("mamba2",)
    fixed: ClassVar = {"hidden_act": "silu", "residual_in_fp32": True}

    def problem(self) -> str:
        return self.attention(0).problem()

    def attention(self, layer: int) -> Mamba2Mixer:
        return Mamba2Mixer(
            self.hidden_size, self.num_heads, self.head_dim, self.n_groups, self.state_size, self.conv_kernel,
            self.chunk_size, "Mamba2Mixer", "MambaRMSNormGated", self.use_bias, self.use_conv_bias,
        )  # fmt: skip
