"""Zamba: blocks of Mamba whose heads make steps, B and C of their own, and one transformer that some of them share
(Glorioso et al., arXiv:2405.16712)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._mamba_heads import MambaHeads
from triosim.sources.models._parts import Rotary
from triosim.sources.models._shared_transformer import SharedTransformer
from triosim.sources.models._zamba_like import ZambaLike, zamba_layout
from triosim.sources.models.mamba import SIXTEENTH


@registered
@dataclass(frozen=True)
class Zamba(ZambaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_dt_rank: int = 0  # for none, a sixteenth of the width
    n_mamba_heads: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    layout: ClassVar = zamba_layout("Zamba")
    model_types: ClassVar = ("zamba",)
    fixed: ClassVar = {"hidden_act": "gelu", "hidden_mamba_act": "silu", "attention_dropout": (0.0, 0)}
    shared_name: ClassVar = "shared_transf"
    shared_first: ClassVar = True

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The list of blocks, which otherwise follows from a period and an offset; a rank that is ``auto``."""
        listed = table.get("layers_block_type", table.get("layer_types"))
        period, offset, depth = (
            table.get(key, usual)
            for key, usual in (("attn_layer_period", 6), ("attn_layer_offset", 4), ("num_hidden_layers", 76))
        )
        if not isinstance(listed, list) and all(type(n) is int and n > 0 for n in (period, depth)):
            regular = ["hybrid" if at % period == offset else "mamba" for at in range(depth - 3)]
            listed = ["mamba", "mamba", "hybrid", *regular]
        derived = {"layer_types", "attn_layer_period", "attn_layer_offset", "attention_hidden_size"}
        if table.get("mamba_dt_rank") == "auto":
            derived.add("mamba_dt_rank")
        return {**{key: value for key, value in table.items() if key not in derived}, "layers_block_type": listed}

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return ()

    def attention(self, layer: int) -> MambaHeads:
        return MambaHeads(
            self.hidden_size, self.n_mamba_heads, self.mamba_expand * self.hidden_size,
            self.mamba_dt_rank or math.ceil(self.hidden_size / SIXTEENTH), self.mamba_d_state, self.mamba_d_conv,
            "ZambaMambaMixer", self.mamba_proj_bias, self.mamba_conv_bias,
        )  # fmt: skip

    @property
    def shared(self) -> SharedTransformer:
        return SharedTransformer(
            self.hidden_size, self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads,
            self.intermediate_size or 4 * self.hidden_size, 0, 0, kind="Zamba",
        )  # fmt: skip
