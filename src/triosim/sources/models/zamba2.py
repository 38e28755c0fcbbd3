"""Zamba2: blocks of Mamba-2 and transformers that some of them share, with adapters of each block's own
(Glorioso et al., arXiv:2411.15242)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._parts import Rotary
from triosim.sources.models._scan import Mamba2Mixer
from triosim.sources.models._shared_transformer import SharedTransformer
from triosim.sources.models._zamba_like import ZambaLike, zamba_layout


@registered
@dataclass(frozen=True)
class Zamba2(ZambaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    mamba_ngroups: int = 1
    n_mamba_heads: int = 8
    chunk_size: int = 256
    add_bias_linear: bool = False
    num_mem_blocks: int = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: int = 128
    use_mem_rope: bool = False

    layout: ClassVar = zamba_layout("Zamba2")
    model_types: ClassVar = ("zamba2",)
    fixed: ClassVar = {"hidden_act": "gelu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The list of blocks under one name; the usual one where it is not said."""
        listed = table.get("layers_block_type", table.get("layer_types"))
        if not isinstance(listed, list) and table.get("num_hidden_layers", 54) == 54:
            hybrid = (*range(6, 43, 6), 47, 51)
            listed = ["hybrid" if at in hybrid else "mamba" for at in range(54)]
        return {**{key: value for key, value in table.items() if key != "layer_types"}, "layers_block_type": listed}

    def problem(self) -> str:
        if self.mamba_expand * self.hidden_size % self.n_mamba_heads:
            return (
                f"{self.n_mamba_heads} heads do not divide {self.mamba_expand * self.hidden_size} channels of Mamba-2"
            )
        return super().problem()

    @property
    def memory_blocks(self) -> int:
        return self.num_mem_blocks

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        size = 2 * self.hidden_size // self.num_attention_heads
        return (Rotary(size, "Zamba2RotaryEmbedding"),) if self.use_mem_rope else ()

    def attention(self, layer: int) -> Mamba2Mixer:
        return Mamba2Mixer(
            self.hidden_size, self.n_mamba_heads, self.mamba_expand * self.hidden_size // self.n_mamba_heads,
            self.mamba_ngroups, self.mamba_d_state, self.mamba_d_conv, self.chunk_size, "Zamba2MambaMixer",
            "Zamba2RMSNormGated", self.add_bias_linear,
        )  # fmt: skip

    @property
    def shared(self) -> SharedTransformer:
        rank = self.adapter_rank
        return SharedTransformer(
            self.hidden_size, self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads,
            self.intermediate_size or 4 * self.hidden_size, rank if self.use_shared_attention_adapter else 0, rank,
            self.add_bias_linear,
        )  # fmt: skip
