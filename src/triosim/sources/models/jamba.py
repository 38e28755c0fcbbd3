"""Jamba: seven blocks of Mamba to one of attention, experts in every second (AI21, arXiv:2403.19887)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._mamba import MambaMixer
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention
from triosim.sources.models.mamba import SIXTEENTH


@registered
@dataclass(frozen=True)
class Jamba(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``.

    Block i attends where ``i % attn_layer_period == attn_layer_offset``, and has experts where
    ``i % expert_layer_period == expert_layer_offset``.
    """

    num_experts: int = 16
    num_experts_per_tok: int = 2
    expert_layer_period: int = 2
    expert_layer_offset: Count = 1
    attn_layer_period: int = 8
    attn_layer_offset: Count = 4
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int = 0  # for none, a sixteenth of the width
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    layout: ClassVar = Layout(
        "Jamba", feed_forward="feed_forward", last_norm="final_layernorm", norms=("input_layernorm", "pre_ff_layernorm")
    )
    model_types: ClassVar = ("jamba",)
    fixed: ClassVar = {"hidden_act": "silu", "sliding_window": None}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Without lists that follow from periods, and a rank that is ``auto``."""
        derived = {
            "layers_block_type",
            "layer_types",
            *(["mamba_dt_rank"] if table.get("mamba_dt_rank") == "auto" else []),
        }
        return {key: value for key, value in table.items() if key not in derived}

    def problem(self) -> str:
        router = self._experts.router.problem() if self.num_experts > 1 else ""
        return super().problem() or router

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return ()

    @property
    def _experts(self) -> Experts:
        router = ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "JambaTopKRouter", name="router",
            normalised=False, rounded=True,
        )  # fmt: skip
        return Experts(router, self.intermediate_size, "JambaSparseMoeBlock", "JambaExperts")

    def attends(self, layer: int) -> bool:
        """Whether a block has attention, not Mamba."""
        return layer % self.attn_layer_period == self.attn_layer_offset

    def attention_name(self, layer: int) -> str:
        return "self_attn" if self.attends(layer) else "mamba"

    def attention(self, layer: int) -> Any:
        if self.attends(layer):
            return SelfAttention(
                self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "JambaAttention",
                rotated=False,
            )  # fmt: skip
        return MambaMixer(
            self.hidden_size, self.mamba_expand * self.hidden_size,
            self.mamba_dt_rank or math.ceil(self.hidden_size / SIXTEENTH), self.mamba_d_state, self.mamba_d_conv,
            "JambaMambaMixer", "JambaRMSNorm", bias=self.mamba_proj_bias, conv_bias=self.mamba_conv_bias, remade=False,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        if self.num_experts > 1 and layer % self.expert_layer_period == self.expert_layer_offset:
            return self._experts
        return FeedForward(self.hidden_size, self.intermediate_size, "JambaMLP")
