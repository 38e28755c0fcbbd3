"""Bamba: blocks of Mamba-2, some of attention with half of each head rotated, and feed-forward parts (IBM, 2024)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Blocks
from triosim.sources.models._mamba_like import Mamba2Blocks
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention
from triosim.sources.models._scan import Mamba2Mixer


@registered
@dataclass(frozen=True)
class Bamba(Mamba2Blocks):
    """Configuration, named as in Hugging Face's ``config.json``; ``attn_layer_indices`` are the blocks that attend."""

    attn_layer_indices: Blocks = ()
    mamba_expand: int = 2
    attention_bias: bool = False
    mlp_bias: bool = False

    layout: ClassVar = Layout(
        "Bamba", feed_forward="feed_forward", last_norm="final_layernorm",
        norms=("input_layernorm", "pre_ff_layernorm"),
        order=("feed_forward", "input_layernorm", "pre_ff_layernorm", "attention"),
    )  # fmt: skip
    model_types: ClassVar = ("bamba",)
    fixed: ClassVar = {"hidden_act": "silu", "partial_rotary_factor": 0.5}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Lists of blocks as numbers of those that attend; without the width of a head, which follows."""
        listed = table.get("layers_block_type", table.get("layer_types"))
        if isinstance(listed, list):
            attend = [at for at, name in enumerate(listed) if name in ("attention", "full_attention")]
            table = {"attn_layer_indices": attend, **table}
        return {
            key: value
            for key, value in table.items()
            if key not in ("mamba_d_head", "layers_block_type", "layer_types")
        }

    def problem(self) -> str:
        wrong = [layer for layer in self.attn_layer_indices if layer >= self.num_hidden_layers]
        if wrong:
            return f"attn_layer_indices has block {wrong[0]} of {self.num_hidden_layers}"
        if self.mamba_expand * self.hidden_size % self.mamba_n_heads:
            return (
                f"{self.mamba_n_heads} heads do not divide {self.mamba_expand * self.hidden_size} channels of Mamba-2"
            )
        return super().problem() or self._mixer.problem()

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size // 2, "BambaRotaryEmbedding"),)

    @property
    def _mixer(self) -> Mamba2Mixer:
        return self.mixer(self.mamba_expand * self.hidden_size // self.mamba_n_heads, "Mixer")

    def attention_name(self, layer: int) -> str:
        return "self_attn" if layer in self.attn_layer_indices else "mamba"

    def attention(self, layer: int) -> Any:
        if layer not in self.attn_layer_indices:
            return self._mixer
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "BambaAttention",
            bias=self.attention_bias, last_bias=self.attention_bias,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> FeedForward:
        return FeedForward(self.hidden_size, self.intermediate_size, "BambaMLP", bias=self.mlp_bias)
