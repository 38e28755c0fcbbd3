"""Kimi Linear: three blocks of Kimi Delta Attention to one of latent attention without positions (arXiv:2510.26692).

The delta rule is that of gated delta networks with a decay for each element of a key, as ``fla.ops.kda`` runs it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import LatentLlama, SigmoidExperts
from triosim.sources.models._family import Blocks
from triosim.sources.models._kimi_delta import KimiDeltaAttention
from triosim.sources.models._llama_like import FULL
from triosim.sources.models._parts import Rotary

PARTS = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys of the table of linear attention, and what they are called outside of it."""


@registered
@dataclass(frozen=True)
class KimiLinear(LatentLlama, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``; ``full_attn_layers`` are blocks by their number from 0
    that see all tokens."""

    full_attn_layers: Blocks = ()
    linear_head_dim: int = 128
    linear_num_heads: int = 32
    linear_conv_kernel_dim: int = 4
    moe_intermediate_size: int = 1024

    layout: ClassVar = Layout("KimiLinear")
    model_types: ClassVar = ("kimi_linear",)
    other_names: ClassVar = {
        "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob",
        "num_expert_group": "n_group", "num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
        "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
    }  # fmt: skip
    fixed: ClassVar = {"hidden_act": "silu", "mla_use_nope": True, "moe_layer_freq": 1}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Numbers of the blocks that see all tokens, which the file counts from 1, and those of dense blocks."""
        own, listed, mlp = table.get("linear_attn_config"), table.get("layer_types"), table.get("mlp_layer_types")
        if isinstance(own, dict):
            table = {**{PARTS[key]: value for key, value in own.items() if key in PARTS}, **table}
            blocks = own.get("full_attn_layers")
            if isinstance(blocks, list) and all(type(block) is int for block in blocks):
                table["full_attn_layers"] = [block - 1 for block in blocks]
        if isinstance(listed, list):
            table = {**table, "full_attn_layers": [at for at, name in enumerate(listed) if name == FULL]}
        if isinstance(mlp, list) and "sparse" in mlp and "dense" not in mlp[mlp.index("sparse") :]:
            table = {**table, "first_k_dense_replace": mlp.index("sparse")}
        without = ("linear_attn_config", "layer_types", "mlp_layer_types")
        return {key: value for key, value in table.items() if key not in without}

    def problem(self) -> str:
        wrong = [block for block in self.full_attn_layers if block >= self.num_hidden_layers]
        return f"full_attn_layers has block {wrong[0]} of {self.num_hidden_layers}" if wrong else super().problem()

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return ()

    def sees_all(self, layer: int) -> bool:
        """Whether a block has latent attention, not Kimi's."""
        return layer in self.full_attn_layers if self.full_attn_layers else layer > 0 and layer % 4 == 0

    def attention(self, layer: int) -> Any:
        if self.sees_all(layer):
            return super().attention(layer)
        return KimiDeltaAttention(
            self.hidden_size, self.linear_num_heads, self.linear_head_dim, self.linear_conv_kernel_dim
        )
